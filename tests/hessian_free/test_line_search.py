# SPDX-License-Identifier: Apache-2.0
"""Backtracking, Armijo's rule and the damping, against the oracle and by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from oracles import hessian_free as oracle

from tfx_largeout.hessian_free.conjugate_gradient import Iterate
from tfx_largeout.hessian_free.line_search import LevenbergMarquardt, armijo, backtrack


def iterates(count):
    return [Iterate(i + 1, -float(i), tf.constant([float(i)])) for i in range(count)]


@pytest.mark.parametrize("seed", range(20))
def test_backtracking_chooses_as_the_oracle(seed):
    rng = np.random.default_rng(seed)
    losses = list(rng.normal(size=rng.integers(1, 9)).round(1))
    if seed % 4 == 0:
        losses[rng.integers(len(losses))] = math.nan
    previous = float(rng.normal())
    calls = []

    def loss(step):
        calls.append(int(step[0]))
        return losses[calls[-1]]

    chosen, statistics = backtrack(loss, iterates(len(losses)), previous)
    expected = oracle.backtracked(losses, previous)
    assert chosen.iteration == expected + 1
    assert statistics.loss == (math.inf if math.isnan(losses[expected]) else losses[expected])
    assert statistics.evaluations == len(calls)
    assert calls == list(range(len(losses) - 1, len(losses) - 1 - len(calls), -1))


def test_backtracking_needs_an_iterate():
    with pytest.raises(ValueError, match="iterates must have at least one element; got none"):
        backtrack(lambda step: 0.0, [], 1.0)


def square(step):
    """(1 - step)^2, of step 0 the loss 1 and the slope -2."""
    return float((1 - step[0]) ** 2)


@pytest.mark.parametrize("length", [0.1, 1.0, 1.9, 3.0, 40.0])
def test_armijo_takes_the_first_step_that_falls_enough(length):
    direction, slope = tf.constant([length]), -2 * length
    alpha, statistics = armijo(square, direction, slope, 1.0)
    power = statistics.evaluations - 1
    assert alpha == pytest.approx(0.8**power)
    assert statistics.accepted
    assert statistics.loss == pytest.approx(square(alpha * direction))

    def is_enough(a):
        return square(a * direction) <= 1 + 0.01 * a * slope

    assert is_enough(alpha) and not any(is_enough(0.8**j) for j in range(power))


def test_armijo_does_not_measure_twice():
    calls = []

    def loss(step):
        calls.append(float(step[0]))
        return square(step)

    alpha, statistics = armijo(loss, tf.constant([1.5]), -3.0, 1.0, at_direction=0.25)
    assert (alpha, statistics.evaluations, calls) == (1.0, 0, [])
    alpha, statistics = armijo(loss, tf.constant([1.5]), -3.0, 1.0, 0.25, longest=0.5)
    assert (alpha, statistics.evaluations) == (0.5, 1)


@pytest.mark.parametrize(
    ("loss", "slope"),
    [(lambda s: 2.0, -1.0), (lambda s: math.nan, -1.0), (square, 0.0), (square, 1.0)],
)
def test_armijo_refuses(loss, slope):
    alpha, statistics = armijo(loss, tf.constant([0.5]), slope, 1.0)
    assert (alpha, statistics.accepted, statistics.loss) == (0.0, False, 1.0)
    assert statistics.evaluations == (60 if slope < 0 else 0)


def test_damping_rises_where_the_model_promised_too_much():
    rule = LevenbergMarquardt(2.0)
    assert rule.initial == 2
    assert rule.after_step(2.0, 0.2) == 3
    assert rule.after_step(2.0, -5.0) == 3
    assert rule.after_step(2.0, 0.25) == rule.after_step(2.0, 0.75) == 2
    assert rule.after_step(3.0, 0.8) == 2
    assert rule.after_refusal(2.0) == 3
    with pytest.raises(ValueError, match="initial must be a finite number above 0; got -1"):
        LevenbergMarquardt(-1)
