# SPDX-License-Identifier: Apache-2.0
"""The samplers that draw a fixed number of classes from a distribution."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, flag_argument, integer_argument, number_argument
from tfx_largeout.class_counts import (
    check_length,
    class_counts,
    drawable_counts,
    smoothing_argument,
)
from tfx_largeout.devices import host_if
from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler
from tfx_largeout.samplers.class_distribution import (
    ClassDistribution,
    LogUniformDistribution,
    UniformDistribution,
    UnigramDistribution,
)
from tfx_largeout.samplers.distinct_arrivals import DistinctArrivals

_MOST_ON_HOST = 2**14
"""The largest number of draws on the host, which take one core about 2 ms."""


class DistributionSampler(Sampler):
    """S draws from a distribution q over the classes: `Uniform`, `LogUniform`, `Unigram`.

    - With replacement: S independent draws, a class may repeat. E_c = S q_c.
    - `unique`: S distinct classes, drawn in turn; repeats are skipped. E_c depends on the number of
      tries T, about 1 - exp(-q_c T): see `DistinctArrivals`. S = C: all classes, E = 1.

    The sum over the candidates of z_c / E_c is an unbiased estimate of sum_c z_c in both cases.

    Cost: O(S) per step, N S with `per_example`; with `unique` O(C) if S is so close to C (or q so
    uneven) that S distinct classes take more than C draws.

    Args:
        num_sampled: S, at least 1; at most C if `unique`.
        unique: Whether all candidates are distinct. Default: `not per_example`.
        per_example: Whether each example gets separate candidates, `[N, S]`. Default False: one
            set `[S]` for the batch.
        first_id: The first class that is drawn. Default 0. Classes below it, such as padding and
            unknown words, are never candidates, and q is a distribution over the others. If such a
            class is a label, its E is 1.

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
                "unique must be False for candidates per example (per_example=True), "
                "which are drawn with replacement; got unique=True"
            )
        self.per_example = flag_argument("per_example", per_example)
        self.unique = not self.per_example if unique is None else flag_argument("unique", unique)
        self.first_id = integer_argument("first_id", first_id, at_least=0)

    def distribution(self, num_classes: int) -> ClassDistribution:
        """Returns q over the C classes from `first_id` on."""
        raise NotImplementedError

    def tabulate(self, num_classes: int) -> None:
        if self.first_id >= num_classes:
            raise ValueError(
                f"first_id must be less than num_classes={num_classes}; got {self.first_id}"
            )
        drawn = num_classes - self.first_id
        if self.unique:
            sizes = self.num_sampled, num_classes, self.first_id
            at_most_classes("num_sampled", *sizes, " for unique candidates")
        few = not self.per_example and self.num_sampled <= _MOST_ON_HOST
        with host_if(few):
            self._distribution = self.distribution(drawn)
        if self.unique and self.num_sampled < drawn:
            self._arrivals = DistinctArrivals(self._distribution, self.num_sampled)
            few &= self._arrivals.block is not None
        self._on_host = few

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        with host_if(self._on_host):
            return self._draw(hidden, labels, seed)

    def _draw(self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor) -> Candidates:
        if not self.unique:
            rows = [tf.shape(hidden)[0]] if self.per_example else []
            ids = self._distribution.sample([*rows, self.num_sampled], seed)
            return self._candidates(ids, labels, self._log_expected_of_repeats)
        if self.num_sampled == self._distribution.num_classes:
            every = tf.range(self.first_id, self.num_classes, dtype=tf.int64)
            return Candidates.certain(every, labels)
        ids, tries = self._arrivals.draw(seed)
        return self._candidates(ids, labels, lambda ids: self.log_expected_if_unique(ids, tries))

    def log_expected_if_unique(self, ids: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Returns log E of `unique` candidates (ids minus `first_id`) after T tries, float64."""
        return self._arrivals.log_expected(ids, tries)

    def _log_expected_of_repeats(self, ids: tf.Tensor) -> tf.Tensor:
        return self._distribution.log_probability(ids) + math.log(self.num_sampled)

    def _candidates(
        self, ids: tf.Tensor, labels: Labels, log_expected: Callable[[tf.Tensor], tf.Tensor]
    ) -> Candidates:
        """Returns candidates; in `ids` and for `log_expected`, class `first_id` is 0."""
        of_labels = log_expected(tf.maximum(labels.ids - self.first_id, 0))
        return Candidates(
            ids + self.first_id,
            tf.cast(log_expected(ids), tf.float32),
            tf.where(labels.ids >= self.first_id, tf.cast(of_labels, tf.float32), 0),
        )


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Uniform(DistributionSampler):
    """Candidates from the uniform distribution: q_c = 1 / C, always E_c = S / C.

    With `first_id`, C - first_id replaces C.

    Args, cost and errors: as `DistributionSampler`.

    Deviations:
        `unique` candidates are a simple random sample: each class is in it with probability S / C =
        E, independent of the number of tries.
    """

    def distribution(self, num_classes: int) -> ClassDistribution:
        return UniformDistribution(num_classes)

    def log_expected_if_unique(self, ids: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        probability = self.num_sampled / self._distribution.num_classes
        return tf.fill(tf.shape(ids), tf.constant(math.log(probability), tf.float64))


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LogUniform(DistributionSampler):
    """Candidates from the log-uniform distribution: the lower the id, the likelier.

    q_c = log((c + 2) / (c + 1)) / log(C + 1), TensorFlow's `log_uniform_candidate_sampler`. Use it
    only if ids are sorted by falling frequency.

    If the first ids are padding and unknown words, leave them out with `first_id`: q is then as
    above over C - first_id classes, with ids counted from there.

        sampler = LogUniform(1000, first_id=3)

    Args, cost and errors: as `DistributionSampler`.
    """

    def distribution(self, num_classes: int) -> ClassDistribution:
        return LogUniformDistribution(num_classes)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Unigram(DistributionSampler):
    """Candidates by class frequency: q_c = (n_c + a)^power / sum_d (n_d + a)^power.

    `power=1` draws classes as often as they are labels, 0.75 is word2vec's, 0 is `Uniform`.

    In a saved model the counts are compressed: up to 4 MB per million integers, 10 MB for floats.

    Args:
        counts: `[C]` numbers n_c, finite and at least 0. Counts below `first_id` are not used.
        num_sampled, unique, per_example, first_id: As `DistributionSampler`, also for cost and
            errors.
        power: In [0, 1]. Default 1.
        smoothing: a, at least 0. Default None: 0 if all counts are positive; else half of the
            smallest positive count, so that unseen classes are drawn, too. (Give classes that must
            never be drawn the first ids: see `first_id`.)

    Raises:
        TypeError: `counts` are not numbers.
        ValueError: A count is negative or not finite, or 0 with a smoothing of 0; `power` or
            `smoothing` is out of range. At `build`: there are not C counts.
    """

    bytes_a_class: ClassVar[int] = 12  # threshold, alias, log q

    def __init__(
        self,
        counts: Any,
        num_sampled: int,
        power: float = 1.0,
        unique: bool | None = None,
        per_example: bool = False,
        smoothing: float | None = None,
        first_id: int = 0,
    ) -> None:
        super().__init__(num_sampled, unique, per_example, first_id)
        self.counts = class_counts(counts)
        self.smoothing = smoothing_argument(smoothing)
        drawable_counts(self.counts, self.smoothing, self.first_id)  # raises for bad counts
        self.power = number_argument("power", power, at_least=0, at_most=1)

    def tabulate(self, num_classes: int) -> None:
        check_length(self.counts, num_classes)
        super().tabulate(num_classes)

    def distribution(self, num_classes: int) -> ClassDistribution:
        counts = drawable_counts(self.counts, self.smoothing, self.first_id)
        return UnigramDistribution((counts / counts.max()) ** self.power)
