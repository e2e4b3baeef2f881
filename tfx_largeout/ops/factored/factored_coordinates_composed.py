# SPDX-License-Identifier: Apache-2.0
"""Lazy re-anchoring: each row of V is converted to the current coordinates when needed.

W = V U is exact even if U gets ill-conditioned, but not in float32. `reanchor` resets U to I,
without the product V U over all rows: it stores U in a transition, and each row has the number of
the transition that it still needs. See docs/papers/exact_gradient.md. States consist of TensorFlow
variables; ids are `[n]` int64 and in range.
"""

from __future__ import annotations

from collections.abc import Callable

import tensorflow as tf

from tfx_largeout.ops.factored.factored_checks import count_slots
from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState
from tfx_largeout.ops.rows.variable_rows import (
    fold_blocks,
    gather,
    ids_between,
    scatter_update,
)

_BLOCK_ELEMENTS = 2**21  # size of a copied block of V: 8 MiB in float32


def current_rows(state: FactoredState, ids: tf.Tensor) -> tf.Tensor:
    """Returns V[id] T[slot of id], `[n, D]`: rows in the current coordinates. Changes nothing.

    Cost: O(n D), and O(D^2) per row that is stale.
    """
    rows, slots = gather(state.v, ids), _slots(state, ids)
    current = state.current_slot.read_value()
    return tf.cond(
        tf.reduce_any(tf.not_equal(slots, current)),
        lambda: _to_current(state, rows, slots),
        lambda: rows,
    )


def catch_up(state: FactoredState, ids: tf.Tensor, by_slot: tf.Tensor | None = None) -> None:
    """Writes the stale rows among distinct `ids` back in current coordinates.

    Cost: O(n), and O(D^2) per stale row. `by_slot`: the number of rows of each slot, `[8]` int64,
    that all workers convert; None: only these rows.
    """
    if by_slot is None:
        by_slot = rows_by_slot(state, ids)
    _move_stale(state, ids)
    current = tf.one_hot(state.current_slot.read_value(), NUM_SLOTS, dtype=tf.int64)
    state.slot_rows.assign_add(tf.reduce_sum(by_slot) * current - by_slot)


def rows_by_slot(state: FactoredState, ids: tf.Tensor) -> tf.Tensor:
    """Returns the number of given rows in each slot, `[8]` int64."""
    return count_slots(_slots(state, ids))


def settle(state: FactoredState, num_classes: int) -> None:
    """Converts every row, of the C on all workers. W doesn't change.

    Cost: O(1) if no row of any worker is stale, else O(C), and O(D^2) per stale row; memory for a
    block of rows.
    """
    current = state.current_slot.read_value()

    def move_all() -> None:
        for_each_block(state, lambda ids: _move_stale(state, ids))
        state.slot_rows.assign(num_classes * tf.one_hot(current, NUM_SLOTS, dtype=tf.int64))

    run_if(state.slot_rows.read_value()[current] < num_classes, move_all)


def reanchor(state: FactoredState, u: tf.Tensor) -> None:
    """Resets U = P = I; W is then the previous W with `u` instead of U.

    T[e] <- T[e] u for every slot e, and an empty slot becomes the current one, with T = I. If none
    is empty, the slot with the fewest rows is emptied: its rows are multiplied by their T.

    Cost: O(8 D^3); O(C) and O(D^2) per row of that slot, if there is no empty one. `u` `[D, D]` is
    U or its replacement, and need not be invertible.
    """
    transitions = tf.matmul(state.transitions.read_value(), u)
    counts = state.slot_rows.read_value()
    slot = tf.argmin(tf.cast(counts, tf.float64))  # which has a kernel on every device
    transition = transitions[slot]

    def move(ids: tf.Tensor) -> None:
        ids = tf.boolean_mask(ids, tf.equal(_slots(state, ids), slot))
        scatter_update(state.v, ids, tf.matmul(gather(state.v, ids), transition))

    run_if(counts[slot] > 0, lambda: for_each_block(state, move))
    unit = tf.eye(state.width, dtype=state.dtype)
    is_new = tf.equal(tf.range(NUM_SLOTS, dtype=tf.int64), slot)[:, tf.newaxis, tf.newaxis]
    state.transitions.assign(tf.where(is_new, unit, transitions))
    state.current_slot.assign(slot)
    state.u.assign(unit)
    state.u_inverse_transpose.assign(unit)


def _slots(state: FactoredState, ids: tf.Tensor) -> tf.Tensor:
    return tf.cast(gather(state.row_slot, ids), tf.int64)


def _to_current(state: FactoredState, rows: tf.Tensor, slots: tf.Tensor) -> tf.Tensor:
    transitions = state.transitions.read_value()
    slots = tf.minimum(slots, NUM_SLOTS - 1)  # a row for padding may be in no valid slot
    slots = tf.cast(slots, tf.int32)
    parts = tf.dynamic_partition(rows, slots, NUM_SLOTS)
    places = tf.dynamic_partition(tf.range(tf.shape(rows)[0]), slots, NUM_SLOTS)
    moved = [tf.matmul(part, transitions[slot]) for slot, part in enumerate(parts)]
    return tf.ensure_shape(tf.dynamic_stitch(places, moved), rows.shape)


def _move_stale(state: FactoredState, ids: tf.Tensor) -> None:
    """Converts rows to the current coordinates, without changing `slot_rows`."""
    current = state.current_slot.read_value()
    stale = tf.not_equal(_slots(state, ids), current)

    def move() -> None:
        there = tf.boolean_mask(ids, stale)
        moved = _to_current(state, gather(state.v, there), _slots(state, there))
        scatter_update(state.v, there, moved)
        slots = tf.fill(tf.shape(there), current)
        scatter_update(state.row_slot, there, tf.cast(slots, tf.uint8))

    run_if(tf.reduce_any(stale), move)


def for_each_block(state: FactoredState, visit: Callable[[tf.Tensor], None]) -> None:
    """Calls `visit(ids)` for each block of rows of V."""

    def of_block(start: tf.Tensor, end: tf.Tensor, nothing: tuple[()]) -> tuple[()]:
        visit(ids_between(start, end))
        return nothing

    fold_blocks(state.num_classes, max(_BLOCK_ELEMENTS // state.width, 1), of_block)


def run_if(
    condition: tf.Tensor, action: Callable[[], None], otherwise: Callable[[], None] = lambda: None
) -> None:
    """Runs one of two functions that change variables, by a condition."""

    def run(changes: Callable[[], None]) -> tf.Tensor:
        changes()
        return tf.constant(0)

    tf.cond(condition, lambda: run(action), lambda: run(otherwise))
