# SPDX-License-Identifier: Apache-2.0
"""Rows of a variable, read by an op that TensorFlow drops where nothing needs them."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.variable_rows import gather


def prunable_gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of a variable, which is not read as a whole, for use in loops.

    TensorFlow counts an op that reads a variable as one with side effects. A loop around it would
    run even where nothing needs its result. A call of a function has none unless it says so.

    Args:
        variable: `[C, ...]`.
        ids: `[n]` int64.
    """
    if tf.executing_eagerly():
        return gather(variable, ids)
    signature = tf.TensorSpec(variable.handle.shape, tf.resource), tf.TensorSpec([None], tf.int64)

    @tf.function(autograph=False, input_signature=signature)
    def read(handle: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        return tf.raw_ops.ResourceGather(resource=handle, indices=ids, dtype=variable.dtype)

    rows = tf.raw_ops.PartitionedCall(
        args=[variable.handle, ids], Tout=[variable.dtype], f=read.get_concrete_function()
    )[0]
    return tf.ensure_shape(rows, ids.shape.concatenate(variable.shape[1:]))
