# SPDX-License-Identifier: Apache-2.0
"""Step: how far an iteration of Hessian-free training goes, found by a line search."""

from __future__ import annotations

import math
from typing import NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.hessian_free.conjugate_gradient import CGStatistics
from tfx_largeout.hessian_free.line_search import armijo, backtrack
from tfx_largeout.hessian_free.objective import Objective


class Step(NamedTuple):
    """Where a step leads, its size (0: refused), rho and L there."""

    theta: tf.Tensor
    size: float
    rho: float
    loss: float


def no_step(theta: tf.Tensor, rho: float = math.nan) -> Step:
    """Returns the step that stays at theta."""
    return Step(theta, 0.0, rho, math.nan)


def best_step(
    objective: Objective,
    theta: tf.Tensor,
    g: tf.Tensor,
    run: CGStatistics,
    previous: float,
    longest: float,
) -> Step:
    """Returns the step along the best iterate of conjugate gradients, or none.

    The weights are then where it leads, or at theta if there is an error.

    Args:
        objective: L, the loss of the data of the line search.
        theta: The weights `[n]`.
        g: The gradient at theta, `[n]`.
        run: What conjugate gradients left behind.
        previous: L(theta).
        longest: The size of the longest step.
    """
    step = no_step(theta)
    try:
        if run.iterates:
            step = _step(objective, theta, g, run, previous, longest)
    finally:
        objective.assign(step.theta)
    return step


def learning_rate(model: keras.Model) -> float | None:
    """Returns the rate of the model's optimizer, which callbacks set; None where there is none."""
    rate = getattr(model.optimizer, "learning_rate", None)
    return None if rate is None else float(keras.ops.convert_to_numpy(rate))


def longest_step(model: keras.Model, first_rate: float | None) -> float:
    """Returns the size of the longest step: the rate now, over the one when training began."""
    rate = learning_rate(model)
    return 1.0 if rate is None or not first_rate else rate / first_rate


def _step(
    objective: Objective,
    theta: tf.Tensor,
    g: tf.Tensor,
    run: CGStatistics,
    previous: float,
    longest: float,
) -> Step:
    def loss(step: tf.Tensor) -> float:
        return objective.loss_at(theta + step)

    chosen, backtracked = backtrack(loss, run.iterates, previous)
    if chosen.value >= 0:
        return no_step(theta)
    rho = (backtracked.loss - previous) / chosen.value
    if backtracked.loss > previous:
        return no_step(theta, rho)
    slope = float(tf.reduce_sum(g * chosen.solution))
    alpha, found = armijo(loss, chosen.solution, slope, previous, backtracked.loss, longest)
    if not found.accepted:
        return no_step(theta, rho)
    return Step(theta + alpha * chosen.solution, alpha, rho, found.loss)
