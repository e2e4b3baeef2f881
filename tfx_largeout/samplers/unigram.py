# SPDX-License-Identifier: Apache-2.0
"""Unigram: classes by how often they occur."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.class_counts import (
    check_length,
    class_counts,
    drawable_counts,
    smoothing_argument,
)
from tfx_largeout.samplers.alias_table import AliasTable
from tfx_largeout.samplers.class_distribution import ClassDistribution
from tfx_largeout.samplers.distribution_sampler import DistributionSampler
from tfx_largeout.saving.packed_array import pack_array


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Unigram(DistributionSampler):
    """Candidates by class frequency: q_c = (n_c + a)^power / sum_d (n_d + a)^power.

    `power=1` draws classes as often as they are labels, 0.75 is word2vec's, 0 is `Uniform`.

    Saved with a model, the counts are compressed: up to 4 MB for a million integers, 10 for floats.

    Args:
        counts: `[C]` numbers n_c, finite and at least 0. Those below `first_id` are not looked at.
        num_sampled, unique, per_example, first_id: These are the arguments of
            `DistributionSampler`, which also says costs and errors.
        power: In [0, 1]. Default 1.
        smoothing: a, at least 0. Default None: 0 where all counts are positive; else half of the
            least one above 0, so that classes that have not been seen are drawn, too. (Those that
            are never to be drawn come first: see `first_id`.)

    Raises:
        TypeError: `counts` are not numbers.
        ValueError: A count is negative or not finite, or 0 with a smoothing of 0; `power` or
            `smoothing` is out of range. At `build`: the counts are not C.
    """

    def __init__(
        self,
        counts: Any,
        num_sampled: int,
        power: float = 1.0,
        unique: bool | None = None,
        per_example: bool = False,
        smoothing: float | None = None,
        first_id: int = 0,
    ) -> None:
        super().__init__(num_sampled, unique, per_example, first_id)
        self.counts = class_counts(counts)
        self.smoothing = smoothing_argument(smoothing)
        drawable_counts(self.counts, self.smoothing, self.first_id)  # refuses what can't be drawn
        self.power = number_argument("power", power, at_least=0, at_most=1)

    def tabulate(self, num_classes: int) -> None:
        check_length(self.counts, num_classes)
        super().tabulate(num_classes)

    def distribution(self, num_classes: int) -> ClassDistribution:
        counts = drawable_counts(self.counts, self.smoothing, self.first_id)
        return UnigramDistribution((counts / counts.max()) ** self.power)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "counts": pack_array(self.counts),
            "power": self.power,
            "smoothing": self.smoothing,
        }


class UnigramDistribution(ClassDistribution):
    """q in proportion to weights; log q is a float32 table."""

    def __init__(self, weights: np.ndarray) -> None:
        self.num_classes = weights.size
        self._alias_table = AliasTable(weights)
        log_probability = np.log(weights) - np.log(weights.sum())
        self._log_probability = tf.constant(log_probability.astype(np.float32))

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        return self._alias_table.sample(shape, seed)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.cast(tf.gather(self._log_probability, ids), tf.float64)

    def probabilities(self) -> np.ndarray:
        return np.exp(self._log_probability.numpy().astype(np.float64))
