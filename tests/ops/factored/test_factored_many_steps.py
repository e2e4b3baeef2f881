# SPDX-License-Identifier: Apache-2.0
"""In float32 errors of the factored update do not pile up over thousands of steps.

benchmarks/factored_million_steps.py goes on to a million.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
from ops.factored_layer import IMPLEMENTATIONS, state_of, use, weights_of
from oracles import factored_update as oracle
from variants import product

from tfx_largeout.ops.factored import factored_update as ops

CLASSES, WIDTH, STEPS = 60, 8, 3_000


def squared_error(batch):
    """Returns dL/da, dL/dq, dL/ds of the sum of q - 2 a."""
    return np.full([batch, 1], -2.0), np.ones(batch), np.zeros(batch)


def run(state, pool, gradients, rate, decay, implementation):
    """Takes steps in one graph, through the batches of a pool in turn."""
    hidden, labels = (tf.constant(values) for values in pool)
    gradients = tuple(tf.constant(g, tf.float32) for g in gradients)

    @tf.function
    def loop():
        for step in tf.range(STEPS):
            batch = hidden[step % len(hidden)], labels[step % len(labels)]
            statistics = ops.factored_statistics(state, *batch, implementation=implementation)
            ops.factored_update(
                state,
                *batch,
                *statistics[3:],
                gradients,
                rate,
                decay,
                implementation=implementation,
            )

    loop()


def make_pool(batch, size=101):
    """Positive h, the hard case, with 1 for the largest eigenvalue of H^T H."""
    rng = np.random.default_rng(0)
    hidden = np.abs(rng.normal(size=[size, batch, WIDTH]))
    hidden /= np.linalg.norm(hidden, ord=2, axis=(1, 2), keepdims=True)
    return hidden.astype(np.float32), rng.integers(CLASSES, size=[size, batch, 1])


def initial_weights():
    return np.random.default_rng(1).normal(0, 0.1, [CLASSES, WIDTH]).astype(np.float32)


@functools.cache
def naive_weights(batch, rate, decay):
    """Returns W after STEPS steps of the naive layer in float64."""
    pool, gradients = make_pool(batch), squared_error(batch)
    weights = initial_weights().astype(np.float64)
    for step in range(STEPS):
        hidden, labels = (values[step % len(values)] for values in pool)
        weights, _ = oracle.naive_step(weights, hidden, labels, gradients, rate, decay)
    return weights


def relative_error(own, exact):
    return np.linalg.norm(own - exact) / np.linalg.norm(exact)


BATCHES = [3, 20]  # through [B, B] and through [D, D] matrices
# 2 eta lambda, and the decay. As a factor, 1 - 1e-6 would be off by 1.3e-8 in float32: 4e-5 in all
# these steps.
RATES = [(0.001, 1e-6), (0.02, 0.0), (0.9, 0.0), (1.9, 1e-4)]


@pytest.mark.thorough
@pytest.mark.parametrize("batch", BATCHES)
@pytest.mark.parametrize("rates", RATES, ids=str)
def test_composed_ops_keep_them_too(batch, rates, monkeypatch):
    test_weights_stay_those_of_the_naive_layer("composed", batch, rates, monkeypatch)


@pytest.mark.parametrize(("name", "batch", "rates"), product(IMPLEMENTATIONS[:-1], BATCHES, RATES))
def test_weights_stay_those_of_the_naive_layer(name, batch, rates, monkeypatch):
    two_eta_lambda, decayed = rates
    implementation = use(name, monkeypatch)
    rate = float(np.float32(two_eta_lambda / 2))
    decay = float(np.float32(decayed / rate))
    state = state_of(initial_weights())
    run(state, make_pool(batch), squared_error(batch), rate, decay, implementation)
    weights = naive_weights(batch, rate, decay)
    assert relative_error(weights_of(state), weights) < 3e-5
    assert relative_error(state.gram.numpy(), weights.T @ weights) < 3e-5
    inverse = state.u.numpy().astype(np.float64) @ state.u_inverse_transpose.numpy().T
    assert np.abs(inverse - np.eye(WIDTH)).max() < 3e-5
