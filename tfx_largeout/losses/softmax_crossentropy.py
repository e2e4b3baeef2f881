# SPDX-License-Identifier: Apache-2.0
"""SoftmaxCrossentropy: the exact softmax loss."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.statistics import SoftmaxStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SoftmaxCrossentropy(HeadLoss):
    """The exact softmax cross-entropy, for heads that give `SoftmaxStatistics`.

    loss = log Z - 1/|Y| sum_{c in Y} o_c, with log Z = log sum_c exp(o_c): the target distribution
    is spread evenly over the labels Y of the example.

    Args and errors: as `HeadLoss`. Each example needs a label.
    """

    trains_on: ClassVar[type] = SoftmaxStatistics

    def from_statistics(self, statistics: SoftmaxStatistics) -> tf.Tensor:
        return statistics.log_partition - statistics.labels.mean(statistics.target_logits)
