# SPDX-License-Identifier: Apache-2.0
"""MRR."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.metrics.base import ExactMetric
from tfx_largeout.statistics import ExactStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class MeanReciprocalRank(ExactMetric):
    """The reciprocal place of the best-ranked label, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        RR = 1 / (1 + min_{l in Y} r_l)

    An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        during_training: Whether to update in training steps, too. Default False.
        name: Default `mean_reciprocal_rank`.
        dtype: Dtype of the result. Default `keras.config.floatx()`.
        ignore_class: Of labels, as `ExactMetric`. Default None: that of the loss.
    """

    def __init__(
        self,
        during_training: bool = False,
        name: str | None = "mean_reciprocal_rank",
        dtype: Any = None,
        ignore_class: int | None = None,
    ) -> None:
        super().__init__(during_training, name, dtype, ignore_class)

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the reciprocal rank and 1 for each example."""
        reciprocals = 1 / tf.cast(statistics.target_ranks + 1, tf.float64)
        # reduce_max over no labels (K = 0) is -inf, hence the zero.
        found = tf.where(statistics.labels.mask, reciprocals, tf.zeros_like(reciprocals))
        best = tf.maximum(tf.reduce_max(found, axis=1), 0.0)
        return best, tf.ones_like(best)
