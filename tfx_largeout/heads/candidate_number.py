# SPDX-License-Identifier: Apache-2.0
"""CandidateNumber: what heads share whose number of candidates may change in training."""

from __future__ import annotations

from tfx_largeout.samplers import Sampler


class CandidateNumber:
    """A part of heads with a `sampler`, for another number of candidates S."""

    sampler: Sampler
    num_classes: int

    def set_num_sampled(self, num_sampled: int) -> None:
        """Gives the head a sampler like its own with another number of candidates S.

        It is saved with the head. A training step that was traced before keeps the old one: call
        `model.make_train_function(force=True)`.

        Raises:
            TypeError: The sampler has no `num_sampled`.
            ValueError: S is out of range.
        """
        self.sampler = self.sampler.resized(num_sampled, self.num_classes)
