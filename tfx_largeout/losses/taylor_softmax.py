# SPDX-License-Identifier: Apache-2.0
"""TaylorSoftmax: the softmax with the exponential cut off after its square."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.statistics import SphericalStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TaylorSoftmax(SphericalLoss):
    """The negative log-likelihood under the Taylor softmax.

    p_c = (1 + o_c + o_c^2 / 2) / (C + s + q / 2),  loss = -1/|Y| sum_{c in Y} log p_c

    The numerator is at least 1/2, at o_c = -1, and grows on both sides of it.

    Args:
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    References:
        de Brébisson and Vincent 2016, arXiv 1511.05042.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{"name": "taylor_softmax", **kwargs})

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        scores = tf.math.log(_score(statistics.target_logits))
        return tf.math.log(_total(statistics)) - statistics.labels.mean(scores)

    def probabilities(self, logits: tf.Tensor, statistics: SphericalStatistics) -> tf.Tensor:
        """Returns (1 + o + o^2 / 2) / (C + s + q / 2)."""
        return _score(logits) / _total(statistics)[:, tf.newaxis]


def _score(logits: tf.Tensor) -> tf.Tensor:
    return 0.5 + 0.5 * (1 + logits) ** 2


def _total(statistics: SphericalStatistics) -> tf.Tensor:
    return statistics.num_classes + statistics.sum_of_logits + statistics.sum_of_squares / 2
