# SPDX-License-Identifier: Apache-2.0
"""Which iterate of conjugate gradients, and how far along it: both by the held-out loss."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.hessian_free.conjugate_gradient import Iterate

Loss = Callable[[tf.Tensor], float]

_SUFFICIENT = 0.01
_SHORTER = 0.8
_MOST_TRIALS = 60


class BacktrackStatistics(NamedTuple):
    """What backtracking over the iterates tells.

    Attributes:
        loss: L(theta + d) at the chosen iterate; NaN counts as infinity.
        evaluations: How often L was evaluated.
    """

    loss: float
    evaluations: int


class ArmijoStatistics(NamedTuple):
    """What the search along a direction tells.

    Attributes:
        loss: L(theta + alpha d).
        evaluations: How often L was evaluated.
        accepted: Whether the condition was met; if not, the step size is 0.
    """

    loss: float
    evaluations: int
    accepted: bool


def backtrack(
    loss: Loss, iterates: Sequence[Iterate], previous: float
) -> tuple[Iterate, BacktrackStatistics]:
    """Goes back from the last iterate to the one where the held-out loss has its minimum.

    It stops at the first iterate that is no better than the one after it, once that one is no
    worse than the present loss; else it goes back to the first.

    Cost: one evaluation an iterate that it looks at.

    Args:
        loss: d `[n]` -> L(theta + d).
        iterates: At least one, as `conjugate_gradient` gives them.
        previous: L(theta).

    Returns:
        The iterate, and `BacktrackStatistics`.

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
    return chosen, BacktrackStatistics(best, evaluations)


def armijo(
    loss: Loss,
    direction: tf.Tensor,
    slope: float,
    previous: float,
    at_direction: float | None = None,
    longest: float = 1.0,
) -> tuple[float, ArmijoStatistics]:
    """Shortens a step until the held-out loss falls in proportion to its length.

    The first alpha out of longest, 0.8 longest, 0.8^2 longest, ... with

        L(theta + alpha d) <= L(theta) + 0.01 alpha g^T d

    Cost: one evaluation for each alpha tried, 60 at most.

    Args:
        loss: d `[n]` -> L(theta + d).
        direction: d `[n]`.
        slope: g^T d; where it is not below 0 no step is accepted.
        previous: L(theta).
        at_direction: L(theta + d), if it is known: it is not evaluated again.
        longest: The first alpha, above 0. Default 1.

    Returns:
        alpha, and `ArmijoStatistics`.

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
            return alpha, ArmijoStatistics(current, evaluations, True)
        alpha *= _SHORTER
    return 0.0, ArmijoStatistics(previous, evaluations, False)


def _finite(value: float) -> float:
    return math.inf if math.isnan(value) else value
