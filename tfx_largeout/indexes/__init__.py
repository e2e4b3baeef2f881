# SPDX-License-Identifier: Apache-2.0
"""Indexes over the output weights: find the classes near a vector without all logits.

`hash_family.py` says how to add a family of hash functions.
"""

from tfx_largeout.indexes.choose_hash_index import choose_hash_index
from tfx_largeout.indexes.hash_family import DWTAHash, SimHash, WTAHash
from tfx_largeout.indexes.hash_index import HashIndex
from tfx_largeout.indexes.inverted_file import InvertedFile
from tfx_largeout.indexes.inverted_multi_index import InvertedMultiIndex
from tfx_largeout.indexes.row_bounds import RowBounds

__all__ = [
    "DWTAHash",
    "HashIndex",
    "InvertedFile",
    "InvertedMultiIndex",
    "RowBounds",
    "SimHash",
    "WTAHash",
    "choose_hash_index",
]
