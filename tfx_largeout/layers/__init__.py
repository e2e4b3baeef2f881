# SPDX-License-Identifier: Apache-2.0
"""The sparse layer of a trunk, and the best classes of a head (`tlo.TopK`)."""

from __future__ import annotations

from tfx_largeout.layers.sparse_dense import SparseDense

__all__ = ["SparseDense"]
