# SPDX-License-Identifier: Apache-2.0
"""Sample sizes of an iteration: fixed, growing, or adapted to the noise."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np

from tfx_largeout.arguments import number_argument


class GradientNoise(NamedTuple):
    """The precision of a gradient on a sample S.

    Attributes:
        squared_norm: |g|^2 of the mean gradient g.
        variance: Sum over the weights of the variance of the gradient of single examples.
    """

    squared_norm: float
    variance: float


class SampleSchedule:
    """The size |S_i| of the sample of iteration i.

    `needs_variance`: whether the trainer should measure the variance of the gradient and call
    `observe`; the gradient is then computed in at least 16 micro-batches.
    """

    needs_variance = False

    def size(self, iteration: int, population: int) -> int:
        """Returns |S_i|, from 1 to the number of examples.

        Args:
            iteration: i, from 0.
            population: N, the number of all examples.
        """
        raise NotImplementedError

    def observe(self, noise: GradientNoise, population: int) -> None:
        """Records the precision of the gradient of an iteration."""

    def state(self) -> dict[str, Any]:
        """Returns the state to save, as numbers by name."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restores the result of `state`."""


class FixedSample(SampleSchedule):
    """|S_i| = |S_0|.

    Args:
        size: A number of examples (an integer) or a share of all of them (a float, at most 1.0).
            Default 1.0: all.

    Raises:
        ValueError: `size` is neither.
    """

    def __init__(self, size: int | float = 1.0) -> None:
        self._size = _checked("size", size)

    def size(self, iteration: int, population: int) -> int:
        return _examples_in(self._size, population)


class GeometricSample(SampleSchedule):
    """|S_i| = alpha^i |S_0|, up to a cap.

    Args:
        initial: |S_0|: a number of examples (an integer) or a share of all of them (a float, at
            most 1.0).
        growth: alpha >= 1. The paper uses 1.2 for the gradient and 1.3 for conjugate gradients.
        most: The cap, in the form of `initial`. Default 1.0: all.

    Raises:
        ValueError: An argument is out of range.

    References:
        Sainath et al. 2013, equation 7; Friedlander, Schmidt 2012.
    """

    def __init__(self, initial: int | float, growth: float, most: int | float = 1.0) -> None:
        self.initial = _checked("initial", initial)
        self.growth = number_argument("growth", growth, at_least=1)
        self.most = _checked("most", most)

    def size(self, iteration: int, population: int) -> int:
        first, cap = _examples_in(self.initial, population), _examples_in(self.most, population)
        if iteration * math.log(self.growth) >= math.log(max(cap / first, 1)):
            return cap
        return min(cap, math.ceil(self.growth**iteration * first - 1e-9))


class VarianceSample(SampleSchedule):
    """A sample that grows if the gradient is too noisy for its norm.

    A sample S out of N examples is large enough if, with the mean gradient g of S and V, the sum
    over all weights of the variance of the gradients of single examples,

        V / |S| (N - |S|) / (N - 1) <= theta^2 |g|^2

    If this fails, the next samples have the smallest size for which it would hold: |S| = V N / (V +
    theta^2 |g|^2 (N - 1)). Sizes never shrink.

    Cost: the gradient is computed in at least 16 micro-batches; V is computed from their squared
        norms.

    Args:
        initial: |S_0|: a number of examples (an integer) or a share of all of them (a float, at
            most 1.0).
        theta: Above 0; smaller values give larger samples. Default 0.25.
        most: A cap, in the form of `initial`. Default 1.0: all.

    Raises:
        ValueError: An argument is out of range.

    Deviations: the paper leaves out (N - |S|) / (N - 1), with which a sample of all examples is
        always large enough. A new size holds from the next iteration on. V comes from micro-batches
        instead of utterances. The schedule of the curvature sample also follows the noise of the
        gradient, with a separate theta.

    References:
        Byrd, Chin, Nocedal, Wu 2012, Sample size selection in optimization methods for machine
        learning, section 4. Sainath et al. 2013, inequality 5 and equation 6.
    """

    needs_variance = True

    def __init__(self, initial: int | float, theta: float = 0.25, most: int | float = 1.0) -> None:
        self.initial = _checked("initial", initial)
        self.theta = number_argument("theta", theta, above=0)
        self.most = _checked("most", most)
        self._needed = 0

    def size(self, iteration: int, population: int) -> int:
        wanted = max(_examples_in(self.initial, population), self._needed)
        return min(wanted, _examples_in(self.most, population))

    def observe(self, noise: GradientNoise, population: int) -> None:
        allowed = self.theta**2 * noise.squared_norm * (population - 1)
        if noise.variance > 0 and math.isfinite(noise.variance + allowed):
            needed = math.ceil(noise.variance * population / (noise.variance + allowed))
            self._needed = max(self._needed, needed)

    def state(self) -> dict[str, Any]:
        return {"needed": np.int64(self._needed)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._needed = int(state["needed"])


def _checked(name: str, size: Any) -> int | float:
    """Checks a size: a number of examples (an integer) or a share of all (a float up to 1)."""
    is_integer = isinstance(size, numbers.Integral) and not isinstance(size, bool)
    is_count = is_integer and size >= 1
    is_share = isinstance(size, float) and 0 < size <= 1
    if not (is_count or is_share):
        raise ValueError(
            f"{name} must be a number of examples (an integer of at least 1) or a share of all "
            f"(a float above 0, at most 1.0); got {size!r}"
        )
    return int(size) if is_count else float(size)


def _examples_in(size: int | float, population: int) -> int:
    """Returns the number of examples for a size, 1 to N."""
    count = size if isinstance(size, int) else math.ceil(size * population - 1e-9)
    return max(1, min(count, population))
