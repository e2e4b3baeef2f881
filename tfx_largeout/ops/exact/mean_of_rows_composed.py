# SPDX-License-Identifier: Apache-2.0
"""The mean of the rows of a variable, in TensorFlow's own ops alone."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.rows.variable_rows import gather

_BLOCK_ELEMENTS = 2**18  # 2 MiB in float64


def mean_of_rows_composed(variable: tf.Variable) -> tf.Tensor:
    """Same result as the custom op of `mean_of_rows`, by a loop over blocks of rows.

    Args:
        variable: `[C, ...]`, C at least 1.

    Returns:
        `[...]` float64.
    """
    num_rows, shape = variable.shape[0], variable.shape[1:]
    block = max(_BLOCK_ELEMENTS // max(shape.num_elements(), 1), 1)

    def add_block(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        end = start + tf.minimum(block, num_rows - start)
        rows = gather(variable, tf.cast(tf.range(start, end), tf.int64))
        return end, total + tf.reduce_sum(tf.cast(rows, tf.float64), axis=0)

    _, total = tf.while_loop(
        lambda start, _: start < num_rows,
        add_block,
        (tf.zeros([], tf.int32), tf.zeros(shape, tf.float64)),
        parallel_iterations=1,
    )
    return total / num_rows
