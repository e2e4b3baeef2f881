# SPDX-License-Identifier: Apache-2.0
"""nDCG@k."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.metrics.metric_at_k import MetricAtK
from tfx_largeout.statistics import ExactStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NDCG(MetricAtK):
    """Normalised discounted cumulative gain of the k best classes, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        DCG@k = sum of 1 / log2(r_l + 2) over the l in Y with r_l < k
        nDCG@k = DCG@k / sum_{r=0}^{min(k, |Y|) - 1} 1 / log2(r + 2)

    An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        k: Number of classes looked at, at least 1.
        during_training: Whether to update in training steps, too. Default False.
        name: Default `ndcg_at_{k}`.
        dtype: Dtype of the result. Default `keras.config.floatx()`.
        ignore_class: Of labels, as `ExactMetric`. Default None: that of the loss.

    Raises:
        ValueError: `k` is not an integer of at least 1.

    References:
        Järvelin and Kekäläinen, Cumulated gain-based evaluation of IR techniques, 2002.
        Bhatia et al., The extreme classification repository, 2016.
    """

    stem = "ndcg"

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns nDCG@k and 1 for each example."""
        discounts = 1 / np.log2(np.arange(self.k) + 2)
        best = tf.constant(np.append(0.0, np.cumsum(discounts)))
        ranks = tf.clip_by_value(statistics.target_ranks, 0, self.k - 1)
        gains = self.hits(statistics) * tf.gather(tf.constant(discounts), ranks)
        num_labels = statistics.labels.counts
        ndcg = tf.math.divide_no_nan(
            tf.reduce_sum(gains, axis=1), tf.gather(best, tf.minimum(num_labels, self.k))
        )
        return ndcg, tf.ones_like(ndcg)
