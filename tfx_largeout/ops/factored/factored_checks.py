# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of the factored ops, before anything changes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.checks import check_equal_shape, check_finite
from tfx_largeout.ops.exact.ranks_from_logits import check_labels
from tfx_largeout.ops.factored.factored_slot_checks import check_slots, check_slots_of_rows
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.run_time_checks import Check


def input_checks(state: FactoredState, hidden: tf.Tensor, labels: tf.Tensor) -> list[Check | None]:
    """Returns checks of what all ops get; refuses static shapes that can't fit."""
    _require_rank("hidden", hidden)
    _require_rank("labels", labels)
    width, batch = tf.shape(hidden)[1], tf.shape(hidden)[0]
    rule = f"hidden must be [B, D] with the D of the state, which is {state.width}"
    rows = tf.where(labels < state.num_classes, labels, -1)
    return [
        _check_equal(rule, width, state.width),
        _check_equal("labels must be [B, K] with the B of hidden", tf.shape(labels)[0], batch),
        check_finite("hidden", hidden),
        check_labels(labels, state.num_classes),
        *check_slots(state),
        *check_slots_of_rows(state, tf.reshape(rows, [-1])),
    ]


def check_shape(name: str, values: tf.Tensor, like: tf.Tensor, name_of_like: str) -> Check | None:
    """Returns a check that a tensor has the shape of another; None if that is known already."""
    message = f"{name} must have the shape of {name_of_like}"
    if values.shape.rank not in (None, like.shape.rank):
        raise ValueError(f"{message}, {like.shape}; got {values.shape}")
    return check_equal_shape(f"{message}:", values, tf.shape(like))


def _require_rank(name: str, tensor: tf.Tensor) -> None:
    if tensor.shape.rank not in (None, 2):
        raise ValueError(f"{name} must have rank 2; got shape {tensor.shape}")


def rate_checks(learning_rate: tf.Tensor, weight_decay: tf.Tensor) -> list[Check | None]:
    """Returns checks of the learning rate."""
    scalars = [
        check_shape("learning_rate", learning_rate, tf.constant(0), "a scalar"),
        check_shape("weight_decay", weight_decay, tf.constant(0), "a scalar"),
    ]
    positive = Check(
        tf.math.is_finite(learning_rate) & (learning_rate >= 0),
        lambda: ["learning_rate must be at least 0 and finite; got", learning_rate],
    )
    decay = Check(
        (weight_decay >= 0) & (learning_rate * weight_decay < 1),
        lambda: [
            "weight_decay must be at least 0, and less than 1 / learning_rate; got weight_decay",
            weight_decay,
            "and learning_rate",
            learning_rate,
        ],
    )
    return [*scalars, positive, decay]


def divergence_check(largest: tf.Tensor, learning_rate: tf.Tensor, decay: tf.Tensor) -> Check:
    """Returns a check that a step does not diverge.

    Args:
        largest: The largest eigenvalue of H^T G H.
        learning_rate: Scalar, eta.
        decay: Scalar, the share of W that goes.
    """
    product = 2 * learning_rate * largest
    return Check(
        tf.math.is_finite(product) & (product <= 2 - decay),
        lambda: [
            "learning_rate eta must be such that 2 eta lambda_max is at most 2 - eta decay, or the "
            "step diverges, in a naive layer as well; got eta",
            learning_rate,
            "eta decay",
            decay,
            "and lambda_max",
            largest,
            "of H^T diag(dL/dq) H: lower the learning rate",
        ],
    )


def _check_equal(rule: str, got: tf.Tensor, want: Any) -> Check:
    return Check(tf.equal(got, want), lambda: [f"{rule}:", want, "; got", got])
