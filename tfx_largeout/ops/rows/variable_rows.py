# SPDX-License-Identifier: Apache-2.0
"""Rows of a variable, read and written in place: it is never read as a whole."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.keras_internals import variable_behind


def gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of a variable, which is not read as a whole."""
    return tf.ensure_shape(
        tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype),
        ids.shape.concatenate(variable.shape[1:]),
    )


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


def scatter_update(variable: tf.Variable, ids: tf.Tensor, rows: tf.Tensor) -> None:
    """Writes rows of a variable in place."""
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)


def bare_variable(variable: Any) -> tf.Variable:
    """Returns TensorFlow's variable behind a Keras variable, or behind one of a strategy."""
    variable = variable_behind(variable)
    if isinstance(variable, tf.distribute.DistributedValues):
        variable = variable.values[0]  # heads refuse more than one replica
    return variable
