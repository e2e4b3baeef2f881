# SPDX-License-Identifier: Apache-2.0
"""Steps of SGD, Adagrad and Adam on some rows of a variable; the other rows are not touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.ops.checks import check_dtypes
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import (
    OP_DTYPES,
    RowRule,
    check_slots,
    compute_dtype,
    numbers_of,
    rate_in,
)
from tfx_largeout.ops.rows.row_update_composed import row_update_composed
from tfx_largeout.ops.rows.variable_rows import bare_variable


def row_update(
    variable: Any,
    slots: Sequence[Any],
    ids: tf.Tensor,
    gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: Any,
    *,
    implementation: str = "auto",
) -> None:
    """Takes a step on the rows `ids` of a variable, in place.

    Cost: O(n D) for n ids, whatever C is.

    Args:
        variable: `[C, D]` or `[C]` (or of higher rank): `tf.Variable` or `keras.Variable`, float32,
            bfloat16 or float64 (composed only).
        slots: The variables that `rule.slots` names, changed in place.
        ids: `[n]` int64 in [0, C), without repeats.
        gradient: `[n, D]` or `[n]`, finite; float32, or float64 beside a float64 variable. All
            arithmetic is in this dtype.
        rule: What to do.
        learning_rate: eta, a scalar of at least 0; eta weight_decay must be below 1.
        implementation: `"auto"` (default): the custom op where the library loads, it serves the
            dtype and the variable isn't on a GPU, else TensorFlow's own ops; `"op"` or `"composed"`
            to insist.

    Raises:
        ValueError: The rule is none; slots don't fit it; a static shape is wrong.
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: An id is out of range or repeated, the gradient or the rate
            is not finite, shapes disagree. Nothing is changed then.
    """
    rule.check()
    variable = bare_variable(variable)
    slots = [bare_variable(slot) for slot in slots]
    dtype = compute_dtype(variable)
    check_slots("variable", variable, slots, rule)
    check_dtypes(tf.int64, ids=ids)
    check_dtypes(dtype, gradient=gradient)
    learning_rate = rate_in(dtype, learning_rate)
    module = op_module(implementation, "tfx_row_update", "variable", variable, OP_DTYPES)
    if module is None:
        row_update_composed(variable, slots, ids, gradient, rule, learning_rate)
        return
    module.tfx_row_update(
        variable=variable.handle,
        slots=[slot.handle for slot in slots],
        ids=ids,
        gradient=gradient,
        learning_rate=learning_rate,
        rule=numbers_of(rule),
        method=rule.method,
        dtype=variable.dtype,
    )
