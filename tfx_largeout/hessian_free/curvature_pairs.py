# SPDX-License-Identifier: Apache-2.0
"""CurvaturePairs: a few pairs (s, y = A s) spread evenly over a run whose length nobody knows."""

from __future__ import annotations

from collections.abc import Iterable

import tensorflow as tf

from tfx_largeout.arguments import integer_argument


class CurvaturePairs:
    """Keeps at most m pairs (s_i, y_i) of a run, evenly spread over it, while it goes on.

    At first every pair is kept. When there are m, only pairs whose number is a multiple of twice
    the spacing still come in, each in place of the first one whose number is not; when none such
    is left, the spacing has doubled. So the numbers of the pairs are at all times multiples of
    the spacing, or of twice the spacing, and memory holds m pairs.

    Cost: memory of 2 m vectors.

    Args:
        capacity: m >= 1.

    Raises:
        ValueError: `capacity` is not an integer of at least 1.

    References:
        Morales, Nocedal 2000, Automatic Preconditioning by Limited Memory Quasi-Newton Updating,
        section 2 (pairs spread evenly over a run of conjugate gradients).
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = integer_argument("capacity", capacity, at_least=1)
        self._spacing = 1
        self._kept: dict[int, tuple[tf.Tensor, tf.Tensor]] = {}

    @classmethod
    def of(cls, steps: Iterable[tf.Tensor], differences: Iterable[tf.Tensor]) -> CurvaturePairs:
        """Returns pairs out of vectors s_i and y_i, in the order of the run."""
        both = list(zip(steps, differences, strict=True))
        pairs = cls(max(len(both), 1))
        pairs._kept = dict(enumerate(both, start=1))
        return pairs

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def numbers(self) -> list[int]:
        """The numbers of the kept pairs in the run, from 1, ascending."""
        return list(self._kept)

    @property
    def steps(self) -> list[tf.Tensor]:
        """The vectors s_i `[n]`, oldest first."""
        return [s for s, _ in self._kept.values()]

    @property
    def differences(self) -> list[tf.Tensor]:
        """The vectors y_i `[n]`, oldest first."""
        return [y for _, y in self._kept.values()]

    def wants(self, number: int) -> bool:
        """Says whether the pair of that number would be kept."""
        spacing = self._spacing if len(self) < self.capacity else 2 * self._spacing
        return number % spacing == 0

    def add(self, number: int, step: tf.Tensor, difference: tf.Tensor) -> None:
        """Keeps a pair that is wanted.

        Args:
            number: The number of the pair in the run, from 1, greater than those before.
            step: s `[n]`.
            difference: y `[n]`.
        """
        if len(self) == self.capacity:
            del self._kept[self._between()[0]]
        self._kept[number] = (step, difference)
        if len(self) == self.capacity and not self._between():
            self._spacing *= 2

    def _between(self) -> list[int]:
        return [number for number in self._kept if number % (2 * self._spacing)]
