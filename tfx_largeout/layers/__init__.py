# SPDX-License-Identifier: Apache-2.0
"""Layers that touch rows of their weights alone, and the best classes of a head (`tlo.TopK`)."""

from __future__ import annotations

from tfx_largeout.layers.factored_embedding import FactoredEmbedding
from tfx_largeout.layers.sparse_trunk import RowEmbedding, SparseDense

__all__ = ["FactoredEmbedding", "RowEmbedding", "SparseDense"]
