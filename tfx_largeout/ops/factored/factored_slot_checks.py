# SPDX-License-Identifier: Apache-2.0
"""Checks of the slots of a factored state when the graph runs, as the custom ops make them."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState
from tfx_largeout.ops.rows.variable_rows import gather


def check_slots(state: FactoredState) -> list[tf.Operation | None]:
    """Asserts what can be said of `current_slot` and `slot_rows` without a look at all rows."""
    current, counts = state.current_slot.read_value(), state.slot_rows.read_value()
    wrong = (counts < 0) | (counts > state.num_classes)
    total = tf.reduce_sum(counts)
    return [
        tf.debugging.Assert(
            (current >= 0) & (current < NUM_SLOTS),
            [f"current_slot must be in [0, {NUM_SLOTS}); got", current],
        ),
        tf.debugging.Assert(
            ~tf.reduce_any(wrong),
            [
                f"slot_rows must be in [0, C] = [0, {state.num_classes}]; got",
                tf.boolean_mask(counts, wrong)[:1],
                "at position",
                tf.where(wrong)[:1],
            ],
        ),
        tf.debugging.Assert(
            tf.equal(total, state.num_classes),
            [f"slot_rows must have the sum C = {state.num_classes}; got", total],
        ),
    ]


def check_slots_of_rows(state: FactoredState, ids: tf.Tensor) -> list[tf.Operation | None]:
    """Asserts that some rows are in slots that are there.

    Cost: O(n).

    Args:
        state: A state of TensorFlow's variables.
        ids: `[n]` int64, in range.
    """
    slots = tf.cast(gather(state.row_slot, ids), tf.int32)
    counts = tf.gather(state.slot_rows.read_value(), tf.minimum(slots, NUM_SLOTS - 1))
    is_empty = counts == 0
    return [
        _check_in_range(slots, ids),
        tf.debugging.Assert(
            ~tf.reduce_any(is_empty),
            [
                "slot_rows must be how many rows are in each slot; got 0 at position",
                tf.boolean_mask(slots, is_empty)[:1],
                ", where row_slot has class",
                tf.boolean_mask(ids, is_empty)[:1],
            ],
        ),
    ]


def check_all_rows(state: FactoredState) -> list[tf.Operation | None]:
    """Asserts that all rows are in slots that are there, and that these are counted.

    Cost: O(C).

    Args:
        state: A state of TensorFlow's variables.
    """
    slots = tf.cast(state.row_slot.read_value(), tf.int32)
    rows = tf.math.bincount(slots, minlength=NUM_SLOTS, maxlength=NUM_SLOTS, dtype=tf.int64)
    rows = tf.ensure_shape(rows, [NUM_SLOTS])  # graphs lose it
    counts = state.slot_rows.read_value()
    wrong = rows != counts
    return [
        *check_slots(state),
        _check_in_range(slots, tf.range(state.num_classes)),
        tf.debugging.Assert(
            ~tf.reduce_any(wrong),
            [
                "slot_rows must be how many rows are in each slot; got",
                tf.boolean_mask(counts, wrong)[:1],
                "at position",
                tf.where(wrong)[:1],
                ", where row_slot has",
                tf.boolean_mask(rows, wrong)[:1],
            ],
        ),
    ]


def _check_in_range(slots: tf.Tensor, ids: tf.Tensor) -> tf.Operation | None:
    wrong = slots >= NUM_SLOTS
    return tf.debugging.Assert(
        ~tf.reduce_any(wrong),
        [
            f"row_slot must be in [0, {NUM_SLOTS}); got",
            tf.boolean_mask(slots, wrong)[:1],
            "at position",
            tf.boolean_mask(ids, wrong)[:1],
        ],
    )
