# SPDX-License-Identifier: Apache-2.0
"""CandidateHead: what heads share that are trained by a loss of candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.update_switch import seed_argument, seed_of_step
from tfx_largeout.labels import Labels
from tfx_largeout.samplers import Candidates, Sampler
from tfx_largeout.samplers.base import OutputWeights, with_certain


class CandidateHead(KernelHead):
    """A head with a sampler, which draws the candidates of each step."""

    sampler: Sampler
    explicit_classes: tuple[int, ...]
    seed: int
    index: Any = None

    def set_sampler(
        self, sampler: Sampler, explicit_classes: Sequence[int], seed: int | None
    ) -> None:
        """Sets the arguments of that name, checked."""
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be a Sampler; got {sampler!r}")
        self.sampler = sampler
        self.explicit_classes = _class_ids(explicit_classes, self.num_classes)
        self.seed = seed_argument(seed)

    def set_num_sampled(self, num_sampled: int) -> None:
        """Gives the head a sampler like its own with another number of candidates S.

        It is saved with the head. A training step that was traced before keeps the old one: call
        `model.make_train_function(force=True)`.

        Raises:
            TypeError: The sampler has no `num_sampled`.
            ValueError: S is out of range.
        """
        self.sampler = self.sampler.resized(num_sampled, self.num_classes)

    def step_and_draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns what tells the candidates of the present step from others: see `seed_of_step`."""
        raise NotImplementedError

    def candidates(self, hidden: tf.Tensor, labels: Labels) -> Candidates:
        """Returns the candidates of the present step, explicit classes first.

        Where several workers have the classes, those of an example's own that a sampler finds by W
        are left out whose rows are not here.
        """
        seed = seed_of_step(self.seed, *self.step_and_draw())
        if self.index is not None:
            self.index.build_once(self.kernel, self.bias)
        weights = OutputWeights(self.kernel, self.bias, self.index, self.rows)
        drawn = self.sampler.sample(hidden, labels, seed, weights)
        if not self.explicit_classes:
            return drawn
        explicit = tf.constant(sorted(self.explicit_classes), tf.int64)
        return with_certain(drawn, labels, explicit)


def _class_ids(ids: Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Returns ids as a tuple; refuses what is no set of classes."""
    name = "explicit_classes"
    result = tuple(integer_argument(f"each of {name}", c, at_least=0) for c in ids)
    for c in result:
        if c >= num_classes:
            raise ValueError(f"each of {name} must be less than num_classes={num_classes}; got {c}")
    if len(set(result)) < len(result):
        raise ValueError(f"{name} must not repeat a class; got {ids!r}")
    return result
