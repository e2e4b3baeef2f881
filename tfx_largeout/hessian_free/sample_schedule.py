# SPDX-License-Identifier: Apache-2.0
"""SampleSchedule: how many examples an iteration looks at."""

from __future__ import annotations

import math
import numbers
from typing import Any, NamedTuple

import numpy as np


class GradientNoise(NamedTuple):
    """What a gradient on a sample S tells about its own precision.

    Attributes:
        squared_norm: |g|^2 of the mean gradient g.
        variance: Sum over the weights of the variance of the gradient of single examples.
    """

    squared_norm: float
    variance: float


class SampleSchedule:
    """The size |S_i| of the sample of iteration i.

    `needs_variance` says whether the trainer should measure the variance of the gradient and
    `observe` it: the gradient is then taken in at least 16 micro-batches.
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
        """Takes note of how precise the gradient of an iteration is."""

    def state(self) -> dict[str, Any]:
        """Returns what must be saved, as numbers by name."""
        return {}

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Takes back what `state` gave."""


def sample_size(name: str, value: Any) -> int | float:
    """Returns `value`, a number of examples (an integer) or a share of all (a float up to 1).

    Raises:
        ValueError: It is neither.
    """
    is_integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    is_count = is_integer and value >= 1
    is_share = isinstance(value, float) and 0 < value <= 1
    if not (is_count or is_share):
        raise ValueError(
            f"{name} must be a number of examples (an integer of at least 1) or a share of all "
            f"(a float above 0, at most 1.0); got {value!r}"
        )
    return int(value) if is_count else float(value)


def examples_in(size: int | float, population: int) -> int:
    """Returns the number of examples that `sample_size` has let through means, 1 to N."""
    count = size if isinstance(size, int) else math.ceil(size * population - 1e-9)
    return max(1, min(count, population))
