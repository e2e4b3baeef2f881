# SPDX-License-Identifier: Apache-2.0
"""The exact softmax cross-entropy."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.metrics.base import ExactMetric
from tfx_largeout.statistics import ExactStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ExactLoss(ExactMetric):
    """The exact softmax cross-entropy in nats, averaged over the examples.

    The target distribution is uniform over the label set `Y` of an example with logits `o`:

        L = log sum_c exp(o_c) - 1 / |Y| sum_{l in Y} o_l

    It is the same number for every head, whatever loss trained it, and so compares heads whose
    training losses do not compare. An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        during_training: Whether to update in training steps, too. Default False.
        name: Default `exact_loss`.
        dtype: Dtype of the result. Default `keras.config.floatx()`.
        ignore_class: Of labels, as `ExactMetric`. Default None: that of the loss.
    """

    _direction = "down"

    def __init__(
        self,
        during_training: bool = False,
        name: str | None = "exact_loss",
        dtype: Any = None,
        ignore_class: int | None = None,
    ) -> None:
        super().__init__(during_training, name, dtype, ignore_class)

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss and 1 for each example."""
        mean_logit = statistics.labels.mean(tf.cast(statistics.target_logits, tf.float64))
        loss = tf.cast(statistics.log_partition, tf.float64) - mean_logit
        return loss, tf.ones_like(loss)
