# SPDX-License-Identifier: Apache-2.0
"""The longest row (w, b), which sets the radius of the inner-product transform."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.rows.variable_rows import bare_variable, fold_blocks, gather

_ROWS_LOOKED_AT = 4096  # rows searched for a longer one
_GROWTH = 1.25  # factor by which it must be longer for all rows to be hashed again
_RADIUS_RATIO = 1.5  # ratio of the radii of neighbouring ranges of lengths
_LEAST_SQUARE = 1e-30  # a radius must not be 0
_BLOCK_ROWS = 2**14  # lengths computed at a time


def grown_radius(
    kernel: tf.Variable, bias: Any, touched: tf.Tensor, radius: tf.Tensor, rows: ClassRows
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the rows to mark (all, if the longest has grown much) and the radius.

    Cost: O(D) for up to 4,096 rows and the touched rows. `touched` as in `Index.update`; `radius`
    is the present one.
    """
    step = max(1, rows.num_classes // _ROWS_LOOKED_AT)
    some = rows.of(tf.range(0, rows.num_classes, step, dtype=tf.int64))
    looked_at = tf.concat([some, touched], axis=0)
    looked_at = tf.boolean_mask(looked_at, looked_at >= 0)
    now = rows.workers.longest(longest_row(kernel, bias, looked_at), f"{rows.site}/radius")
    is_new = now > radius * _GROWTH
    every = tf.range(kernel.shape[0], dtype=tf.int64)
    touched = tf.cond(is_new, lambda: every, lambda: touched)
    return touched, tf.where(is_new, now, radius)


def radii(radius: tf.Tensor, num_ranges: int) -> tf.Tensor:
    """Returns the radius of each range of lengths, falling, `[m]`."""
    return radius * _RADIUS_RATIO ** -tf.range(num_ranges, dtype=tf.float32)


def longest_row(kernel: tf.Variable, bias: Any, ids: tf.Tensor) -> tf.Tensor:
    """Returns the length of the longest of some rows (w, b), above 0."""

    def of_block(start: tf.Tensor, end: tf.Tensor, longest: tf.Tensor) -> tf.Tensor:
        some = ids[start:end]
        squares = tf.reduce_sum(tf.square(tf.cast(gather(kernel, some), tf.float32)), axis=1)
        if bias is not None:
            squares += tf.square(tf.cast(gather(bare_variable(bias), some), tf.float32))
        # Values that are not finite are rejected by the update, or too long for a radius.
        squares = tf.where(tf.math.is_finite(squares), squares, 0)
        return tf.maximum(longest, tf.reduce_max(squares))

    return tf.sqrt(fold_blocks(tf.size(ids), _BLOCK_ROWS, of_block, tf.constant(_LEAST_SQUARE)))
