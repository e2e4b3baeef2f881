# SPDX-License-Identifier: Apache-2.0
"""ZLoss: a loss of the target's standard score among all logits."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.statistics import SphericalStatistics

_SMALLEST_VARIANCE = 1e-30


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ZLoss(SphericalLoss):
    """The Z-loss of a target's standard score; not the (log Z)^2 penalty of language models.

    Shifting or scaling all logits does not change it. (The penalty that goes by the same name is
    `SoftmaxCrossentropy(log_partition_penalty=...)`.)

    loss = 1/|Y| sum_{c in Y} 1/a softplus(a (b - z_c)),  z_c = (o_c - mu) / sigma,
    mu = s / C,  sigma^2 = q / C - mu^2

    It needs logits that are not all equal: start from random weights. It defines no probabilities.

    Args:
        a: Above 0: how sharply the loss bends at z_c = b. Default 0.1.
        b: The standard score from which a target is good enough. Default 10.
        **kwargs: `reduction`, `name`, `dtype`, as `HeadLoss`. Each example needs a label.

    Raises:
        ValueError: `a` or `b` is out of range.

    References:
        de Brébisson and Vincent 2016, arXiv 1604.08859.
    """

    def __init__(self, a: float = 0.1, b: float = 10.0, **kwargs: Any) -> None:
        super().__init__(**{"name": "z_loss", **kwargs})
        self.a = number_argument("a", a, above=0)
        self.b = number_argument("b", b)

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        mean = statistics.sum_of_logits / statistics.num_classes
        variance = statistics.sum_of_squares / statistics.num_classes - mean**2
        scale = tf.math.rsqrt(tf.maximum(variance, _SMALLEST_VARIANCE))
        z = (statistics.target_logits - mean[:, tf.newaxis]) * scale[:, tf.newaxis]
        return statistics.labels.mean(tf.math.softplus(self.a * (self.b - z)) / self.a)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "a": self.a, "b": self.b}
