# SPDX-License-Identifier: Apache-2.0
"""The exact softmax cross-entropy, and its exponential."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.metrics.base import ExactMetric
from tfx_largeout.statistics import ExactStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ExactLoss(ExactMetric):
    """The exact softmax cross-entropy in nats, averaged over the examples.

    The target distribution is uniform over the label set `Y` of an example with logits `o`:

        L = log sum_c exp(o_c) - 1 / |Y| sum_{l in Y} o_l

    For labels with values (soft labels) it is proportional to the values above 0.

    It is the same function for every head and training loss, so it can compare heads whose training
    losses can't be compared. An example without labels is left out.

    Cost: O(N K) and the exact pass, which all metrics and the loss share.

    Args: As `metrics.base.ExactMetric`. The name is `exact_loss` by default.
    """

    default_name = "exact_loss"
    _direction = "down"

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the loss and 1 for each example."""
        mean_logit = statistics.labels.mean(tf.cast(statistics.target_logits, tf.float64))
        loss = tf.cast(statistics.log_partition, tf.float64) - mean_logit
        return loss, tf.ones_like(loss)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Perplexity(ExactLoss):
    """The exponential of the mean exact softmax cross-entropy: `exp(ExactLoss)`.

    Cost: O(N K) and the exact pass, which all metrics and the loss share.

    Args: As `ExactLoss`. The name is `perplexity` by default.
    """

    default_name = "perplexity"

    def ratio(self) -> tf.Tensor:
        """Returns the perplexity so far, a float64 scalar; NaN if nothing was counted."""
        return keras.ops.exp(super().ratio())
