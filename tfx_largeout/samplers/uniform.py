# SPDX-License-Identifier: Apache-2.0
"""Uniform: every class is as likely as any other."""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.samplers.class_distribution import ClassDistribution
from tfx_largeout.samplers.distribution_sampler import DistributionSampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Uniform(DistributionSampler):
    """Candidates from the uniform distribution: q_c = 1 / C, E_c = S / C, in each case.

    With `first_id`, C - first_id stands in the place of C.

    Args, cost and errors: as `DistributionSampler`.

    Deviations:
        `unique` candidates are a simple random sample: each class is in it with probability S / C,
        which is E, whatever the number of tries.
    """

    def distribution(self, num_classes: int) -> ClassDistribution:
        return UniformDistribution(num_classes)

    def log_expected_if_unique(self, ids: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        probability = self.num_sampled / self._distribution.num_classes
        return tf.fill(tf.shape(ids), tf.constant(math.log(probability), tf.float64))


class UniformDistribution(ClassDistribution):
    """q_c = 1 / C."""

    def __init__(self, num_classes: int) -> None:
        self.num_classes = num_classes

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        return tf.random.stateless_uniform(shape, seed, 0, self.num_classes, tf.int64, alg="philox")

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        return tf.fill(tf.shape(ids), tf.constant(-math.log(self.num_classes), tf.float64))

    def probabilities(self) -> np.ndarray:
        return np.full(self.num_classes, 1 / self.num_classes)
