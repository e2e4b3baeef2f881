# SPDX-License-Identifier: Apache-2.0
"""Unigram: classes by how often they occur."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.class_counts import check_length
from tfx_largeout.samplers.alias_table import AliasTable
from tfx_largeout.samplers.class_distribution import ClassDistribution
from tfx_largeout.samplers.distribution_sampler import DistributionSampler
from tfx_largeout.samplers.drawable_counts import drawable_counts
from tfx_largeout.saving.packed_array import pack_array


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Unigram(DistributionSampler):
    """Candidates by class frequency: q_c = n_c^power / sum_d n_d^power.

    `power=1` draws classes as often as they are labels, 0.75 is word2vec's, 0 is `Uniform`.

    Saved with a model, the counts are compressed: up to 4 MB for a million integers, 10 for floats.

    Args:
        counts: `[C]` numbers n_c, positive and finite.
        num_sampled, unique, per_example: These are the arguments of `DistributionSampler`, which
            also says costs and errors.
        power: In [0, 1]. Default 1.

    Raises:
        TypeError: `counts` are not numbers.
        ValueError: A count is not positive and finite, or `power` is out of range. At `build`: the
            counts are not C.
    """

    def __init__(
        self,
        counts: Any,
        num_sampled: int,
        power: float = 1.0,
        unique: bool | None = None,
        per_example: bool = False,
    ) -> None:
        super().__init__(num_sampled, unique, per_example)
        self.counts = drawable_counts(counts)
        self.power = number_argument("power", power, at_least=0, at_most=1)

    def tabulate(self, num_classes: int) -> None:
        check_length(self.counts, num_classes)
        super().tabulate(num_classes)

    def distribution(self, num_classes: int) -> ClassDistribution:
        return UnigramDistribution((self.counts / self.counts.max()) ** self.power)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "counts": pack_array(self.counts), "power": self.power}


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
