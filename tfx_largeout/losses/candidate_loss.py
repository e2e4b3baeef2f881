# SPDX-License-Identifier: Apache-2.0
"""The base of the losses that use candidate classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.workers import ALONE, Workers
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.ops.exact.logit_blocks import NO_LOGIT
from tfx_largeout.statistics import CandidateStatistics

_SMALLEST_SUM = 1e-30  # the value of a sum without terms


class CandidateLoss(HeadLoss):
    """An estimator: a function of the logits of the labels and of S candidate classes.

    Notation of the subclasses: o logits, Y the labels of an example, y one of them, N(x) the
    negatives (candidates that are not labels of the example), E_d the expected count of class d
    among the candidates, C classes.

    In evaluation all of them are the exact softmax cross-entropy log Z - mean_y o_y over all C
    classes, so that estimators can be compared: their training losses are on different scales.
    `from_statistics` returns a finite value for an example without labels. For several labels, a
    loss is the mean over them, unless stated otherwise.

    A subclass implements `from_statistics`. If the classes are spread over workers, each has some
    of the candidates; a subclass that merges sums over candidates, as the functions below do, sets
    `sums_over_workers = True`.

    References:
        Barber and Botev 2016, Dealing with a large number of classes: Likelihood, Discrimination or
        Ranking? Equations are numbered as there.
    """

    trains_on: type = CandidateStatistics


def corrected_candidates(statistics: CandidateStatistics) -> tf.Tensor:
    """Returns o_d - log E_d for the candidates, `[N, S]`."""
    return statistics.candidate_logits - statistics.candidate_log_expected


def corrected_labels(statistics: CandidateStatistics) -> tf.Tensor:
    """Returns o_y - log E_y for the labels, `[N, K]`."""
    return statistics.true_logits - statistics.true_log_expected


def candidate_cross_entropy(
    statistics: CandidateStatistics, true_scores: tf.Tensor, candidate_scores: tf.Tensor
) -> tf.Tensor:
    """Returns the cross-entropy of the labels in a softmax over labels and negatives.

    log(sum_{y in Y} e^{s_y} + sum_{d in N(x)} e^{s_d}) - mean_y s_y, `[N]`, from s `[N, K]` of the
    labels and `[N, S]` of the candidates; anything finite for an example without labels.
    """
    labels = tf.where(statistics.labels.mask, true_scores, NO_LOGIT)
    negatives = log_sum_exp(candidate_scores, statistics.negatives, statistics.workers)
    log_sum = tf.reduce_logsumexp(tf.concat([labels, negatives[:, tf.newaxis]], axis=1), axis=1)
    return log_sum - statistics.labels.mean(true_scores)


@tf.custom_gradient
def _log_sum_exp(scores: tf.Tensor, mask: tf.Tensor) -> tuple[tf.Tensor, Any]:
    scores = tf.where(mask, scores, NO_LOGIT)
    largest = tf.maximum(tf.reduce_max(scores, axis=1, keepdims=True), NO_LOGIT)
    terms = tf.exp(scores - largest)
    total = tf.maximum(tf.reduce_sum(terms, axis=1, keepdims=True), _SMALLEST_SUM)

    def gradient(upstream: tf.Tensor) -> tuple[tf.Tensor, None]:
        return terms * (upstream[:, tf.newaxis] / total), None

    return tf.squeeze(largest + tf.math.log(total), axis=1), gradient


def log_sum_exp(scores: tf.Tensor, mask: tf.Tensor, workers: Workers = ALONE) -> tf.Tensor:
    """Returns log sum_j e^{scores_j} over the j of all workers where `mask` is True.

    The result is `[N]`, the same on all workers; about `NO_LOGIT` if the mask is False everywhere.
    The hand-written gradient makes fewer passes over `[N, S]`, which take most of a loss's time,
    than TensorFlow's.
    """
    return workers.log_sum_exp(_log_sum_exp(scores, mask), "log_sum")


def sum_over(mask: tf.Tensor, values: tf.Tensor) -> tf.Tensor:
    """Returns the sum over the last axis of the values where `mask` is True."""
    return tf.reduce_sum(tf.where(mask, values, 0), axis=-1)


def sum_over_candidates(
    statistics: CandidateStatistics, mask: tf.Tensor, values: tf.Tensor
) -> tf.Tensor:
    """Returns the sum of `[..., S]` over the candidates of all workers where `mask` is True."""
    return statistics.workers.sum(sum_over(mask, values), "candidates")


def mean_over_negatives(statistics: CandidateStatistics, values: tf.Tensor) -> tf.Tensor:
    """Returns the mean of `[N, S]` or `[N, K, S]` over the negatives of all workers; 0 for none."""
    negatives = statistics.negatives
    if values.shape.rank == 3:
        negatives = negatives[:, tf.newaxis]
    counts = tf.reduce_sum(tf.cast(negatives, values.dtype), axis=-1)
    counts = statistics.workers.sum(counts, "negatives")
    return tf.math.divide_no_nan(sum_over_candidates(statistics, negatives, values), counts)
