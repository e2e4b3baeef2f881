# SPDX-License-Identifier: Apache-2.0
"""Random problems for the factored update, shared by the tests of oracle, ops and head."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Case(NamedTuple):
    """Weights to start from, and batches of (hidden, labels, (g_a, g_q, g_s))."""

    weights: np.ndarray
    batches: list[Any]
    learning_rate: float
    weight_decay: float


def random_case(seed, steps=4, dtype=np.float64) -> Case:
    """Draws shapes, signs, repeats and rates; no step comes near divergence.

    By seed modulo 3, g_q is of mixed signs, positive, or 0.
    """
    rng = np.random.default_rng(seed)
    classes, width = rng.integers(2, 60), rng.integers(1, 12)
    batch, num_labels = rng.integers(1, 20), rng.integers(0, 5)
    learning_rate = float(10 ** rng.uniform(-2, 0))
    weights = rng.normal(size=(classes, width))
    batches = [
        _batch(rng, seed % 3, classes, width, batch, num_labels, learning_rate)
        for _ in range(steps)
    ]
    # The dtype's own numbers, so that a float32 layer is not blamed for the rounding of its input.
    batches = [
        (
            hidden.astype(dtype).astype(np.float64),
            labels,
            tuple(_round(g, dtype) for g in gradients),
        )
        for hidden, labels, gradients in batches
    ]
    weight_decay = float(rng.choice([0.0, 0.1]))
    return Case(_round(weights, dtype), batches, learning_rate, weight_decay)


def _batch(rng, kind, classes, width, batch, num_labels, learning_rate) -> Any:
    hidden = rng.normal(size=(batch, width))
    if rng.random() < 0.5:
        hidden = np.abs(hidden)
    labels = rng.integers(-1, min(classes, 8), (batch, num_labels))  # repeats are frequent
    g_a, g_s = rng.normal(size=(batch, num_labels)), 0.1 * rng.normal(size=batch)
    g_q = rng.normal(size=batch)
    if kind == 1:
        g_q = np.abs(g_q)
    if kind == 2:
        g_q = np.zeros(batch)
    norm = np.linalg.norm(hidden.T @ (np.abs(g_q)[:, np.newaxis] * hidden), 2)
    if norm > 0:  # 2 eta |H^T |G| H|_2 is then up to 0.8
        g_q *= rng.uniform(0.05, 0.8) / (2 * learning_rate * norm)
    return hidden, labels.astype(np.int64), (g_a, g_q, g_s)


def _round(values, dtype) -> np.ndarray:
    return np.asarray(values).astype(dtype).astype(np.float64)
