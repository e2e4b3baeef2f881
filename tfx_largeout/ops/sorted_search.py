# SPDX-License-Identifier: Apache-2.0
"""Binary search in sorted vectors, for values of any shape, also none; sorted entries as rows.

`tf.searchsorted` needs as many rows of values as of sorted values, and fails in a graph for an
empty batch.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


def lower_bound(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each of `values` how many of `ascending` `[n]` are smaller, int64."""
    return _search(tf.raw_ops.LowerBound, ascending, values)


def upper_bound(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each of `values` how many of `ascending` `[n]` are at most it, int64."""
    return _search(tf.raw_ops.UpperBound, ascending, values)


def is_in(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each of `values` whether it is one of `ascending` `[n]`, n > 0."""
    places = tf.minimum(lower_bound(ascending, values), tf.size(ascending, tf.int64) - 1)
    return tf.gather(ascending, places) == values


def is_in_rows(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each of `values` `[N, m]` whether its row of `ascending` `[N, n]` has it, n > 0.

    Cost: O(N m log n).
    """
    places = tf.raw_ops.LowerBound(sorted_inputs=ascending, values=values, out_type=tf.int64)
    places = tf.minimum(places, tf.shape(ascending, tf.int64)[1] - 1)
    return tf.gather(ascending, places, batch_dims=1) == values


def _search(bound: Callable[..., tf.Tensor], ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    row = tf.reshape(values, [1, tf.size(values)])
    found = bound(sorted_inputs=ascending[tf.newaxis], values=row, out_type=tf.int64)
    return tf.reshape(found, tf.shape(values))


def padded_rows(
    rows: tf.Tensor, num_rows: tf.Tensor, *columns: tuple[tf.Tensor, float]
) -> list[tf.Tensor]:
    """Returns `[num_rows, n]` matrices, with n the length of the longest row.

    Uses ops that every device has, unlike ragged tensors. Cost: O(N log N) for N entries.

    Args:
        rows: `[N]` int64, rising: the row of each entry.
        num_rows: `[]` int64.
        *columns: For each matrix its entries `[N]`, and its padding value.
    """
    first = lower_bound(rows, tf.range(num_rows))
    place = tf.range(tf.size(rows, tf.int64)) - tf.gather(first, rows)
    length = tf.reduce_max(tf.concat([tf.constant([-1], tf.int64), place], axis=0)) + 1
    places, shape = tf.stack([rows, place], axis=1), tf.stack([num_rows, length])
    return [
        tf.tensor_scatter_nd_update(tf.fill(shape, tf.cast(padding, x.dtype)), places, x)
        for x, padding in columns
    ]
