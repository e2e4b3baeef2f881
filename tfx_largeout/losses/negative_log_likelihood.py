# SPDX-License-Identifier: Apache-2.0
"""NegativeLogLikelihood: the loss of a head that knows the probability of a class."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import LogProbabilityStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NegativeLogLikelihood(HeadLoss):
    """The negative log-likelihood, for heads that give `LogProbabilityStatistics`.

    loss = -1/|Y| sum_{c in Y} log p(c | h): the target distribution is spread evenly over the
    labels Y of the example.

    It is the same number in evaluation, where it is the cross-entropy of the probabilities
    exp(o_c) / Z of any head.

    Args and errors: as `HeadLoss`.
    """

    trains_on: type = LogProbabilityStatistics

    def from_statistics(self, statistics: LogProbabilityStatistics) -> tf.Tensor:
        return -statistics.labels.mean(statistics.target_log_probabilities)
