# SPDX-License-Identifier: Apache-2.0
"""Binary search in sorted vectors, for values of any shape, also none.

`tf.searchsorted` wants as many rows of values as of sorted values, and fails in a graph on no
values at all (an empty batch).
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf


def lower_bound(ascending: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns for each of `values` how many of `ascending` `[n]` are less than it, int64."""
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
