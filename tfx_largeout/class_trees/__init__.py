# SPDX-License-Identifier: Apache-2.0
"""Trees whose leaves are the classes. `base.py` defines the interface."""

from tfx_largeout.class_trees.base import ClassTree, RowTable, TableGradient
from tfx_largeout.class_trees.huffman_tree import HuffmanTree, huffman_code_lengths
from tfx_largeout.class_trees.sweep import Sweep
from tfx_largeout.class_trees.two_level_tree import (
    TwoLevelTree,
    equal_clusters,
    frequency_clusters,
)

__all__ = [
    "ClassTree",
    "HuffmanTree",
    "RowTable",
    "Sweep",
    "TableGradient",
    "TwoLevelTree",
    "equal_clusters",
    "frequency_clusters",
    "huffman_code_lengths",
]
