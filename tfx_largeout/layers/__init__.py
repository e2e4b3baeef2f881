# SPDX-License-Identifier: Apache-2.0
"""Layers of the trunk."""

from __future__ import annotations

from tfx_largeout.layers.sparse_dense import SparseDense

__all__ = ["SparseDense"]
