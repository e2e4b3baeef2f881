# SPDX-License-Identifier: Apache-2.0
"""LogUniform: ids by falling frequency, Zipf's law, in closed form."""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.samplers.class_distribution import ClassDistribution
from tfx_largeout.samplers.distribution_sampler import DistributionSampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LogUniform(DistributionSampler):
    """Candidates from the log-uniform distribution: the lower the id, the likelier.

    q_c = log((c + 2) / (c + 1)) / log(C + 1), TensorFlow's `log_uniform_candidate_sampler`. It fits
    data whose ids are sorted by falling frequency, and is wrong for any other order.

    Where the first ids are padding and unknown words, `first_id` leaves them out: with ids counted
    from there, q is as above, over C - first_id classes.

        sampler = LogUniform(1000, first_id=3)

    Args, cost and errors: as `DistributionSampler`.
    """

    def distribution(self, num_classes: int) -> ClassDistribution:
        return LogUniformDistribution(num_classes)


class LogUniformDistribution(ClassDistribution):
    """q_c = log((c + 2) / (c + 1)) / log(C + 1), drawn as floor((C + 1)^u) - 1."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes
        self._log_range = math.log(num_classes + 1)

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64, alg="philox")
        ids = tf.cast(tf.exp(uniform * self._log_range), tf.int64) - 1
        return tf.minimum(ids, self.num_classes - 1)  # (C + 1)^u < C + 1, but for rounding

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        following = tf.cast(ids, tf.float64) + 1
        return tf.math.log(tf.math.log1p(1 / following) / self._log_range)

    def probabilities(self) -> np.ndarray:
        return np.log1p(1 / np.arange(1, self.num_classes + 1)) / self._log_range
