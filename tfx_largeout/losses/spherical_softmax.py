# SPDX-License-Identifier: Apache-2.0
"""SphericalSoftmax: probabilities in proportion to the squares of the logits."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.statistics import SphericalStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SphericalSoftmax(SphericalLoss):
    """The negative log-likelihood under the spherical softmax.

    p_c = (o_c^2 + epsilon) / (q + C epsilon),  loss = -1/|Y| sum_{c in Y} log p_c

    A class is likely if its logit is far from 0 on either side, and at o = 0 the gradient of the
    target is 0. So that the order of the logits is that of the probabilities, start from positive
    logits: `FactoredHead(..., use_bias=True, bias_initializer="ones")`.

    Args:
        epsilon: Above 0. Default 1e-3. The smaller, the steeper the loss is around o = 0.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `epsilon` is out of range.

    References:
        Vincent, de Brébisson, Bouthillier 2015, arXiv 1412.7091; de Brébisson and Vincent 2016,
        arXiv 1511.05042.
    """

    def __init__(self, epsilon: float = 1e-3, **kwargs: Any) -> None:
        super().__init__(**{"name": "spherical_softmax", **kwargs})
        self.epsilon = number_argument("epsilon", epsilon, above=0)

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        scores = tf.math.log(statistics.target_logits**2 + self.epsilon)
        return tf.math.log(self._total(statistics)) - statistics.labels.mean(scores)

    def probabilities(self, logits: tf.Tensor, statistics: SphericalStatistics) -> tf.Tensor:
        """Returns (o^2 + epsilon) / (q + C epsilon)."""
        return (logits**2 + self.epsilon) / self._total(statistics)[:, tf.newaxis]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "epsilon": self.epsilon}

    def _total(self, statistics: SphericalStatistics) -> tf.Tensor:
        return statistics.sum_of_squares + statistics.num_classes * self.epsilon
