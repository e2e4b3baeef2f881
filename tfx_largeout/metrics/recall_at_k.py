# SPDX-License-Identifier: Apache-2.0
"""R@k."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.metrics.metric_at_k import MetricAtK
from tfx_largeout.statistics import ExactStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RecallAtK(MetricAtK):
    """The share of the labels that are among the k best classes, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        R@k = |{l in Y : r_l < k}| / |Y|

    An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        k: Number of classes looked at, at least 1.
        during_training: Whether to update in training steps, too. Default False.
        name: Default `recall_at_{k}`.
        dtype: Dtype of the result. Default `keras.config.floatx()`.
        ignore_class: Of labels, as `ExactMetric`. Default None: that of the loss.

    Raises:
        ValueError: `k` is not an integer of at least 1.
    """

    stem = "recall"

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns R@k and 1 for each example."""
        found = tf.reduce_sum(self.hits(statistics), axis=1)
        num_labels = tf.cast(statistics.labels.counts, tf.float64)
        recall = tf.math.divide_no_nan(found, num_labels)
        return recall, tf.ones_like(recall)
