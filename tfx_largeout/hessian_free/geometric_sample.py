# SPDX-License-Identifier: Apache-2.0
"""GeometricSample: samples that grow by a factor an iteration."""

from __future__ import annotations

import math

from tfx_largeout.arguments import number_argument
from tfx_largeout.hessian_free.sample_schedule import (
    SampleSchedule,
    examples_in,
    sample_size,
)


class GeometricSample(SampleSchedule):
    """|S_i| = alpha^i |S_0|, up to a cap.

    Args:
        initial: |S_0|: a number of examples (an integer) or a share of all of them (a float, at
            most 1.0).
        growth: alpha >= 1. The paper has 1.2 for the gradient and 1.3 for conjugate gradients.
        most: The cap, as `initial`. Default 1.0: all.

    Raises:
        ValueError: An argument is out of range.

    References:
        Sainath et al. 2013, equation 7; Friedlander, Schmidt 2012.
    """

    def __init__(self, initial: int | float, growth: float, most: int | float = 1.0) -> None:
        self.initial = sample_size("initial", initial)
        self.growth = number_argument("growth", growth, at_least=1)
        self.most = sample_size("most", most)

    def size(self, iteration: int, population: int) -> int:
        first, cap = examples_in(self.initial, population), examples_in(self.most, population)
        if iteration * math.log(self.growth) >= math.log(max(cap / first, 1)):
            return cap
        return min(cap, math.ceil(self.growth**iteration * first - 1e-9))
