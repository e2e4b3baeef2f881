# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of the factored ops, before anything changes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.checks import check_equal_shape, check_finite
from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.exact.ranks_from_logits import check_labels
from tfx_largeout.ops.factored.factored_slot_checks import check_slots, check_slots_of_rows
from tfx_largeout.ops.factored.factored_state import FactoredState
from tfx_largeout.run_time_checks import Check


def input_checks(
    state: FactoredState, hidden: tf.Tensor, labels: tf.Tensor, shard: ClassShard
) -> list[Check | None]:
    """Returns checks of what all ops get; refuses static shapes that can't fit."""
    require_rank("hidden", hidden, 2)
    require_rank("labels", labels, 2)
    width, batch = tf.shape(hidden)[1], tf.shape(hidden)[0]
    rule = f"hidden must be [B, D] with the D of the state, which is {state.width}"
    checks = [
        _check_equal(rule, width, state.width),
        _check_equal("labels must be [B, K] with the B of hidden", tf.shape(labels)[0], batch),
        check_finite("hidden", hidden),
    ]
    return checks + label_checks(state, labels, shard)


def label_checks(state: FactoredState, labels: tf.Tensor, shard: ClassShard) -> list[Check | None]:
    """Returns checks of the labels."""
    rows = tf.reshape(shard.row_of(labels, state.num_classes), [-1])
    return [
        shard.check(state.num_classes),
        check_labels(labels, shard.num_classes),
        *check_slots(state),
        *check_slots_of_rows(state, rows),
    ]


def check_shape(name: str, values: tf.Tensor, like: tf.Tensor, name_of_like: str) -> Check | None:
    """Returns a check that a tensor has the shape of another; None if that is known already."""
    message = f"{name} must have the shape of {name_of_like}"
    if values.shape.rank not in (None, like.shape.rank):
        raise ValueError(f"{message}, {like.shape}; got {values.shape}")
    return check_equal_shape(f"{message}:", values, tf.shape(like))


def require_rank(name: str, tensor: tf.Tensor, rank: int) -> None:
    """Refuses a tensor of another static rank."""
    if tensor.shape.rank not in (None, rank):
        raise ValueError(f"{name} must have rank {rank}; got shape {tensor.shape}")


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


def _check_equal(rule: str, got: tf.Tensor, want: Any) -> Check:
    return Check(tf.equal(got, want), lambda: [f"{rule}:", want, "; got", got])
