# SPDX-License-Identifier: Apache-2.0
"""Metrics of the ranks of the labels: P@k, R@k, nDCG@k and MRR."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import flag_argument, integer_argument
from tfx_largeout.class_filter import NEVER, Findable
from tfx_largeout.metrics.base import ExactMetric
from tfx_largeout.saving import pack_array
from tfx_largeout.statistics import ExactStatistics


class RankMetric(ExactMetric):
    """A metric that is computed only from the ranks of the labels.

    Args:
        filtered: Whether ranks are among the classes that an example does not exclude (by `head(h,
            exclude=...)` in the model): excluded classes take no rank, and an excluded label is
            never found, but counts as a label. Needs another exact pass, which all filtered metrics
            share. Default False.
        allow: Class ids, a list, a set or an array: ranks are among these only, and other labels
            are never found. Default None: all classes.
        others: As `ExactMetric`.
    """

    def __init__(
        self,
        during_training: bool = False,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        filtered: bool = False,
        allow: Any = None,
    ) -> None:
        super().__init__(during_training, name, dtype, ignore_class)
        self.filtered = flag_argument("filtered", filtered)
        self.findable = Findable.of(allow, None)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, exclude: Any = None
    ) -> None:
        """As `ExactMetric`; with `exclude`, integers `[..., E]`, filtered by these classes."""
        filtered = self.filtered or exclude is not None
        self.add_batch(y_true, y_pred, sample_weight, filtered, exclude, self.findable)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self.filtered:
            config["filtered"] = True
        if self.findable.allow is not None:
            config["allow"] = pack_array(self.findable.allow)
        return config


class MetricAtK(RankMetric):
    """A metric of the k best classes, computed only from the ranks of the labels."""

    stem: str

    def __init__(
        self,
        k: int,
        during_training: bool = False,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        filtered: bool = False,
        allow: Any = None,
    ) -> None:
        k = integer_argument("k", k, at_least=1)
        name = name or f"{self.stem}_at_{k}"
        super().__init__(during_training, name, dtype, ignore_class, filtered, allow)
        self.k = k

    def hits(self, statistics: ExactStatistics) -> tf.Tensor:
        """Returns `[N, K]` float64: 1 where a label is among the k best classes, else 0."""
        return tf.cast(statistics.labels.mask & (statistics.target_ranks < self.k), tf.float64)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "k": self.k}


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
        k: The number of best classes, at least 1.
        name: Default `precision_at_{k}`.
        during_training, dtype, ignore_class: As `metrics.base.ExactMetric`.
        filtered, allow: As `metrics.rank_metrics.RankMetric`.

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


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RecallAtK(MetricAtK):
    """The share of the labels that are among the k best classes, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        R@k = |{l in Y : r_l < k}| / |Y|

    An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        k: The number of best classes, at least 1.
        name: Default `recall_at_{k}`.
        during_training, dtype, ignore_class: As `metrics.base.ExactMetric`.
        filtered, allow: As `metrics.rank_metrics.RankMetric`.

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


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NDCG(MetricAtK):
    """Normalised discounted cumulative gain of the k best classes, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        DCG@k = sum of 1 / log2(r_l + 2) over the l in Y with r_l < k
        nDCG@k = DCG@k / sum_{r=0}^{min(k, |Y|) - 1} 1 / log2(r + 2)

    An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args:
        k: The number of best classes, at least 1.
        name: Default `ndcg_at_{k}`.
        during_training, dtype, ignore_class: As `metrics.base.ExactMetric`.
        filtered, allow: As `metrics.rank_metrics.RankMetric`.

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


@keras.saving.register_keras_serializable(package="tfx_largeout")
class MeanReciprocalRank(RankMetric):
    """The reciprocal rank of the best label, averaged over the examples.

    For the label set `Y` of an example and the rank `r_l` of label `l` (0 is best):

        RR = 1 / (1 + min_{l in Y} r_l)

    An example without labels is left out.

    Cost: O(N K) on top of the exact pass, which all metrics and the loss share.

    Args: As `metrics.rank_metrics.RankMetric`. The name is `mean_reciprocal_rank` by default.
    """

    default_name = "mean_reciprocal_rank"

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the reciprocal rank and 1 for each example."""
        reciprocals = 1 / tf.cast(statistics.target_ranks + 1, tf.float64)
        is_found = statistics.labels.mask & (statistics.target_ranks < NEVER)
        # reduce_max over no labels (K = 0) is -inf, so 0 is added.
        found = tf.where(is_found, reciprocals, tf.zeros_like(reciprocals))
        best = tf.maximum(tf.reduce_max(found, axis=1), 0.0)
        return best, tf.ones_like(best)
