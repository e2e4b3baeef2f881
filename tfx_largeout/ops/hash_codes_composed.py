# SPDX-License-Identifier: Apache-2.0
"""hash_codes from TensorFlow's own ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.runtime_checks import after, check_finite


def hash_codes_composed(
    vectors: tf.Tensor, functions: Any, num_tables: int, hashes_per_table: int
) -> tf.Tensor:
    """As `hash_codes`. The sums of products with planes may be rounded in another order."""
    elements, planes, bins = functions
    with after([check_finite("vectors", vectors)]):
        vectors = tf.identity(vectors)
    if elements.shape[0] > 0:
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
