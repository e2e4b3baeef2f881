# SPDX-License-Identifier: Apache-2.0
"""ComplementarySum: the likelihood, with the sum over the other classes estimated."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.candidate_loss import (
    CandidateLoss,
    candidate_cross_entropy,
    corrected_candidates,
)
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ComplementarySum(CandidateLoss):
    """The negative log-likelihood with the labels summed explicitly, all other classes by sampling.

    loss = log(sum_{y in Y} e^{o_y} + sum_{d in N(x)} e^{o_d} / E_d) - mean_{y in Y} o_y

    The sum in the logarithm is an unbiased estimate of Z (its logarithm is not one of log Z: the
    loss is too small on average, less so the more candidates there are). Because it contains the
    label, the derivative with respect to any logit stays in [-1, 1], and that of a single label
    has the sign of the exact one. With all classes as candidates, E = 1, the loss is exact.

    The expected counts come from the sampler, and with them the paper's two weightings: S draws
    with replacement, E = S q (importance); Bernoulli draws, E = b.

    Args:
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Deviations:
        Several labels: the softmax's target is spread evenly over them. Importance draws range over
        all classes, not over the complement alone; hits are left out, which keeps E exact.

    References:
        Barber and Botev 2016, eq. 15 and 22 to 26; importance eq. 17, Bernoulli eq. 20.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"name": "complementary_sum", **kwargs})

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        return candidate_cross_entropy(
            statistics, statistics.true_logits, corrected_candidates(statistics)
        )
