# SPDX-License-Identifier: Apache-2.0
"""Layers that update only used rows of their weights, and `tlo.TopK`."""

from __future__ import annotations

from tfx_largeout.layers.factored_embedding import FactoredEmbedding
from tfx_largeout.layers.sparse_trunk import RowEmbedding, SparseDense

__all__ = ["FactoredEmbedding", "RowEmbedding", "SparseDense"]
