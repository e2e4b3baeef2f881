# SPDX-License-Identifier: Apache-2.0
"""Steps on some rows of a variable, in TensorFlow's own ops alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.ops.checks import (
    check_finite,
    check_ids,
    check_learning_rate,
    check_shape,
)
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather, scatter_update
from tfx_largeout.run_time_checks import Check, after


def row_update_composed(
    variable: tf.Variable,
    slots: Sequence[tf.Variable],
    ids: tf.Tensor,
    gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: tf.Tensor,
) -> None:
    """Same results as the custom op of `row_update`.

    Cost: O(n D).

    Arguments, result and errors: those of `row_update`.
    """
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


def step_on_rows(
    variable: tf.Variable,
    slots: Sequence[tf.Variable],
    ids: tf.Tensor,
    gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: tf.Tensor,
) -> None:
    """As `row_update_composed`, of arguments that are in order."""
    targets = [variable, *slots]
    rows, *slot_rows = [gather(target, ids) for target in targets]
    values = row_step(rule, rows, slot_rows, gradient, learning_rate)
    for target, value in zip(targets, values, strict=True):
        scatter_update(target, ids, value)


def row_step(
    rule: RowRule,
    weights: Any,
    slots: Sequence[Any],
    gradient: tf.Tensor,
    learning_rate: Any,
) -> list[tf.Tensor]:
    """Returns what rows and their slots are after a step. Nothing is changed.

    Cost: O(n D).

    Args:
        rule: What to do.
        weights: The rows, `[n, ...]`: tensor or variable.
        slots: Their slots, likewise.
        gradient: `[n, ...]`, of the dtype to compute in.
        learning_rate: eta, a scalar.

    Returns:
        The new rows, and the new slots, in the dtypes of the old ones.
    """
    values = [tf.convert_to_tensor(bare_variable(value)) for value in (weights, *slots)]
    eta = tf.cast(learning_rate, gradient.dtype)
    w = tf.cast(values[0], gradient.dtype)
    if rule.weight_decay != 0:
        w *= 1 - eta * tf.cast(rule.weight_decay, gradient.dtype)
    if rule.row_clip_norm is not None:
        gradient = _clipped(gradient, rule.row_clip_norm)
    method = {"sgd": _sgd, "adagrad": _adagrad, "adam": _adam}[rule.method]
    change, *new_slots = method(rule, gradient, eta, *values[1:])
    return [tf.cast(w + change, values[0].dtype), *new_slots]


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
    accumulator += gradient**2
    return -eta * gradient / tf.sqrt(accumulator + epsilon), accumulator


def _adam(
    rule: RowRule,
    gradient: tf.Tensor,
    eta: tf.Tensor,
    m: tf.Tensor,
    v: tf.Tensor,
    age: tf.Tensor,
) -> tuple[tf.Tensor, ...]:
    beta_1, beta_2, epsilon = rule.hyperparameters
    age = tf.minimum(age, tf.constant(tf.int32.max - 1, age.dtype)) + 1  # stays at the end
    t = tf.cast(age, tf.float64)  # 1 - 0.999 has few digits in float32
    correction = tf.sqrt(1 - beta_2**t) / (1 - beta_1**t)
    rate = eta * tf.cast(correction, gradient.dtype)
    rate = tf.reshape(rate, tf.concat([tf.shape(age), tf.ones_like(tf.shape(m)[1:])], axis=0))
    m = beta_1 * m + (1 - beta_1) * gradient
    v = beta_2 * v + (1 - beta_2) * gradient**2
    return -rate * m / (tf.sqrt(v) + epsilon), m, v, age


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
