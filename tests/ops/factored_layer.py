# SPDX-License-Identifier: Apache-2.0
"""A factored layer of bare variables, and the implementations of its ops."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops import streamed_logits_cases

from tfx_largeout.ops import library
from tfx_largeout.ops.factored import factored_update
from tfx_largeout.ops.factored.factored_state import NUM_SLOTS, FactoredState

IMPLEMENTATIONS = streamed_logits_cases.implementations(["baseline", "avx2", "avx512"])


def use(name, monkeypatch) -> str:
    """As for streamed_logits; skips if the library is older."""
    implementation = streamed_logits_cases.use(name, monkeypatch)
    if implementation == "op" and not hasattr(library.load(), "tfx_factored_update"):
        pytest.skip("this library has no factored update")
    return implementation


def state_of(weights, dtype="float32") -> FactoredState:
    """Returns the state of a layer with these weights: V = W, U = I."""
    classes, width = weights.shape
    unit = np.eye(width)
    values = FactoredState(
        v=weights,
        u=unit,
        u_inverse_transpose=unit,
        gram=weights.T @ weights,
        shift=np.zeros(width),
        row_sum=weights.sum(axis=0),
        transitions=np.stack([unit] * NUM_SLOTS),
        row_slot=np.zeros(classes),
        slot_rows=np.array([classes] + [0] * (NUM_SLOTS - 1)),
        current_slot=0,
    )
    dtypes = [dtype] * 7 + ["uint8", "int64", "int64"]
    return FactoredState(
        *(tf.Variable(tf.constant(v, d)) for v, d in zip(values, dtypes, strict=True))
    )


def weights_of(state) -> np.ndarray:
    """Returns the W that the state represents, in float64."""
    values = FactoredState(*(np.asarray(variable, np.float64) for variable in state))
    transitions = values.transitions[values.row_slot.astype(int)]
    rows = np.einsum("cd,cde->ce", values.v, transitions)
    return rows @ values.u + values.shift


def check_consistency(state) -> None:
    """Checks the invariants of counts and transitions."""
    slots = np.bincount(state.row_slot.numpy(), minlength=NUM_SLOTS)
    np.testing.assert_array_equal(state.slot_rows, slots)
    current = int(state.current_slot)
    np.testing.assert_array_equal(state.transitions.numpy()[current], np.eye(state.width))
    gram = state.gram.numpy()
    np.testing.assert_array_equal(gram, gram.T)


def reanchor(state, implementation="auto") -> None:
    """Sets a new anchor, with a step without examples that requests one. W does not change."""
    hidden = tf.zeros([0, state.width], state.dtype)
    none = hidden[:, 0]
    gradients = (tf.zeros([0, 1], state.dtype), none, none)
    factored_update.factored_update(
        state,
        hidden,
        tf.zeros([0, 1], tf.int64),
        hidden,
        hidden,
        gradients,
        0.0,
        0.0,
        max_condition=0.0,
        implementation=implementation,
    )
