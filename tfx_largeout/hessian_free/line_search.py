# SPDX-License-Identifier: Apache-2.0
"""Decisions by the held-out loss: the iterate, the step size, and the damping."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.hessian_free.conjugate_gradient import CGStatistics, Iterate

Loss = Callable[[tf.Tensor], float]

_SUFFICIENT = 0.01
_SHORTER = 0.8
_MOST_TRIALS = 60
_FACTOR = 1.5  # change of the damping


class SearchStatistics(NamedTuple):
    """Statistics of a search.

    Attributes:
        loss: L at the chosen step; NaN counts as infinity.
        evaluations: The number of evaluations of L.
        accepted: Whether the condition of `armijo` was met; if not, the step size is 0.
    """

    loss: float
    evaluations: int
    accepted: bool = True


def backtrack(
    loss: Loss, iterates: Sequence[Iterate], previous: float
) -> tuple[Iterate, SearchStatistics]:
    """Goes back from the last iterate to the one with the minimal held-out loss.

    It stops at the first iterate that is no better than its successor, if the successor is no worse
    than the present loss; else it goes back to the first.

    Cost: one evaluation per visited iterate.

    Args:
        loss: d `[n]` -> L(theta + d).
        iterates: At least one iterate of `conjugate_gradient`.
        previous: L(theta).

    Returns:
        The iterate, and `SearchStatistics`.

    Raises:
        ValueError: There are no iterates.

    References:
        Sainath et al. 2013, Algorithm 1; Martens 2010, section 4.6.
    """
    if not iterates:
        raise ValueError("iterates must have at least one element; got none")
    chosen, best, evaluations = iterates[-1], _finite(loss(iterates[-1].solution)), 1
    for iterate in reversed(iterates[:-1]):
        current, evaluations = _finite(loss(iterate.solution)), evaluations + 1
        if best <= previous and current >= best:
            break
        chosen, best = iterate, current
    return chosen, SearchStatistics(best, evaluations)


def armijo(
    loss: Loss,
    direction: tf.Tensor,
    slope: float,
    previous: float,
    at_direction: float | None = None,
    longest: float = 1.0,
) -> tuple[float, SearchStatistics]:
    """Shortens a step until the held-out loss decreases in proportion to its length.

    Returns the first alpha out of longest, 0.8 longest, 0.8^2 longest, ... with

        L(theta + alpha d) <= L(theta) + 0.01 alpha g^T d

    Cost: one evaluation per alpha, at most 60.

    Args:
        loss: d `[n]` -> L(theta + d).
        direction: d `[n]`.
        slope: g^T d; if it is not below 0, no step is accepted.
        previous: L(theta).
        at_direction: L(theta + d) if known, to save an evaluation.
        longest: The first alpha, above 0. Default 1.

    Returns:
        alpha, and `SearchStatistics`.

    References:
        Sainath et al. 2013, Algorithm 1; Martens 2010, section 4.6.
    """
    evaluations, alpha = 0, longest
    for _ in range(_MOST_TRIALS if slope < 0 else 0):
        if alpha == 1 and at_direction is not None:
            current = at_direction
        else:
            current, evaluations = _finite(loss(alpha * direction)), evaluations + 1
        if current <= previous + _SUFFICIENT * alpha * slope:
            return alpha, SearchStatistics(current, evaluations)
        alpha *= _SHORTER
    return 0.0, SearchStatistics(previous, evaluations, accepted=False)


class Step(NamedTuple):
    """A step d: its size (0: rejected), rho and L(theta + d)."""

    d: tf.Tensor | float = 0.0
    size: float = 0.0
    rho: float = math.nan
    loss: float = math.nan


def best_step(loss: Loss, run: CGStatistics, g: tf.Tensor, previous: float, longest: float) -> Step:
    """Returns the step along the best iterate of a run from the gradient g, or none."""
    if not run.iterates:
        return Step()
    chosen, backtracked = backtrack(loss, run.iterates, previous)
    if chosen.value >= 0:
        return Step()
    rho = (backtracked.loss - previous) / chosen.value
    if backtracked.loss > previous:
        return Step(rho=rho)
    slope = float(tf.reduce_sum(g * chosen.solution))
    alpha, found = armijo(loss, chosen.solution, slope, previous, backtracked.loss, longest)
    return Step(alpha * chosen.solution, alpha, rho, found.loss) if alpha else Step(rho=rho)


class LevenbergMarquardt:
    """The damping lambda of B = G + lambda I, adapted to the error of the quadratic model.

    With rho = (L(theta + d) - L(theta)) / q(d), both at the same step d:

        rho < 1/4: lambda <- 3/2 lambda,  rho > 3/4: lambda <- 2/3 lambda

    A rejected step also raises it.

    Args:
        initial: lambda_0 above 0. Default 1.

    Raises:
        ValueError: `initial` is not a number above 0.

    Deviations: the paper prints the two factors the wrong way round, and (L(theta) - L(theta + d))
        over the negative number q(d).

    References:
        Martens 2010, Deep learning via Hessian-free optimization, section 4.1.
        Sainath et al. 2013, Algorithm 1.
    """

    def __init__(self, initial: float = 1.0) -> None:
        self.initial = number_argument("initial", initial, above=0)

    def after_step(self, damping: float, rho: float) -> float:
        """Returns the damping after an accepted step."""
        if rho > 0.75:
            return damping / _FACTOR
        return damping if rho >= 0.25 else damping * _FACTOR

    def after_refusal(self, damping: float) -> float:
        """Returns the damping after a rejected step."""
        return damping * _FACTOR


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value
