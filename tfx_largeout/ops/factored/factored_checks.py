# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of the factored ops, before anything changes."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.checks import after, check_finite
from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.exact.ranks_from_logits import check_labels
from tfx_largeout.ops.factored.factored_slot_checks import check_slots, check_slots_of_rows
from tfx_largeout.ops.factored.factored_state import FactoredState


def input_checks(
    state: FactoredState, hidden: tf.Tensor, labels: tf.Tensor, shard: ClassShard
) -> list[tf.Operation | None]:
    """Returns checks of what all ops get; refuses static shapes that can't fit."""
    require_rank("hidden", hidden, 2)
    require_rank("labels", labels, 2)
    width = tf.debugging.assert_equal(
        tf.shape(hidden)[1],
        state.width,
        message=f"hidden must be [B, D] with the D of the state, which is {state.width}",
    )
    batch = tf.debugging.assert_equal(
        tf.shape(labels)[0],
        tf.shape(hidden)[0],
        message="labels must be [B, K] with the B of hidden",
    )
    checks = [width, batch, check_finite("hidden", hidden)]
    return checks + label_checks(state, labels, shard)


def label_checks(
    state: FactoredState, labels: tf.Tensor, shard: ClassShard
) -> list[tf.Operation | None]:
    """Returns checks of the labels."""
    checks = [shard.check(state.num_classes), check_labels(labels, shard.num_classes)]
    checks += check_slots(state)
    with after(checks):
        rows = shard.row_of(labels, state.num_classes)
        ids = tf.boolean_mask(rows, rows >= 0)
    return checks + check_slots_of_rows(state, ids)


def check_shape(
    name: str, values: tf.Tensor, like: tf.Tensor, name_of_like: str
) -> tf.Operation | None:
    """Returns a check that a tensor has the shape of another."""
    message = f"{name} must have the shape of {name_of_like}"
    if values.shape.rank not in (None, like.shape.rank):
        raise ValueError(f"{message}, {like.shape}; got {values.shape}")
    return tf.debugging.assert_equal(tf.shape(values), tf.shape(like), message=message)


def require_rank(name: str, tensor: tf.Tensor, rank: int) -> None:
    """Refuses a tensor of another static rank."""
    if tensor.shape.rank not in (None, rank):
        raise ValueError(f"{name} must have rank {rank}; got shape {tensor.shape}")


def rate_checks(learning_rate: tf.Tensor, weight_decay: tf.Tensor) -> list[tf.Operation | None]:
    """Returns checks of the learning rate."""
    scalars = [
        check_shape("learning_rate", learning_rate, tf.constant(0), "a scalar"),
        check_shape("weight_decay", weight_decay, tf.constant(0), "a scalar"),
    ]
    positive = tf.debugging.Assert(
        tf.math.is_finite(learning_rate) & (learning_rate >= 0),
        ["learning_rate must be at least 0 and finite; got", learning_rate],
    )
    decay = tf.debugging.Assert(
        (weight_decay >= 0) & (learning_rate * weight_decay < 1),
        [
            "weight_decay must be at least 0, and less than 1 / learning_rate; got weight_decay",
            weight_decay,
            "and learning_rate",
            learning_rate,
        ],
    )
    return [*scalars, positive, decay]
