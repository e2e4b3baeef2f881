# SPDX-License-Identifier: Apache-2.0
"""Random problems for the candidate ops and row updates, and the variables that they change."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest
import tensorflow as tf
from ops import streamed_logits_cases

from tfx_largeout.ops import library
from tfx_largeout.ops.rows.row_rule import RowRule

# Each compiled instruction set of the custom op, and the fallback.
IMPLEMENTATIONS = streamed_logits_cases.IMPLEMENTATIONS

RULES = {
    "sgd": RowRule("sgd", (0.0, 0.0)),
    "momentum": RowRule("sgd", (0.9, 0.0)),
    "nesterov": RowRule("sgd", (0.8, 1.0), weight_decay=0.05),
    "adagrad": RowRule("adagrad", (1e-7,)),
    "adagrad, clipped": RowRule("adagrad", (1e-3,), row_clip_norm=0.5),
    "adam": RowRule("adam", (0.9, 0.999, 1e-4)),
    "adamw, clipped": RowRule("adam", (0.8, 0.99, 1e-5), weight_decay=0.1, row_clip_norm=1.5),
    "adam without memory": RowRule("adam", (0.0, 0.0, 1e-3)),
    "row-wise adagrad": RowRule("adagrad", (1e-7,), row_wise=True),
    "row-wise adamw, clipped": RowRule("adam", (0.8, 0.99, 1e-5), 0.1, 1.5, row_wise=True),
}

UNIT_RULES = {
    name: RULES[name]._replace(unit_rows=True)
    for name in ("sgd", "adamw, clipped", "row-wise adagrad")
}


def use(name, monkeypatch) -> str:
    """As for streamed_logits; skips if the library is older."""
    implementation = streamed_logits_cases.use(name, monkeypatch)
    if implementation == "op" and not hasattr(library.load(), "tfx_candidate_update"):
        pytest.skip("this library has no candidate ops")
    return implementation


class Weights(NamedTuple):
    """A weight and its slots: of NumPy in float64, or of TensorFlow."""

    weight: Any
    slots: list[Any]

    @classmethod
    def of(cls, weight, rule) -> Weights:
        """Starts slots that belong to a weight of NumPy."""
        start = {"accumulator": 0.1}
        slots = []
        for name in rule.slots:
            shape, dtype = rule.slot_like(name, weight.shape, tf.float64)
            dtype = np.uint32 if dtype == tf.uint32 else np.float64
            slots.append(np.full(shape, start.get(name, 0.0), dtype))
        return cls(weight.astype(np.float64), slots)

    def variables(self, dtype="float32", rule=None) -> Weights:
        """Returns the same in variables of TensorFlow; with a rule slots have its dtypes."""
        wide = "float64" if dtype == "float64" else "float32"
        dtypes = ["uint32" if slot.dtype == np.uint32 else wide for slot in self.slots]
        if rule is not None:
            shape, of = self.weight.shape, tf.as_dtype(dtype)
            dtypes = [rule.slot_like(name, shape, of)[1] for name in rule.slots]
        pairs = zip(self.slots, dtypes, strict=True)
        slots = [tf.Variable(tf.cast(tf.constant(slot), dtype)) for slot, dtype in pairs]
        return Weights(tf.Variable(tf.cast(tf.constant(self.weight), dtype)), slots)

    def arrays(self) -> list[np.ndarray]:
        """Returns the weight and the slots in NumPy."""
        return [tf.cast(x, "float64").numpy() for x in (self.weight, *self.slots)]


def check_equal(own: Weights, expected: Weights, tolerance) -> None:
    """Compares the weight and the slots with NumPy's."""
    for got, want in zip(own.arrays(), (expected.weight, *expected.slots), strict=True):
        scale = 1 + np.abs(want).max(initial=0)
        np.testing.assert_allclose(got, want, atol=tolerance * scale)


class Case(NamedTuple):
    """Weights to start from, and batches of ((hidden, labels, candidates), gradients)."""

    kernel: np.ndarray
    bias: np.ndarray | None
    batches: list[Any]


def random_case(seed, own, steps=3, shape=None) -> Case:
    """Draws shapes, repeats and padding; `shape` is (C, D, N, K, S)."""
    rng = np.random.default_rng(seed)
    if shape is None:
        classes, width = rng.integers(2, 60), rng.integers(1, 70)
        shape = (classes, width, rng.integers(1, 40), rng.integers(0, 5), rng.integers(0, 90))
    classes, width, batch, num_labels, num_candidates = shape
    kernel = _float32(rng.normal(size=(classes, width)) / np.sqrt(width))
    bias = _float32(rng.normal(size=classes)) if seed % 2 == 0 else None
    padding = rng.choice([0.0, 0.3, 1.0], p=[0.5, 0.4, 0.1])

    def ids(*shape):
        drawn = rng.integers(0, classes, shape)
        return np.where(rng.random(shape) < padding, -1, drawn).astype(np.int64)

    def batch_of():
        candidates = ids(batch, num_candidates) if own else ids(num_candidates)
        hidden = _float32(rng.normal(size=(batch, width)))
        labels = ids(batch, num_labels)
        gradients = [_float32(rng.normal(size=(batch, n))) for n in (num_labels, num_candidates)]
        return (hidden, labels, candidates), gradients

    return Case(kernel, bias, [batch_of() for _ in range(steps)])


def _float32(values) -> np.ndarray:
    """The numbers of float32, so that it isn't blamed for the rounding of its input."""
    return values.astype(np.float32).astype(np.float64)
