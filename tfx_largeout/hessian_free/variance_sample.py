# SPDX-License-Identifier: Apache-2.0
"""VarianceSample: samples large enough that their gradient is probably a descent direction."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tfx_largeout.arguments import number_argument
from tfx_largeout.hessian_free.sample_schedule import (
    GradientNoise,
    SampleSchedule,
    examples_in,
    sample_size,
)


class VarianceSample(SampleSchedule):
    """A sample that grows where the gradient is too noisy for its length.

    A sample S out of N examples is large enough if, with the mean gradient g of S and V, the sum
    over all weights of the variance of the gradients of single examples,

        V / |S| (N - |S|) / (N - 1) <= theta^2 |g|^2

    Where that fails, the next samples have the smallest size for which it would hold:
    |S| = V N / (V + theta^2 |g|^2 (N - 1)). Sizes never shrink.

    Cost: the gradient comes in at least 16 micro-batches, of whose squared norms V is made.

    Args:
        initial: |S_0|: a number of examples (an integer) or a share of all of them (a float, at
            most 1.0).
        theta: Above 0; the smaller, the larger the samples. Default 0.25.
        most: A cap, as `initial`. Default 1.0: all.

    Raises:
        ValueError: An argument is out of range.

    Deviations: the paper leaves out (N - |S|) / (N - 1), with which a sample of all examples is
        always large enough. A new size holds from the next iteration on. V comes from
        micro-batches where the paper has utterances. A schedule for the curvature sample goes by
        the noise of the gradient too, with a theta of its own.

    References:
        Byrd, Chin, Nocedal, Wu 2012, Sample size selection in optimization methods for machine
        learning, section 4. Sainath et al. 2013, inequality 5 and equation 6.
    """

    needs_variance = True

    def __init__(self, initial: int | float, theta: float = 0.25, most: int | float = 1.0) -> None:
        self.initial = sample_size("initial", initial)
        self.theta = number_argument("theta", theta, above=0)
        self.most = sample_size("most", most)
        self._needed = 0

    def size(self, iteration: int, population: int) -> int:
        wanted = max(examples_in(self.initial, population), self._needed)
        return min(wanted, examples_in(self.most, population))

    def observe(self, noise: GradientNoise, population: int) -> None:
        allowed = self.theta**2 * noise.squared_norm * (population - 1)
        if noise.variance > 0 and math.isfinite(noise.variance + allowed):
            needed = math.ceil(noise.variance * population / (noise.variance + allowed))
            self._needed = max(self._needed, needed)

    def state(self) -> dict[str, Any]:
        return {"needed": np.int64(self._needed)}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        self._needed = int(state["needed"])
