# SPDX-License-Identifier: Apache-2.0
"""The mean of the rows of a variable, read in place."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES, compute_dtype
from tfx_largeout.ops.rows.variable_rows import bare_variable, fold_blocks, gather, ids_between


def mean_of_rows(variable: Any, *, implementation: str = "auto") -> tf.Tensor:
    """Computes the mean of the rows of a variable; for W it gives the mean logit.

    mean = 1/C sum_c W[c]

    Sums of more than a few rows are float64, so that rounding errors don't add up.

    Cost: the variable is read once, in place: limited by the memory bandwidth. Memory: O(D).

    Args:
        variable: W, `[C, ...]`, C at least 1: `tf.Variable` or `keras.Variable`, float32, bfloat16
            or float64 (composed only).
        implementation: See `ops`, which has the errors, too.

    Returns:
        `[...]`, float32, or float64 for a float64 variable.
    """
    variable = bare_variable(variable)
    dtype = compute_dtype(variable)
    if variable.shape.rank == 0 or variable.shape[0] == 0:
        raise ValueError(f"variable must be [C, ...] with C at least 1; got shape {variable.shape}")
    module = op_module(implementation, "tfx_mean_of_rows", "variable", variable, OP_DTYPES)
    if module is None:
        return tf.cast(_composed(variable), dtype)
    mean = module.tfx_mean_of_rows(variable=variable.handle, dtype=variable.dtype)
    return tf.ensure_shape(mean, variable.shape[1:])


_BLOCK_ELEMENTS = 2**18  # 2 MiB in float64


def _composed(variable: tf.Variable) -> tf.Tensor:
    """Same result as the custom op, by a loop over blocks of rows, in float64."""
    num_rows, shape = variable.shape[0], variable.shape[1:]
    block = max(_BLOCK_ELEMENTS // max(shape.num_elements(), 1), 1)

    def add_block(start: tf.Tensor, end: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        rows = gather(variable, ids_between(start, end))
        return total + tf.reduce_sum(tf.cast(rows, tf.float64), axis=0)

    return fold_blocks(num_rows, block, add_block, tf.zeros(shape, tf.float64)) / num_rows
