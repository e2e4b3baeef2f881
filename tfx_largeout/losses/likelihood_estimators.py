# SPDX-License-Identifier: Apache-2.0
"""Losses that estimate the softmax likelihood: the candidates replace the sum over all classes."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.base import PROBABILITIES
from tfx_largeout.losses.candidate_loss import (
    CandidateLoss,
    candidate_cross_entropy,
    corrected_candidates,
    corrected_labels,
    log_sum_exp,
)
from tfx_largeout.losses.margins import MarginLoss
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ComplementarySum(MarginLoss, CandidateLoss):
    """The negative log-likelihood; in Z, labels are exact and the other classes are sampled.

    loss = log(sum_{y in Y} e^{o_y} + sum_{d in N(x)} e^{o_d} / E_d) - mean_{y in Y} o_y

    The sum in the logarithm is an unbiased estimate of Z. (Its logarithm is a biased estimate of
    log Z: the loss is too small on average, but less with more candidates.) Because it contains the
    label, the derivative with respect to any logit stays in [-1, 1], and for a single label it has
    the sign of the exact derivative. With all classes as candidates, E = 1, the loss is exact.

    The sampler's expected counts give the paper's two weightings: S draws with replacement, E = S q
    (importance); Bernoulli draws, E = b.

    Args and errors: as `MarginLoss`.

    Deviations:
        Several labels: the softmax's target is spread evenly over them. Importance draws range over
        all classes, not over the complement alone; hits are left out, which keeps E exact.

    References:
        Barber and Botev 2016, eq. 15 and 22 to 26; importance eq. 17, Bernoulli eq. 20.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        statistics = self.candidates_with_margin(statistics)
        return candidate_cross_entropy(
            statistics, statistics.true_logits, corrected_candidates(statistics)
        )


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ImportanceSampling(CandidateLoss):
    """The negative log-likelihood with all of Z estimated by the candidates: for comparison.

    loss = log(sum_{candidates d} e^{o_d} / E_d) - mean_{y in Y} o_y

    The sum, hits included, is an unbiased estimate of Z, but contains the label only if it was
    drawn. So the estimated probability of the label, e^{-loss}, may exceed 1, the loss has no lower
    bound, and gamma of eq. 14 leaves [-1, 1]. The derivative of the loss with respect to o_y is -1
    whenever the label is not drawn, however likely the label already is. Use `ComplementarySum`, at
    the same cost.

    An example for which no candidate was drawn (`Bernoulli` may draw none) has no estimate: its
    loss and its gradient are 0.

    Args and errors: as `HeadLoss`.

    References:
        Barber and Botev 2016, eq. 12 to 14. Bengio and Senécal 2003, Quick training of
        probabilistic neural nets by importance sampling.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        drawn = tf.broadcast_to(statistics.candidate_ids >= 0, tf.shape(statistics.hits))
        log_sum = log_sum_exp(corrected_candidates(statistics), drawn, statistics.workers)
        loss = log_sum - statistics.labels.mean(statistics.true_logits)
        is_drawn = statistics.workers.any(tf.reduce_any(drawn, axis=1), "drawn")
        return tf.where(is_drawn, loss, 0)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SampledSoftmax(MarginLoss, CandidateLoss):
    """Sampled softmax: over labels and negatives, each logit lowered by log of its expected count.

    loss = log(sum_{y in Y} e^{s_y} + sum_{d in N(x)} e^{s_d}) - mean_{y in Y} s_y,
    s_c = o_c - log E_c

    `tf.nn.sampled_softmax_loss` with `remove_accidental_hits`. It differs from `ComplementarySum`
    in the label's weight, 1 / E_y instead of 1, as if the label had been drawn, too. So the sum is
    a biased estimate of Z, and the logit of a rare label starts -log E_y higher.

    Args and errors: as `MarginLoss`.

    Deviations:
        A hit is removed each time it was drawn; TensorFlow removes it once.

    References:
        Jean, Cho, Memisevic, Bengio 2015, On Using Very Large Target Vocabulary for Neural Machine
        Translation. Barber and Botev 2016, footnote 4.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        statistics = self.candidates_with_margin(statistics)
        return candidate_cross_entropy(
            statistics, corrected_labels(statistics), corrected_candidates(statistics)
        )


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ActiveSetSoftmax(MarginLoss, CandidateLoss):
    """The softmax over labels and negatives, without expected counts.

    loss = log(sum_{y in Y} e^{o_y} + sum_{d in N(x)} e^{o_d}) - mean_{y in Y} o_y

    For distinct candidates it is a lower bound of the exact loss, and close to it if they contain
    the classes of high probability, such as candidates from an index over W. With random
    candidates, prefer `ComplementarySum`: here classes that were not drawn are ignored.

    Args and errors: as `MarginLoss`.

    References:
        Vijayanarasimhan and others 2014, Deep networks with large output spaces. Daghaghi and
        others 2021, A tale of two efficient and informative negative sampling distributions.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        statistics = self.candidates_with_margin(statistics)
        return candidate_cross_entropy(
            statistics, statistics.true_logits, statistics.candidate_logits
        )
