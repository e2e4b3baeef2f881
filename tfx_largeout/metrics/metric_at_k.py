# SPDX-License-Identifier: Apache-2.0
"""The shared base of the metrics that look at the k best classes."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.metrics.base import ExactMetric
from tfx_largeout.statistics import ExactStatistics


class MetricAtK(ExactMetric):
    """A metric of the k best classes, computed from the ranks of the labels alone.

    Args:
        k: Number of classes looked at, at least 1.
        during_training, name, dtype, ignore_class: See `ExactMetric`. The name defaults to
            `{stem}_at_{k}`.

    Raises:
        ValueError: `k` is not an integer of at least 1.
    """

    stem: str

    def __init__(
        self,
        k: int,
        during_training: bool = False,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
    ) -> None:
        k = integer_argument("k", k, at_least=1)
        super().__init__(during_training, name or f"{self.stem}_at_{k}", dtype, ignore_class)
        self.k = k

    def hits(self, statistics: ExactStatistics) -> tf.Tensor:
        """Returns `[N, K]` float64: 1 where a label is among the k best classes, else 0."""
        return tf.cast(statistics.labels.mask & (statistics.target_ranks < self.k), tf.float64)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal metric, as plain values."""
        return {**super().get_config(), "k": self.k}
