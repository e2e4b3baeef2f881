# SPDX-License-Identifier: Apache-2.0
"""Codes of vectors: in which bucket of each of L hash tables they are."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes
from tfx_largeout.ops.hashing.hash_codes_composed import MAX_BUCKETS as MAX_BUCKETS
from tfx_largeout.ops.hashing.hash_codes_composed import hash_codes_composed
from tfx_largeout.ops.implementation import op_module


class HashFunctions(NamedTuple):
    """H hash functions of vectors x `[D]`, of one of two kinds.

    Attributes:
        elements: `[H, window]` int32, in [0, D): function j is the place of the greatest of
            x[elements[j]], the first of equal ones. `[0, 0]`: the functions are signs.
        planes: `[H, D]` float32: function j is whether <planes[j], x> > 0. `[0, 0]`: the functions
            are winners.
        bins: How many functions in a row look at the parts of one permutation. One that finds only
            zeros then takes the value of the nearest in the circle of these that does not, the
            later of two. With 1, it is 0.
    """

    elements: Any
    planes: Any
    bins: int

    @classmethod
    def by_winner(cls, elements: np.ndarray, bins: int = 1) -> HashFunctions:
        """Functions that compare coordinates."""
        return cls(elements.astype(np.int32), np.zeros([0, 0], np.float32), bins)

    @classmethod
    def by_planes(cls, planes: np.ndarray) -> HashFunctions:
        """Functions that are signs of projections."""
        return cls(np.zeros([0, 0], np.int32), planes, 1)


def hash_codes(
    vectors: tf.Tensor,
    functions: HashFunctions,
    num_tables: int,
    hashes_per_table: int,
    *,
    implementation: str = "auto",
) -> tf.Tensor:
    """Returns the code of each vector for each table: the number of its bucket.

    The code of table t is sum_k f_{t K + k}(x) v^k, with v values a function. A vector of zeros has
    none, nor has one for whose table all bins of a permutation are empty: -1.

    Cost: O(n L K window), or O(n L K D) with planes.

    Args:
        vectors: `[n, D]` float32, finite.
        functions: H >= L K functions.
        num_tables: L.
        hashes_per_table: K; a table has v^K buckets, at most 2^24.
        implementation: `"auto"` (default), `"op"` or `"composed"`, as `row_update`.

    Returns:
        `[n, L]` int32.

    Raises:
        ValueError: Shapes don't fit each other (composed ops; the custom op says so as below).
        TypeError: `vectors` is not float32.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: A vector is not finite; shapes disagree.
    """
    check_dtypes(tf.float32, vectors=vectors)
    dtypes = (tf.float32,)
    module = op_module(implementation, "tfx_hash_codes", "vectors", vectors, dtypes, dtypes)
    if module is None:
        return hash_codes_composed(vectors, functions, num_tables, hashes_per_table)
    return module.tfx_hash_codes(
        vectors=vectors,
        elements=functions.elements,
        planes=functions.planes,
        bins=functions.bins,
        num_tables=num_tables,
        hashes_per_table=hashes_per_table,
    )
