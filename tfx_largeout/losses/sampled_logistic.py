# SPDX-License-Identifier: Apache-2.0
"""SampledLogistic: one against all, with the sum over the others estimated."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.candidate_loss import CandidateLoss, sum_over_candidates
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SampledLogistic(CandidateLoss):
    """A logistic regression a class (one against all), the negative classes by sampling.

    loss = sum_{y in Y} softplus(-o_y) + sum_{d in N(x)} softplus(o_d) / E_d

    An unbiased estimate of the loss over all classes, sum_{y in Y} softplus(-o_y) +
    sum_{c not in Y} softplus(o_c), and so is its gradient: the loss is linear in what is sampled. A
    derivative may be as large as 1 / E. The labels are summed, as the classes are regressions of
    their own. With `class_weights` v the first sum is sum_y v_y softplus(-o_y), and the second one
    is multiplied by the mean of v over the labels.

    Args:
        importance_weights: Whether negatives are divided by E. Default True. False: each weighs 1;
            then it estimates a loss in which the negatives of class c weigh E_c.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    References:
        `tf.nn.sigmoid_cross_entropy_with_logits` summed over classes, which it estimates.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, importance_weights: bool = True, **kwargs: Any) -> None:
        super().__init__(**{"name": "sampled_logistic", **kwargs})
        self.importance_weights = bool(importance_weights)

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        labels, terms = statistics.labels, tf.math.softplus(-statistics.true_logits)
        raised = tf.cast(labels.counts, terms.dtype) * labels.mean(terms)
        lowered = tf.math.softplus(statistics.candidate_logits)
        if self.importance_weights:
            lowered *= tf.exp(-statistics.candidate_log_expected)
        return raised + sum_over_candidates(statistics, statistics.negatives, lowered)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "importance_weights": self.importance_weights}
