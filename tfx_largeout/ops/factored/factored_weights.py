# SPDX-License-Identifier: Apache-2.0
"""W of a factored state: logits, rows, moments, and the drift of Q and U^-T.

Functions of rows work in blocks; some need a settled state, as documented.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.factored.factored_state import (
    NUM_SLOTS,
    FactoredState,
    all_in_first_slot,
    unit_transitions,
)
from tfx_largeout.ops.rows.variable_rows import gather

_BLOCK_ELEMENTS = 2**21
_NUM_PROBES = 8


class Drift(NamedTuple):
    """The relative errors of derived matrices, by random probes.

    Attributes:
        gram: The relative distance of Q from W^T W.
        inverse: The relative distance of U^-T from the inverse of U.
    """

    gram: float
    inverse: float


def factored_logits(state: FactoredState, hidden: tf.Tensor) -> tf.Tensor:
    """Returns all logits `[B, C]`, also of rows that are not in the current coordinates.

    Cost: O(B C D); O(8 B D^2) for the slots. Nothing is changed. H `[B, D]` has the state's dtype.
    """
    state = state.variables
    u_hidden = tf.matmul(hidden, state.u.read_value(), transpose_b=True)
    shift = tf.linalg.matvec(hidden, state.shift.read_value())[:, tf.newaxis]
    settled = tf.equal(
        state.slot_rows.read_value()[state.current_slot.read_value()], state.num_classes
    )
    logits = tf.cond(
        settled,
        lambda: tf.matmul(u_hidden, state.v.read_value(), transpose_b=True),
        lambda: _logits_by_slot(state, u_hidden),
    )
    return tf.ensure_shape(logits, [hidden.shape[0], state.num_classes]) + shift


def _logits_by_slot(state: FactoredState, u_hidden: tf.Tensor) -> tf.Tensor:
    slots = tf.cast(state.row_slot.read_value(), tf.int32)
    ids = tf.dynamic_partition(tf.range(state.num_classes), slots, NUM_SLOTS)
    transitions = state.transitions.read_value()
    parts = []
    for slot, rows in enumerate(ids):
        own = tf.matmul(transitions[slot], u_hidden, transpose_b=True)
        parts.append(tf.matmul(gather(state.v, rows), own))
    return tf.transpose(tf.dynamic_stitch(ids, parts))


def dense_weights(state: FactoredState, width: int) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns W `[C, D]` and b `[C]` of a settled state; b is None without a column for it.

    Cost: O(C D^2); memory for the result and a block of rows. `width` is the D of the hidden
    activations; the column after it is b.
    """
    state = state.variables
    dtype = state.dtype.as_numpy_dtype
    kernel = np.empty((state.num_classes, width), dtype)
    bias = np.empty(state.num_classes, dtype) if state.width > width else None
    u, shift = state.u.read_value(), state.shift.read_value()
    for start, block in _blocks(state.v):
        rows = (tf.matmul(block, u) + shift).numpy()
        kernel[start : start + len(rows)] = rows[:, :width]
        if bias is not None:
            bias[start : start + len(rows)] = rows[:, width]
    return kernel, bias


def start_from_rows(state: FactoredState, rows: np.ndarray, num_classes: int) -> None:
    """Sets V to its rows of W, with their biases, and U to I. Q, c and U^-T are not changed.

    `num_classes` is C over all shards.
    """
    state = state.variables
    unit = np.eye(state.width)
    state.v.assign(rows)
    state.u.assign(unit)
    state.shift.assign(np.zeros(state.width))
    state.transitions.assign(unit_transitions(state.transitions.shape, state.dtype))
    state.row_slot.assign(np.zeros(state.num_classes, np.uint8))
    state.slot_rows.assign(all_in_first_slot(num_classes))
    state.current_slot.assign(0)


def start_last_rows(state: FactoredState, first: int) -> None:
    """Sets rows of V to rows of W from `first` on; recomputes `slot_rows`, Q and c in float64.

    Other rows stay in their slots; their bits and the bits of U and w don't change.

    Cost: O(C D^2); memory for V and a block of rows.
    """
    state = state.variables
    v, slots = state.v.numpy(), state.row_slot.numpy()
    u, w = (x.numpy().astype(np.float64) for x in (state.u, state.shift))
    v[first:] = np.linalg.solve(u.T, (v[first:] - w).T).T
    slots[first:] = state.current_slot.numpy()
    to_rows = state.transitions.numpy().astype(np.float64) @ u
    gram, row_sum = np.zeros_like(u), np.zeros_like(w)
    block = max(_BLOCK_ELEMENTS // state.width, 1)
    for start in range(0, state.num_classes, block):
        own, of = v[start : start + block], slots[start : start + block]
        for slot in np.unique(of):
            rows = own[of == slot] @ to_rows[slot] + w
            gram += rows.T @ rows
            row_sum += rows.sum(axis=0)
    state.v.assign(v)
    state.row_slot.assign(slots)
    state.slot_rows.assign(np.bincount(slots, minlength=NUM_SLOTS))
    state.gram.assign(gram)
    state.row_sum.assign(row_sum)


def moments_of_rows(v: tf.Variable) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns V^T V and V^T 1 in float64.

    Cost: O(C D^2); memory for a block of rows.
    """
    width = v.shape[1]
    gram, row_sum = tf.zeros([width, width], tf.float64), tf.zeros([width], tf.float64)
    for _, rows in _blocks(v):
        wide = tf.cast(rows, tf.float64)
        gram += tf.matmul(wide, wide, transpose_a=True)
        row_sum += tf.reduce_sum(wide, axis=0)
    return gram, row_sum


def refresh_bookkeeping(
    state: FactoredState, num_classes: int, add_up: Callable[[tf.Tensor], tf.Tensor]
) -> None:
    """Recomputes Q, c and U^-T of a settled state in float64. W doesn't change.

    Q = U^T V^T V U + (U^T V^T 1) w^T + w (U^T V^T 1)^T + C w w^T,  c = U^T V^T 1 + C w

    Cost: O(C D^2). C is over all shards, and `add_up` returns the sum over shards.
    """
    state = state.variables
    row_gram, row_sum = map(add_up, moments_of_rows(state.v))
    u = tf.cast(state.u.read_value(), tf.float64)
    w = tf.cast(state.shift.read_value(), tf.float64)
    moved = tf.linalg.matvec(u, row_sum, transpose_a=True)
    cross = moved[:, tf.newaxis] * w
    gram = tf.matmul(u, tf.matmul(row_gram, u), transpose_a=True) + cross + tf.transpose(cross)
    gram += num_classes * w[:, tf.newaxis] * w
    gram = tf.cast((gram + tf.transpose(gram)) / 2, state.dtype)
    state.gram.assign(gram)
    state.row_sum.assign(tf.cast(moved + num_classes * w, state.dtype))
    inverse = tf.transpose(tf.linalg.inv(u))
    state.u_inverse_transpose.assign(tf.cast(inverse, state.dtype))


def relative_drift(state: FactoredState, add_up: Callable[[tf.Tensor], tf.Tensor]) -> Drift:
    """Returns |Q Z - W^T W Z| / |W^T W Z| and |P^T U Z - Z| / |Z| for random Z, of a settled state.

    Cost: O(8 C D). `add_up` returns the sum over shards.
    """
    state = state.variables
    width = state.width
    probes = np.random.default_rng(0).normal(size=(width, _NUM_PROBES))
    u, p, gram, shift = (
        x.numpy().astype(np.float64)
        for x in (state.u, state.u_inverse_transpose, state.gram, state.shift)
    )
    images = np.zeros((width, _NUM_PROBES))
    for _, rows in _blocks(state.v):
        wide = rows.numpy().astype(np.float64)
        logits = wide @ (u @ probes) + shift @ probes
        images += u.T @ (wide.T @ logits) + np.outer(shift, logits.sum(axis=0))
    images = add_up(tf.constant(images)).numpy()
    tiny = np.finfo(np.float64).tiny
    gram_drift = np.linalg.norm(gram @ probes - images) / (np.linalg.norm(images) + tiny)
    inverse_drift = np.linalg.norm(p.T @ (u @ probes) - probes) / np.linalg.norm(probes)
    return Drift(float(gram_drift), float(inverse_drift))


def _blocks(v: tf.Variable) -> Iterator[tuple[int, tf.Tensor]]:
    num_classes, width = v.shape
    block = max(_BLOCK_ELEMENTS // width, 1)
    for start in range(0, num_classes, block):
        ids = tf.range(start, min(start + block, num_classes), dtype=tf.int64)
        yield start, gather(v, ids)
