# SPDX-License-Identifier: Apache-2.0
"""FixedSample: samples of one size."""

from __future__ import annotations

from tfx_largeout.hessian_free.sample_schedule import (
    SampleSchedule,
    examples_in,
    sample_size,
)


class FixedSample(SampleSchedule):
    """|S_i| = |S_0|.

    Args:
        size: A number of examples (an integer) or a share of all of them (a float, at most 1.0).
            Default 1.0: all.

    Raises:
        ValueError: `size` is neither.
    """

    def __init__(self, size: int | float = 1.0) -> None:
        self._size = sample_size("size", size)

    def size(self, iteration: int, population: int) -> int:
        return examples_in(self._size, population)
