# SPDX-License-Identifier: Apache-2.0
"""What the samplers share that draw a fixed number of classes from a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler
from tfx_largeout.samplers.class_distribution import ClassDistribution
from tfx_largeout.samplers.distinct_arrivals import DistinctArrivals


class DistributionSampler(Sampler):
    """S draws from a distribution q over the classes: `Uniform`, `LogUniform`, `Unigram`.

    - With replacement: S independent draws, a class may come several times. E_c = S q_c.
    - `unique`: S different classes, drawn in turn, repeats being skipped. E_c depends on the number
      of tries T, about 1 - exp(-q_c T): see `DistinctArrivals`. S = C: all classes, E = 1.

    The sum over the candidates of z_c / E_c is an unbiased estimate of sum_c z_c in both cases.

    Cost: O(S) a step, N S with `per_example`; with `unique` O(C) where S is so close to C (or q so
    uneven) that S different classes take more than C draws.

    Args:
        num_sampled: S, at least 1; at most C if `unique`.
        unique: Whether the candidates are all different. Default: `not per_example`.
        per_example: Whether each example gets candidates of its own, `[N, S]`. Default False: one
            set `[S]` for the batch.
        first_id: The first class that is drawn. Default 0: all are. Those below, such as ids of
            padding and of what is unknown, are no candidates, and q ranges over the others. Where
            one is a label, its E is 1, as that of a class that is looked at for certain.

    Raises:
        ValueError: `num_sampled` or `first_id` is out of range, or `unique` and `per_example` are
            both True.
    """

    def __init__(
        self,
        num_sampled: int,
        unique: bool | None = None,
        per_example: bool = False,
        first_id: int = 0,
    ) -> None:
        self.num_sampled = integer_argument("num_sampled", num_sampled, at_least=1)
        if unique and per_example:
            raise ValueError(
                "unique must be False for candidates of an example's own (per_example=True), "
                "which are drawn with replacement; got unique=True"
            )
        self.per_example = bool(per_example)
        self.unique = not self.per_example if unique is None else bool(unique)
        self.first_id = integer_argument("first_id", first_id, at_least=0)

    def distribution(self, num_classes: int) -> ClassDistribution:
        """Returns q over C classes, those from `first_id` on."""
        raise NotImplementedError

    def tabulate(self, num_classes: int) -> None:
        if self.first_id >= num_classes:
            raise ValueError(
                f"first_id must be less than num_classes={num_classes}; got {self.first_id}"
            )
        drawn = num_classes - self.first_id
        if self.unique and self.num_sampled > drawn:
            of_which = f" - first_id={self.first_id}" if self.first_id else ""
            raise ValueError(
                f"num_sampled must be at most num_classes={num_classes}{of_which} for unique "
                f"candidates; got {self.num_sampled}"
            )
        self._distribution = self.distribution(drawn)
        if self.unique and self.num_sampled < drawn:
            self._arrivals = DistinctArrivals(self._distribution, self.num_sampled)

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        if not self.unique:
            shape = (
                [tf.shape(hidden)[0], self.num_sampled] if self.per_example else [self.num_sampled]
            )
            return self._with_replacement(shape, labels, seed)
        if self.num_sampled == self._distribution.num_classes:
            every = tf.range(self.first_id, self.num_classes, dtype=tf.int64)
            return Candidates.certain(every, labels)
        return self._without_replacement(labels, seed)

    def log_expected_if_unique(self, ids: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Returns log E of classes for `unique` candidates, float64.

        Args:
            ids: Class ids less `first_id`, int64, in any shape.
            tries: `[]` float64, T.
        """
        return self._arrivals.log_expected(ids, tries)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "num_sampled": self.num_sampled,
            "unique": self.unique,
            "per_example": self.per_example,
            "first_id": self.first_id,
        }

    def _with_replacement(
        self, shape: list[tf.Tensor | int], labels: Labels, seed: tf.Tensor
    ) -> Candidates:
        ids = self._distribution.sample(shape, seed)

        def log_expected(ids: tf.Tensor) -> tf.Tensor:
            return self._distribution.log_probability(ids) + math.log(self.num_sampled)

        return self._candidates(ids, labels, log_expected)

    def _without_replacement(self, labels: Labels, seed: tf.Tensor) -> Candidates:
        ids, tries = self._arrivals.draw(seed)
        return self._candidates(ids, labels, lambda ids: self.log_expected_if_unique(ids, tries))

    def _candidates(
        self, ids: tf.Tensor, labels: Labels, log_expected: Callable[[tf.Tensor], tf.Tensor]
    ) -> Candidates:
        """Returns what was drawn; in `ids`, and to `log_expected`, class `first_id` is 0."""
        of_labels = log_expected(tf.maximum(labels.ids - self.first_id, 0))
        return Candidates(
            ids + self.first_id,
            tf.cast(log_expected(ids), tf.float32),
            tf.where(labels.ids >= self.first_id, tf.cast(of_labels, tf.float32), 0),
        )
