# SPDX-License-Identifier: Apache-2.0
"""CandidateNumber: what heads share whose number of candidates may change in training."""

from __future__ import annotations

from tfx_largeout.samplers import Sampler


class CandidateNumber:
    """A part of heads with a `sampler`, for another number of candidates S.

    Attributes:
        first_num_sampled: S of the sampler that the head was made with, once it has another one.
    """

    sampler: Sampler
    num_classes: int
    first_num_sampled: float | None = None

    def set_num_sampled(self, num_sampled: int) -> None:
        """Gives the head a sampler like its own with another number of candidates S.

        It is saved with the head. A training step that was traced before keeps the old one: call
        `model.make_train_function(force=True)`.

        Raises:
            TypeError: The sampler has no `num_sampled`.
            ValueError: S is out of range.
        """
        resized = self.sampler.resized(num_sampled, self.num_classes)
        if self.first_num_sampled is None:
            self.first_num_sampled = self.sampler.size
        self.sampler = resized
