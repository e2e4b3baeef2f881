# SPDX-License-Identifier: Apache-2.0
"""P@k."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.metrics.metric_at_k import MetricAtK
from tfx_largeout.statistics import ExactStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class PrecisionAtK(MetricAtK):
    """The share of the k best classes that are labels, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        P@k = |{l in Y : r_l < k}| / k

    An example without labels is left out. It divides by k even if k > C or k > |Y|.

    Deviations:
        The scripts of the extreme classification repository count examples without labels as 0.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        k: Number of classes looked at, at least 1.
        during_training: Whether to update in training steps, too. Default False.
        name: Default `precision_at_{k}`.
        dtype: Dtype of the result. Default `keras.config.floatx()`.
        ignore_class: Of labels, as `ExactMetric`. Default None: that of the loss.

    Raises:
        ValueError: `k` is not an integer of at least 1.

    References:
        Bhatia et al., The extreme classification repository, 2016.
    """

    stem = "precision"

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns P@k and 1 for each example."""
        precision = tf.reduce_sum(self.hits(statistics), axis=1) / self.k
        return precision, tf.ones_like(precision)
