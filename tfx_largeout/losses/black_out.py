# SPDX-License-Identifier: Apache-2.0
"""BlackOut: a weighted softmax that discriminates the label from each negative."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.base import PROBABILITIES
from tfx_largeout.losses.candidate_loss import (
    NO_LOGIT,
    CandidateLoss,
    corrected_candidates,
    corrected_labels,
    log_sum_exp,
)
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class BlackOut(CandidateLoss):
    """BlackOut: the label should be likely, each negative unlikely, in a softmax over both.

    loss = mean_{y in Y} [-log p_y - sum_{d in N(x)} log(1 - p_d)],
    p_c = e^{s_c} / (e^{s_y} + sum_{d in N(x)} e^{s_d}),  s_c = o_c - log E_c

    log(1 - p_d) is computed as log1p(-p_d) where p_d <= 1/2. Only the largest negative may have a
    larger p_d; then it is the log of the others' sum minus the log of the whole sum.

    Cost: O(N K S) time and memory.

    Args and errors: as `HeadLoss`.

    Deviations:
        Several labels: the mean over them, each against only the negatives. The paper's weight is 1
        / Q(c), with a distribution Q; E = S Q gives the same p. A class that was drawn twice counts
        as two negatives.

    References:
        Barber and Botev 2016, eq. 46 and 47. Ji, Vishwanathan, Satish, Anderson, Dubey 2016,
        BlackOut: Speeding up recurrent neural network language models with very large vocabularies.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        label = corrected_labels(statistics)
        scores = tf.where(statistics.negatives, corrected_candidates(statistics), NO_LOGIT)
        # A column that is not a class, so that a largest one exists even without candidates.
        scores = tf.pad(scores, [[0, 0], [0, 1]], constant_values=NO_LOGIT)
        place = tf.argmax(scores, axis=1)
        largest, workers = tf.gather(scores, place, axis=1, batch_dims=1), statistics.workers
        largest, place = workers.largest(largest, place, "largest")
        is_rest = tf.one_hot(place, tf.shape(scores)[1], on_value=False, off_value=True)
        rest = tf.where(is_rest, scores, NO_LOGIT)

        log_rest = _log_sum(label, log_sum_exp(scores, is_rest, workers)[:, tf.newaxis])
        log_all = _log_sum(log_rest, largest[:, tf.newaxis])
        shared = workers.share(log_all, "log_all")
        probabilities = tf.exp(rest[:, tf.newaxis] - shared[:, :, tf.newaxis])
        rejected = workers.sum(tf.reduce_sum(tf.math.log1p(-probabilities), axis=-1), "rejected")
        return statistics.labels.mean(log_all - label - (rejected + log_rest - log_all))


def _log_sum(left: tf.Tensor, right: tf.Tensor) -> tf.Tensor:
    """Returns log(e^left + e^right) of shapes that broadcast."""
    return left + tf.math.softplus(right - left)
