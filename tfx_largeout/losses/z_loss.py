# SPDX-License-Identifier: Apache-2.0
"""ZLoss: a loss of the target's standard score among all logits."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.statistics import SphericalStatistics

_SMALLEST_VARIANCE = 1e-30
_ROUNDING = 32  # what rounding may leave of q / C - mu^2, in units of the last place of q / C


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ZLoss(SphericalLoss):
    """The Z-loss of a target's standard score; not the (log Z)^2 penalty of language models.

    Shifting or scaling all logits does not change it, but for rounding. (The penalty that goes by
    the same name is `SoftmaxCrossentropy(log_partition_penalty=...)`.)

    loss = 1/|Y| sum_{c in Y} 1/a softplus(a (b - z_c)),  z_c = (o_c - mu) / sigma,
    mu = s / C,  sigma^2 = q / C - mu^2

    It needs logits that are not all equal: start from random weights. It defines no probabilities.
    sigma^2 is a difference of sums: its relative error is that of the dtype times (mu / sigma)^2.
    In float32 sigma is taken for no less than sqrt(q / C) / 512, so that shifted logits have their
    loss while |mu| is well below 500 sigma, and beyond that a bounded one.

    Args:
        a: Above 0: how sharply the loss bends at z_c = b. Default 0.1.
        b: The standard score from which a target is good enough. Default 10.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

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
        square = statistics.sum_of_squares / statistics.num_classes
        least = _ROUNDING * np.finfo(square.dtype.as_numpy_dtype).eps * square
        variance = tf.maximum(square - mean**2, tf.maximum(least, _SMALLEST_VARIANCE))
        scale = tf.math.rsqrt(variance)
        z = (statistics.target_logits - mean[:, tf.newaxis]) * scale[:, tf.newaxis]
        return statistics.labels.mean(tf.math.softplus(self.a * (self.b - z)) / self.a)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "a": self.a, "b": self.b}
