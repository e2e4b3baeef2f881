# SPDX-License-Identifier: Apache-2.0
"""Checks of the slots of a factored state when the graph runs, as the custom ops make them."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.checks import check_each
from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState
from tfx_largeout.ops.rows.variable_rows import gather
from tfx_largeout.run_time_checks import Check


def check_slots(state: FactoredState) -> list[Check]:
    """Returns checks of `current_slot` and `slot_rows` that need no look at all rows."""
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
    """Returns checks that some rows are in slots that are there.

    Cost: O(n).

    Args:
        state: A state of TensorFlow's variables.
        ids: `[n]` int64, in range; below 0: none.
    """
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
    """Returns how often each of the slots `[n]` comes up, `[8]` int64."""
    # Counted in int32, as GPUs do.
    counts = tf.math.bincount(tf.cast(slots, tf.int32), minlength=NUM_SLOTS, maxlength=NUM_SLOTS)
    return tf.cast(tf.ensure_shape(counts, [NUM_SLOTS]), tf.int64)  # graphs lose the shape


def check_all_rows(state: FactoredState) -> list[Check]:
    """Returns checks that all rows are in slots that are there, and that these are counted.

    Cost: O(C).

    Args:
        state: A state of TensorFlow's variables.
    """
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
