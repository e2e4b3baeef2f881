# SPDX-License-Identifier: Apache-2.0
"""Lists of different lengths as a padded matrix, in ops that every device has (ragged ones not)."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.sorted_search import lower_bound


def padded_rows(
    rows: tf.Tensor, num_rows: tf.Tensor, *columns: tuple[tf.Tensor, float]
) -> list[tf.Tensor]:
    """Returns `[num_rows, n]` matrices, n the length of the longest row.

    Cost: O(N log N) for N entries.

    Args:
        rows: `[N]` int64, rising: the row of each entry.
        num_rows: `[]` int64.
        *columns: For each matrix its entries `[N]`, and what stands behind the last one of a row.
    """
    first = lower_bound(rows, tf.range(num_rows))
    place = tf.range(tf.size(rows, tf.int64)) - tf.gather(first, rows)
    length = tf.reduce_max(tf.concat([tf.constant([-1], tf.int64), place], axis=0)) + 1
    places, shape = tf.stack([rows, place], axis=1), tf.stack([num_rows, length])
    return [
        tf.tensor_scatter_nd_update(tf.fill(shape, tf.cast(padding, x.dtype)), places, x)
        for x, padding in columns
    ]
