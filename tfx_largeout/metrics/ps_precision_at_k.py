# SPDX-License-Identifier: Apache-2.0
"""PSP@k, and the propensity model of Jain, Prabhu and Varma (2016)."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.heads.base import head_output
from tfx_largeout.metrics.rank_metrics import MetricAtK
from tfx_largeout.saving import pack_array, unpack_array
from tfx_largeout.statistics import ExactStatistics


def propensities(
    label_counts: Any, num_examples: int, a: float = 0.55, b: float = 1.5
) -> np.ndarray:
    """Estimates the probability that a relevant label was annotated, from its training count.

    For a label with `N_l` of the N training examples:

        p_l = 1 / (1 + c exp(-a log(N_l + b))),    c = (log N - 1) (b + 1)^a

    The paper's constants: a = 0.5, b = 0.4 for Wikipedia; a = 0.6, b = 2.6 for Amazon; a = 0.55,
    b = 1.5 otherwise.

    Cost: O(C).

    Args:
        label_counts: `[C]` integers, the number of training examples that have each label.
        num_examples: Number N of training examples, at least 3 (the model needs log N > 1).
        a: Not negative. Default 0.55.
        b: Positive. Default 1.5.

    Returns:
        `[C]` float64 propensities in (0, 1).

    Raises:
        TypeError: `label_counts` are not integers.
        ValueError: A value breaks its rule.

    References:
        Jain, Prabhu and Varma, Extreme multi-label loss functions for recommendation, tagging,
        ranking and other missing label applications, 2016, equation 2.
    """
    counts = np.asarray(label_counts)
    if counts.ndim != 1 or counts.size == 0:
        raise ValueError(f"label_counts must have shape [C], C > 0; got shape {counts.shape}")
    if not np.issubdtype(counts.dtype, np.integer):
        raise TypeError(f"label_counts must be integers; got {counts.dtype}")
    if counts.min() < 0:
        raise ValueError(
            f"label_counts must not be negative; got {counts.min()} for label {counts.argmin()}"
        )
    num_examples = integer_argument("num_examples", num_examples, at_least=3)
    if counts.max() > num_examples:
        raise ValueError(
            f"label_counts must not exceed num_examples={num_examples}; "
            f"got {counts.max()} for label {counts.argmax()}"
        )
    a = number_argument("a", a, at_least=0)
    b = number_argument("b", b, above=0)
    c = (math.log(num_examples) - 1) * (b + 1) ** a
    return 1 / (1 + c * (counts + b) ** -a)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class PSPrecisionAtK(MetricAtK):
    """Propensity-scored precision: a hit on a rare label counts more.

    With the propensities `p_l` (see `propensities`), the label set `Y_n` of example n and the ranks
    `r_nl` (0 is best), over all examples n:

        PSP@k = sum_n sum of 1 / p_l over the l in Y_n with r_nl < k
                / sum_n sum of the min(k, |Y_n|) largest 1 / p_l with l in Y_n

    It is a ratio of sums over the data set, not a mean of ratios, as in the scripts of the extreme
    classification repository. So an example without labels changes nothing.

    Cost: O(N K log K) and the exact pass, which all metrics and the loss share; 8 bytes per class
    of memory.

    Args:
        k: The number of best classes, at least 1.
        label_counts: `[C]` integers, the number of training examples that have each label.
        num_examples: Number of training examples.
        a: The propensity model's A, not negative. Default 0.55.
        b: The propensity model's B, positive. Default 1.5.
        name: Default `ps_precision_at_{k}`.
        during_training, dtype, ignore_class: As `metrics.base.ExactMetric`.
        filtered, allow: As `metrics.rank_metrics.RankMetric`.

    Raises:
        TypeError: `label_counts` are not integers.
        ValueError: A value breaks its rule, or the length of `label_counts` is not C.

    References:
        Jain, Prabhu and Varma, Extreme multi-label loss functions for recommendation, tagging,
        ranking and other missing label applications, 2016.
        Bhatia et al., The extreme classification repository, 2016.
    """

    stem = "ps_precision"

    def __init__(
        self,
        k: int,
        label_counts: Any,
        num_examples: int,
        a: float = 0.55,
        b: float = 1.5,
        during_training: bool = False,
        name: str | None = None,
        dtype: Any = None,
        ignore_class: int | None = None,
        filtered: bool = False,
        allow: Any = None,
    ) -> None:
        super().__init__(k, during_training, name, dtype, ignore_class, filtered, allow)
        weights = 1 / propensities(label_counts, num_examples, a, b)
        self.label_counts = np.array(label_counts, np.int64)
        self.num_examples = int(num_examples)
        self.a = float(a)
        self.b = float(b)
        with tf.init_scope():  # an eager tensor: graphs capture it and do not copy it
            self._inverse_propensities = tf.constant(weights)

    def update_state(
        self, y_true: Any, y_pred: Any, sample_weight: Any = None, exclude: Any = None
    ) -> None:
        y_pred = tf.convert_to_tensor(y_pred)
        output = head_output(y_pred)
        num_classes = y_pred.shape[-1] if output is None else output.head.num_classes
        if num_classes != self.label_counts.size:
            raise ValueError(
                f"label_counts must have one entry per class ({num_classes}); "
                f"got {self.label_counts.size}"
            )
        super().update_state(y_true, y_pred, sample_weight, exclude)

    def example_ratio(self, statistics: ExactStatistics) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the gain and the best attainable gain of each example."""
        weights = tf.gather(self._inverse_propensities, statistics.labels.safe_ids)
        gains = self.hits(statistics) * weights
        attainable = tf.where(statistics.labels.mask, weights, tf.zeros_like(weights))
        best = tf.sort(attainable, axis=1, direction="DESCENDING")[:, : self.k]
        return tf.reduce_sum(gains, axis=1), tf.reduce_sum(best, axis=1)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "label_counts": pack_array(self.label_counts),
            "num_examples": self.num_examples,
            "a": self.a,
            "b": self.b,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> PSPrecisionAtK:
        return cls(**{**config, "label_counts": unpack_array(config["label_counts"])})
