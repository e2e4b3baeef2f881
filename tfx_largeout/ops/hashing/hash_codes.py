# SPDX-License-Identifier: Apache-2.0
"""Codes of vectors: their bucket in each of L hash tables."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes, check_each, check_finite
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.run_time_checks import Check, after

MAX_BUCKETS = 2**24
"""How many buckets a table may have."""


class HashFunctions(NamedTuple):
    """H hash functions of vectors x `[D]`, winners or signs.

    Attributes:
        elements: `[H, window]` int32, in [0, D): function j is the position of the greatest of
            x[elements[j]]; ties: the first. `[0, 0]`: the functions are signs.
        planes: `[H, D]` float32: function j is whether <planes[j], x> > 0. `[0, 0]`: the functions
            are winners.
        bins: The number of consecutive functions that use parts of one permutation. A function that
            finds only zeros takes the value of the nearest one in this circle that does not (ties:
            the later one). With 1, its value is 0.
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
    """Returns the code (bucket) of each vector in each table.

    The code of table t is sum_k f_{t K + k}(x) v^k, with v values per function. It is -1 for a
    vector of zeros, and if all bins of a permutation are empty in the table.

    Cost: O(n L K window), or O(n L K D) with planes.

    Args:
        vectors: `[n, D]` float32, finite.
        functions: H >= L K functions.
        num_tables: L.
        hashes_per_table: K; a table has v^K buckets, at most 2^24.
        implementation: See `ops`, which has the errors, too.

    Returns:
        `[n, L]` int32.
    """
    check_dtypes(tf.float32, vectors=vectors)
    dtypes = (tf.float32,)
    module = op_module(implementation, "tfx_hash_codes", "vectors", vectors, dtypes, dtypes)
    if module is None:
        return hash_codes_composed(vectors, functions, num_tables, hashes_per_table)
    return module.tfx_hash_codes(
        vectors=vectors,
        **functions._asdict(),
        num_tables=num_tables,
        hashes_per_table=hashes_per_table,
    )


def hash_codes_composed(
    vectors: tf.Tensor, functions: HashFunctions, num_tables: int, hashes_per_table: int
) -> tf.Tensor:
    """As `hash_codes`. Products with planes may be summed in another order."""
    if vectors.shape.rank != 2:
        raise ValueError(f"vectors must be [n, D]; got shape {vectors.shape}")
    checks = check_functions(functions, vectors.shape[1], num_tables, hashes_per_table)
    elements, planes, bins = functions
    with after([*checks, check_finite("vectors", vectors)]):
        vectors = tf.identity(vectors)
    if 0 not in elements.shape:
        base, values = elements.shape[1], _winners(vectors, elements, bins)
    else:
        products = tf.matmul(vectors, planes, transpose_b=True)
        base, values = 2, tf.cast(products > 0, tf.int32)
    digits = values[:, : num_tables * hashes_per_table]
    digits = tf.reshape(digits, [-1, num_tables, hashes_per_table])
    weights = tf.constant([base**k for k in range(hashes_per_table)], tf.int32)
    codes = tf.reduce_sum(digits * weights, axis=2)
    is_zero = tf.reduce_all(vectors == 0, axis=1)[:, tf.newaxis]
    return tf.where(tf.reduce_any(digits < 0, axis=2) | is_zero, -1, codes)


def check_functions(
    functions: HashFunctions, width: int, num_tables: int, hashes_per_table: int
) -> list[Check]:
    """Raises ValueError if functions don't fit vectors, or are too few; O(H window)."""
    elements, planes, bins = functions
    shapes = tuple(elements.shape), tuple(planes.shape)
    is_given = [len(shape) == 2 and math.prod(shape) > 0 for shape in shapes]
    if [len(shape) for shape in shapes] != [2, 2] or is_given[0] == is_given[1]:
        raise ValueError(
            "one of elements and planes must be a matrix, the other one empty; got shapes "
            f"{shapes[0]} and {shapes[1]}"
        )
    count, window = shapes[0] if is_given[0] else shapes[1]
    base = window if is_given[0] else 2
    for name, number in (
        ("num_tables", num_tables),
        ("hashes_per_table", hashes_per_table),
        ("bins", bins),
    ):
        if number < 1:
            raise ValueError(f"{name} must be at least 1; got {number}")
    if count < num_tables * hashes_per_table or count % bins != 0:
        raise ValueError(
            f"there must be hashes_per_table * num_tables = {hashes_per_table * num_tables} "
            f"hashes, up to whole {bins} bins; got {count}"
        )
    if is_given[1] and (window != width or bins != 1):
        raise ValueError(
            f"planes must be [H, D] with D = {width}, without bins; got shape {shapes[1]} and "
            f"{bins} bins"
        )
    if base < 2:
        raise ValueError(
            f"elements must be [H, window] with a window of at least 2; got shape {shapes[0]}"
        )
    if base**hashes_per_table > MAX_BUCKETS:
        raise ValueError(
            f"a table must have at most 2^24 buckets; got {base}^hashes_per_table = "
            f"{base}^{hashes_per_table}"
        )
    elements = tf.convert_to_tensor(elements)
    wrong = (elements < 0) | (elements >= width)
    return [check_each(f"elements must be in [0, {width}); got", elements, wrong)]


def _winners(vectors: tf.Tensor, elements: tf.Tensor, bins: int) -> tf.Tensor:
    """Returns `[n, H]` winners; -1 where a permutation has only zeros."""
    values = tf.gather(vectors, elements, axis=1)
    is_empty = tf.reduce_all(values == 0, axis=2)
    winners = tf.where(is_empty, -1, tf.argmax(values, axis=2, output_type=tf.int32))
    if bins == 1:
        return tf.maximum(winners, 0)
    found = filled = tf.reshape(winners, [-1, elements.shape[0] // bins, bins])
    for distance in range(1, bins // 2 + 1):
        later, earlier = tf.roll(found, -distance, axis=2), tf.roll(found, distance, axis=2)
        nearest = tf.where(later >= 0, later, earlier)
        filled = tf.where(filled >= 0, filled, nearest)
    return tf.reshape(filled, tf.shape(winners))
