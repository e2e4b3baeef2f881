# SPDX-License-Identifier: Apache-2.0
"""The shared base of the metrics that look at the k best classes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.metrics.base import ExactMetric
from tfx_largeout.statistics import ExactStatistics


class MetricAtK(ExactMetric):
    """A metric of the k best classes, computed from the ranks of the labels alone.

    Args:
        k: Number of classes looked at, at least 1.
        during_training, name, dtype: See `ExactMetric`. The name defaults to `{stem}_at_{k}`.

    Raises:
        TypeError: `k` is not an integer.
        ValueError: `k` is less than 1.
    """

    stem: str

    def __init__(
        self,
        k: int,
        during_training: bool = False,
        name: str | None = None,
        dtype: Any = None,
    ) -> None:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)):
            raise TypeError(f"k must be an integer; got {k!r}")
        if k < 1:
            raise ValueError(f"k must be at least 1; got {k}")
        super().__init__(during_training, name or f"{self.stem}_at_{k}", dtype)
        self.k = int(k)

    def hits(self, statistics: ExactStatistics) -> tf.Tensor:
        """Returns `[N, K]` float64: 1 where a label is among the k best classes, else 0."""
        return tf.cast(statistics.labels.mask & (statistics.target_ranks < self.k), tf.float64)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal metric, as plain values."""
        return {**super().get_config(), "k": self.k}
