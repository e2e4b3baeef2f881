# SPDX-License-Identifier: Apache-2.0
"""Steps of SGD, Adagrad and Adam on some rows of a variable; other rows are not touched."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import (
    check_dtypes,
    check_finite,
    check_ids,
    check_learning_rate,
    check_shape,
)
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import (
    OP_DTYPES,
    RowRule,
    check_slots,
    compute_dtype,
    numbers_of,
    rate_in,
)
from tfx_largeout.ops.rows.stochastic_rounding import (
    bits_of_moments,
    bits_of_weights,
    rounded_at_random,
)
from tfx_largeout.ops.rows.unit_rows import at_norm_1, tangent
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather, scatter_update
from tfx_largeout.run_time_checks import Check, after


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

    Cost: O(n D) for n ids, independent of C.

    Args:
        variable: `[C, D]` or `[C]` (or of higher rank): `tf.Variable` or `keras.Variable`, float32,
            bfloat16 or float64 (composed only).
        slots: The variables of `rule.slots`, changed in place.
        ids: `[n]` int64 in [0, C), without repeats.
        gradient: `[n, D]` or `[n]`, finite; float32, or float64 for a float64 variable. All
            arithmetic is in this dtype.
        rule: The update of a row.
        learning_rate: eta, a scalar of at least 0; eta weight_decay must be below 1.
        implementation: See `ops`, which has the errors, too.
    """
    rule.check()
    variable = bare_variable(variable)
    slots = [bare_variable(slot) for slot in slots]
    dtype = compute_dtype(variable)
    check_slots("variable", variable, slots, rule)
    check_dtypes(tf.int64, ids=ids)
    check_dtypes(dtype, gradient=gradient)
    learning_rate = rate_in(dtype, learning_rate)
    module = op_module(
        implementation, "tfx_row_update", "variable", variable, OP_DTYPES, multiplies=False
    )
    if module is None:
        shape = tf.concat([tf.shape(ids)[:1], variable.shape[1:]], axis=0)
        rule_of_shape = "[n, D] with the n of ids and the D of the variable"
        checks = [
            check_shape("ids", "[n]", ids, [tf.size(ids)]),
            check_shape("gradient", rule_of_shape, gradient, shape),
            check_ids("ids", ids, 0, variable.shape[0]),
            _check_unique(ids),
            check_finite("gradient", gradient),
            check_learning_rate(learning_rate, rule.weight_decay),
        ]
        with after(checks):
            ids, gradient = tf.identity(ids), tf.identity(gradient)
        step_on_rows(variable, slots, ids, gradient, rule, learning_rate)
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


class RowStep(NamedTuple):
    """The inputs of a step on rows of W and b, except for gradients.

    Attributes:
        kernel: W.
        bias: b, or None.
        kernel_slots: The variables of `rule.slots` for W.
        bias_slots: The slots for b; empty without a bias.
        rule: The update of a row.
        learning_rate: eta, a scalar.
    """

    kernel: tf.Variable
    bias: tf.Variable | None
    kernel_slots: list[tf.Variable]
    bias_slots: list[tf.Variable]
    rule: RowRule
    learning_rate: tf.Tensor

    @classmethod
    def of(
        cls,
        kernel: tf.Variable,
        bias: tf.Variable | None,
        kernel_slots: Sequence[Any],
        bias_slots: Sequence[Any],
        rule: RowRule,
        learning_rate: Any,
    ) -> RowStep:
        """Unwraps variables; raises for an invalid rule, and for slots that don't fit."""
        rule.check()
        kernel_slots = [bare_variable(slot) for slot in kernel_slots]
        bias_slots = [bare_variable(slot) for slot in bias_slots]
        check_slots("kernel", kernel, kernel_slots, rule)
        if rule.unit_rows and bias is not None:
            raise ValueError("bias must be None where a rule keeps rows at norm 1; got one")
        if bias is not None:
            check_slots("bias", bias, bias_slots, rule)
        elif bias_slots:
            raise ValueError(f"bias_slots must be empty without a bias; got {len(bias_slots)}")
        learning_rate = rate_in(compute_dtype(kernel), learning_rate)
        return cls(kernel, bias, kernel_slots, bias_slots, rule, learning_rate)

    @property
    def inputs(self) -> dict[str, Any]:
        """The inputs for the custom ops."""
        return {
            "kernel_slots": [slot.handle for slot in self.kernel_slots],
            "bias_slots": [slot.handle for slot in self.bias_slots],
            "learning_rate": self.learning_rate,
            "rule": numbers_of(self.rule),
            "method": self.rule.method,
        }

    def check_rate(self) -> Check:
        """Returns a check of the learning rate."""
        return check_learning_rate(self.learning_rate, self.rule.weight_decay)

    def take(
        self,
        ids: tf.Tensor,
        kernel_gradient: tf.Tensor,
        bias_gradient: tf.Tensor,
        hidden_gradient: tf.Tensor,
    ) -> None:
        """Takes the step on rows `ids` after `hidden_gradient`, which needs the old W."""
        with tf.control_dependencies([hidden_gradient]):
            ids = tf.identity(ids)
        rule, rate = self.rule, self.learning_rate
        step_on_rows(self.kernel, self.kernel_slots, ids, kernel_gradient, rule, rate)
        if self.bias is not None:
            rule = rule._replace(random_bits=rule.random_bits.of_bias())
            step_on_rows(self.bias, self.bias_slots, ids, bias_gradient, rule, rate)


def step_on_rows(
    variable: tf.Variable,
    slots: Sequence[tf.Variable],
    ids: tf.Tensor,
    gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: tf.Tensor,
) -> None:
    """As `row_update`, by TensorFlow's ops, with checked arguments."""
    targets = [variable, *slots]
    rows, *slot_rows = [gather(target, ids) for target in targets]
    values = row_step(rule, rows, slot_rows, gradient, learning_rate, ids)
    for target, value in zip(targets, values, strict=True):
        scatter_update(target, ids, value)


def row_step(
    rule: RowRule,
    weights: Any,
    slots: Sequence[Any],
    gradient: tf.Tensor,
    learning_rate: Any,
    ids: tf.Tensor | None = None,
) -> list[tf.Tensor]:
    """Returns rows and their slots after a step, in their dtypes, without changing variables.

    Args:
        rule: The update of a row.
        weights: The rows, `[n, ...]`: tensor or variable.
        slots: Their slots, likewise.
        gradient: `[n, ...]`, of the compute dtype.
        learning_rate: eta, a scalar.
        ids: The numbers of the rows, `[n]` int64. Default None: 0 to n - 1.
    """
    values = [tf.convert_to_tensor(bare_variable(value)) for value in (weights, *slots)]
    eta = tf.cast(learning_rate, gradient.dtype)
    old_weights, *old_slots = (
        value if value.dtype == tf.uint32 else tf.cast(value, gradient.dtype) for value in values
    )
    w = old_weights
    if rule.rounding == "compensated":
        w += old_slots.pop()
    if rule.unit_rows:
        gradient = tangent(w, gradient)
    if rule.weight_decay != 0:
        w *= 1 - eta * tf.cast(rule.weight_decay, gradient.dtype)
    if rule.row_clip_norm is not None:
        gradient = _clipped(gradient, rule.row_clip_norm)
    method = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}[rule.method]
    change, *new_slots = method(rule, gradient, eta, *old_slots)
    w += change
    bits = _random_bits(rule, w, ids) if rule.is_random else {}
    if rule.unit_rows:
        if "weights" in bits and values[0].dtype == tf.bfloat16:  # the custom op stores rows first
            w = tf.cast(rounded_at_random(w, bits["weights"]), w.dtype)
            bits["weights"] = bits["unit_rows"]
        w = at_norm_1(w, values[0].dtype)
    if rule.rounding == "compensated":
        new_slots.append(_error(w))
    names = ("weights", *rule.slots)
    return [
        rounded_at_random(tf.cast(new, tf.float32), bits[name])
        if name in bits and old.dtype == tf.bfloat16
        else tf.cast(new, old.dtype)
        for name, new, old in zip(names, (w, *new_slots), values, strict=True)
    ]


def _error(weights: tf.Tensor) -> tf.Tensor:
    """Returns the bfloat16 rounding error of weights; 0 if bfloat16 overflows."""
    error = weights - tf.cast(tf.cast(weights, tf.bfloat16), weights.dtype)
    return tf.where(tf.math.is_finite(error), error, tf.zeros_like(error))


def _random_bits(rule: RowRule, weights: tf.Tensor, ids: tf.Tensor | None) -> dict[str, tf.Tensor]:
    """Returns random bits of the shape of rows, by the slot that is rounded."""
    shape = tf.shape(weights)
    if ids is None:
        ids = tf.range(shape[0] if weights.shape.rank else 1)
    keys, bits = rule.random_bits.keys(ids), {}
    width = tf.reduce_prod(shape[1:])
    if rule.rounding == "stochastic":
        bits["weights"] = bits_of_weights(keys, width)
        if rule.unit_rows:
            bits["unit_rows"] = bits_of_weights(keys, width, again=True)
    if rule.moment_dtype == "bfloat16":
        bits["m"], bits["v"] = bits_of_moments(keys, width)
        bits["momentum"] = bits["m"]
    return {name: tf.reshape(each, shape) for name, each in bits.items()}


# Each returns the change of w, and the new slots.


def _sgd(
    rule: RowRule, gradient: tf.Tensor, eta: tf.Tensor, *slots: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    momentum, nesterov = rule.hyperparameters
    if not slots:
        return (-eta * gradient,)
    m = momentum * slots[0] - eta * gradient
    return (momentum * m - eta * gradient if nesterov else m), m


def _adagrad(
    rule: RowRule, gradient: tf.Tensor, eta: tf.Tensor, accumulator: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    epsilon = tf.cast(rule.hyperparameters[0], gradient.dtype)
    accumulator += _squares(rule, gradient)
    root = tf.sqrt(accumulator + epsilon)
    return -eta * gradient / _for_rows(root, gradient), accumulator


def _adam(
    rule: RowRule,
    gradient: tf.Tensor,
    eta: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    age: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    beta_1, beta_2, epsilon = rule.hyperparameters
    age = tf.minimum(age, tf.constant(tf.int32.max - 1, age.dtype)) + 1  # never exceeds the limit
    t = tf.cast(age, tf.float64)  # 1 - 0.999 has few digits in float32
    correction = tf.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    rate = eta * tf.cast(correction, gradient.dtype)
    m = beta_1 * m + (1 - beta_1) * gradient
    v = beta_2 * v + (1 - beta_2) * _squares(rule, gradient)
    return -_for_rows(rate, m) * m / _for_rows(tf.sqrt(v) + epsilon, m), m, v, age


def _squares(rule: RowRule, gradient: tf.Tensor) -> tf.Tensor:
    """Returns g^2, or `[n]` its mean over each row."""
    squares = tf.square(gradient)
    if not rule.row_wise:
        return squares
    columns = tf.cast(tf.maximum(tf.reduce_prod(tf.shape(gradient)[1:]), 1), squares.dtype)
    return tf.reduce_sum(squares, axis=list(range(1, gradient.shape.rank))) / columns


def _for_rows(numbers: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
    """Reshapes numbers, `[n]` or of the shape of rows `[n, ...]`, to multiply rows."""
    ones = tf.ones([tf.rank(rows) - tf.rank(numbers)], tf.int32)
    return tf.reshape(numbers, tf.concat([tf.shape(numbers), ones], axis=0))


def _clipped(gradient: tf.Tensor, row_clip_norm: float) -> tf.Tensor:
    axes = list(range(1, gradient.shape.rank))
    squares = tf.reduce_sum(gradient**2, axis=axes, keepdims=True) if axes else gradient**2
    limit = tf.cast(row_clip_norm, gradient.dtype)
    return gradient * (limit / tf.maximum(tf.sqrt(squares), limit))


def _check_unique(ids: tf.Tensor) -> Check:
    ordered = tf.sort(ids)
    repeats = ordered[1:] == ordered[:-1]

    def message() -> list[Any]:
        again = tf.boolean_mask(ordered[1:], repeats)
        return ["ids must not repeat a row; got repeats of", tf.unique(again).y]

    return Check(~tf.reduce_any(repeats), message)
