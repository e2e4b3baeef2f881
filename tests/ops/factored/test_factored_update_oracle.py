# SPDX-License-Identifier: Apache-2.0
"""The factored algebra is the naive step, as docs/papers/exact_gradient.md derives it."""

from __future__ import annotations

import numpy as np
import pytest
from ops.factored_cases import random_case
from oracles import factored_update as oracle


@pytest.mark.parametrize("seed", range(40))
def test_the_factored_steps_are_the_naive_steps(seed):
    case = random_case(seed)
    weights = case.weights
    factored = oracle.Factored.of(weights)
    for hidden, labels, gradients in case.batches:
        for own, naive in zip(
            factored.statistics(hidden, labels),
            oracle.statistics(weights, hidden, labels),
            strict=True,
        ):
            np.testing.assert_allclose(own, naive, rtol=1e-8, atol=1e-8)
        rates = (case.learning_rate, case.weight_decay)
        weights, expected = oracle.naive_step(weights, hidden, labels, gradients, *rates)
        gradient = factored.step(hidden, labels, gradients, *rates)
        np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(factored.weights, weights, rtol=1e-8, atol=1e-8)
        np.testing.assert_allclose(factored.q, weights.T @ weights, rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(factored.c, weights.sum(axis=0), rtol=1e-7, atol=1e-7)
        np.testing.assert_allclose(factored.p.T @ factored.u, np.eye(len(factored.u)), atol=1e-6)


@pytest.mark.parametrize("seed", range(5))
def test_the_naive_step_follows_the_gradient(seed):
    rng = np.random.default_rng(seed)
    case = random_case(seed)
    hidden, labels, (g_a, g_q, g_s) = case.batches[0]
    g_a = np.where(labels >= 0, g_a, 0.0)

    def loss(weights, hidden):
        a, q, s = oracle.statistics(weights, hidden, labels)
        return (g_a * a).sum() + (g_q * q).sum() + (g_s * s).sum()

    moved, h_gradient = oracle.naive_step(case.weights, hidden, labels, (g_a, g_q, g_s), 1.0)
    w_step, h_step = rng.normal(size=moved.shape), rng.normal(size=hidden.shape)
    for gradient, step, w_scale, h_scale in (
        (case.weights - moved, w_step, 1e-6, 0),
        (h_gradient, h_step, 0, 1e-6),
    ):
        ends = [
            loss(case.weights + sign * w_scale * w_step, hidden + sign * h_scale * h_step)
            for sign in (1, -1)
        ]
        slope = (ends[0] - ends[1]) / 2e-6
        np.testing.assert_allclose(slope, (gradient * step).sum(), rtol=1e-5, atol=1e-6)
