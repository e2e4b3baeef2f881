# SPDX-License-Identifier: Apache-2.0
"""NegativeSampling: labels up, a few others down."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.losses.candidate_loss import (
    CandidateLoss,
    mean_over_negatives,
    sum_over_candidates,
)
from tfx_largeout.statistics import CandidateStatistics

_SCALES = ("mean", "sum")


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NegativeSampling(CandidateLoss):
    """Logistic regression of labels against negatives, without regard to expected counts.

    loss = mean_{y in Y} softplus(-o_y) + mean_{d in N(x)} softplus(o_d)

    Its optimum is not that of the likelihood: the logits that it learns are lowered by the log of
    how often the sampler draws a class. Known from word2vec.

    Args:
        negatives: `"mean"` (default, eq. 45): the negatives weigh as much as the label; derivatives
            stay in [-1, 1]. `"sum"` (eq. 43): each weighs as much. Without negatives both are 0.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `negatives` is neither.

    Deviations:
        Several labels: the mean over them.

    References:
        Barber and Botev 2016, eq. 43 to 45. Mikolov and others 2013, Distributed representations of
        words and phrases and their compositionality.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, negatives: str = "mean", **kwargs: Any) -> None:
        super().__init__(**{"name": "negative_sampling", **kwargs})
        self.negatives = choice_argument("negatives", negatives, _SCALES)

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        raised = statistics.labels.mean(tf.math.softplus(-statistics.true_logits))
        lowered = tf.math.softplus(statistics.candidate_logits)
        if self.negatives == "mean":
            return raised + mean_over_negatives(statistics, lowered)
        return raised + sum_over_candidates(statistics, statistics.negatives, lowered)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "negatives": self.negatives}
