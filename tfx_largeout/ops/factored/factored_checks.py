# SPDX-License-Identifier: Apache-2.0
"""Checks of the arguments of the factored ops, before anything changes."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.checks import (
    check_each,
    check_equal,
    check_finite,
    check_shape,
    require_shape,
)
from tfx_largeout.ops.exact.ranks_from_logits import check_labels
from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState
from tfx_largeout.ops.rows.variable_rows import gather
from tfx_largeout.run_time_checks import Check


def input_checks(state: FactoredState, hidden: tf.Tensor, labels: tf.Tensor) -> list[Check | None]:
    """Returns checks of the arguments of all ops; raises for static shapes that can't fit."""
    require_shape("hidden", "[B, D]", hidden, [None, None])
    require_shape("labels", "[B, K]", labels, [None, None])
    width, batch = tf.shape(hidden)[1], tf.shape(hidden)[0]
    rule = f"hidden must be [B, D] with the D of the state, which is {state.width}"
    rows = tf.where(labels < state.num_classes, labels, -1)
    return [
        check_equal(rule, width, state.width),
        check_equal("labels must be [B, K] with the B of hidden", tf.shape(labels)[0], batch),
        check_finite("hidden", hidden),
        check_labels(labels, state.num_classes),
        *check_slots(state),
        *check_slots_of_rows(state, tf.reshape(rows, [-1])),
    ]


def rate_checks(learning_rate: tf.Tensor, weight_decay: tf.Tensor) -> list[Check | None]:
    """Returns checks of the learning rate."""
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
    rates = {"learning_rate": learning_rate, "weight_decay": weight_decay}
    for name, rate in rates.items():
        require_shape(name, "a scalar", rate, [])
    scalars = [check_shape(name, "a scalar", rate, []) for name, rate in rates.items()]
    return [*scalars, positive, decay]


def divergence_check(largest: tf.Tensor, learning_rate: tf.Tensor, decay: tf.Tensor) -> Check:
    """Returns a check that a step does not diverge: `largest` is lambda_max of H^T G H."""
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


def check_slots(state: FactoredState) -> list[Check]:
    """Returns checks of `current_slot` and `slot_rows` that don't read all rows."""
    current, counts = state.current_slot.read_value(), state.slot_rows.read_value()
    wrong = (counts < 0) | (counts > state.num_classes)
    total = tf.reduce_sum(counts)
    return [
        Check(
            (current >= 0) & (current < NUM_SLOTS),
            lambda: [f"current_slot must be in [0, {NUM_SLOTS}); got", current],
        ),
        check_each(f"slot_rows must be in [0, C] = [0, {state.num_classes}]; got", counts, wrong),
        Check(
            tf.equal(total, state.num_classes),
            lambda: [f"slot_rows must have the sum C = {state.num_classes}; got", total],
        ),
    ]


def check_slots_of_rows(state: FactoredState, ids: tf.Tensor) -> list[Check]:
    """Returns checks that the rows `ids` (below 0: none) are in valid slots. O(n)."""
    slots = tf.cast(gather(state.row_slot, tf.maximum(ids, 0)), tf.int64)
    counts = tf.gather(state.slot_rows.read_value(), tf.minimum(slots, NUM_SLOTS - 1))
    is_empty = (ids >= 0) & (counts == 0)
    return [
        _check_in_range(slots, ids),
        Check(
            ~tf.reduce_any(is_empty),
            lambda: [
                "slot_rows must be how many rows are in each slot; got 0 at position",
                tf.boolean_mask(slots, is_empty)[:1],
                ", where row_slot has class",
                tf.boolean_mask(ids, is_empty)[:1],
            ],
        ),
    ]


def count_slots(slots: tf.Tensor) -> tf.Tensor:
    """Returns how often each slot occurs in `[n]`, `[8]` int64."""
    # Counted in int32, as GPUs do.
    counts = tf.math.bincount(tf.cast(slots, tf.int32), minlength=NUM_SLOTS, maxlength=NUM_SLOTS)
    return tf.cast(tf.ensure_shape(counts, [NUM_SLOTS]), tf.int64)  # graphs lose the shape


def check_all_rows(state: FactoredState) -> list[Check]:
    """Returns checks that all rows are in valid slots, and that counts are correct. O(C)."""
    slots = state.row_slot.read_value()
    rows = count_slots(slots)
    counts = state.slot_rows.read_value()
    wrong = rows != counts
    return [
        *check_slots(state),
        _check_in_range(slots, tf.range(state.num_classes)),
        Check(
            ~tf.reduce_any(wrong),
            lambda: [
                "slot_rows must be how many rows are in each slot; got",
                tf.boolean_mask(counts, wrong)[:1],
                "at position",
                tf.where(wrong)[:1],
                ", where row_slot has",
                tf.boolean_mask(rows, wrong)[:1],
            ],
        ),
    ]


def _check_in_range(slots: tf.Tensor, ids: tf.Tensor) -> Check:
    wrong = (ids >= 0) & (slots >= NUM_SLOTS)
    return Check(
        ~tf.reduce_any(wrong),
        lambda: [
            f"row_slot must be in [0, {NUM_SLOTS}); got",
            tf.boolean_mask(tf.cast(slots, tf.int64), wrong)[:1],
            "at position",
            tf.boolean_mask(ids, wrong)[:1],
        ],
    )
