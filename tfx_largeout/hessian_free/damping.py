# SPDX-License-Identifier: Apache-2.0
"""LevenbergMarquardt: the rule that raises and lowers the damping."""

from __future__ import annotations

from tfx_largeout.arguments import number_argument

_FACTOR = 1.5


class LevenbergMarquardt:
    """The damping lambda of B = G + lambda I, by how well the quadratic model has predicted.

    With rho = (L(theta + d) - L(theta)) / q(d), both at the same step d:

        rho < 1/4: lambda <- 3/2 lambda,  rho > 3/4: lambda <- 2/3 lambda

    A step that is refused raises it as well.

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
        """Returns the damping after a step that was taken."""
        if rho > 0.75:
            return damping / _FACTOR
        return damping if rho >= 0.25 else damping * _FACTOR

    def after_refusal(self, damping: float) -> float:
        """Returns the damping after a step that was refused."""
        return damping * _FACTOR
