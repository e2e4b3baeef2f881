# SPDX-License-Identifier: Apache-2.0
"""Rows of a variable, read and written in place, without reading it as a whole."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.keras_internals import variable_behind


def gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of a variable without reading it as a whole."""
    return tf.ensure_shape(
        tf.raw_ops.ResourceGather(resource=variable.handle, indices=ids, dtype=variable.dtype),
        ids.shape.concatenate(variable.shape[1:]),
    )


def ids_between(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    """Returns start, start + 1, ... end - 1 of int32 counts, `[n]` int64."""
    return tf.cast(tf.range(start, end), tf.int64)


def fold_blocks(
    num_rows: Any,
    block: Any,
    visit: Callable[[tf.Tensor, tf.Tensor, Any], Any],
    result: Any = (),
    shapes: Any = None,
) -> Any:
    """Calls `result = visit(start, end, result)` for each block of rows, or of columns.

    Counts of rows are int32, which stay on the host with a GPU, so that no iteration waits.

    Args:
        num_rows: A number, or `[]` int32.
        block: The number of rows per block, at least 1; a number or `[]` int32.
        visit: Takes the first row, the row after the last, and the result so far.
        result: The initial result: tensors, nested or not.
        shapes: Their shapes, if they differ between blocks.
    """

    def body(start: tf.Tensor, result: Any) -> tuple[tf.Tensor, Any]:
        end = start + tf.minimum(block, num_rows - start)
        return end, visit(start, end, result)

    return tf.while_loop(
        lambda start, _: start < num_rows,
        body,
        (tf.zeros([], tf.int32), result),
        shape_invariants=None if shapes is None else (tf.TensorShape([]), shapes),
        parallel_iterations=1,
    )[1]


def prunable_gather(variable: tf.Variable, ids: tf.Tensor) -> tf.Tensor:
    """Returns rows of a variable without reading it as a whole, for use in loops.

    For TensorFlow an op that reads a variable has side effects: a loop around it would run even if
    nothing needs its result. A function call has no side effects unless declared.
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
    if variable.dtype == tf.bool:
        ids = tf.cast(ids, tf.int32)  # a GPU scatters bool only as int32
    tf.raw_ops.ResourceScatterUpdate(resource=variable.handle, indices=ids, updates=rows)


def bare_variable(variable: Any) -> tf.Variable:
    """Returns the TensorFlow variable of a Keras variable, or of a strategy's variable."""
    variable = variable_behind(variable)
    if isinstance(variable, tf.distribute.DistributedValues):
        variable = variable.values[0]  # heads raise an error for several replicas
    return variable


# Index tables store int32 numbers in uint32 variables: a GPU has no int32 variables.


def signed(numbers: Any) -> tf.Tensor:
    """Returns uint32 as the int32 of the same bits: 2^32 - 1 is -1."""
    return tf.bitcast(numbers, tf.int32)


def unsigned(numbers: Any) -> tf.Tensor:
    """Returns int32 as the uint32 of the same bits."""
    return tf.bitcast(numbers, tf.uint32)
