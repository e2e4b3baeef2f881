# SPDX-License-Identifier: Apache-2.0
"""Probability distributions over the classes."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfx_largeout.samplers.alias_table import AliasTable


class ClassDistribution:
    """q(c) > 0 for c = 0 .. C-1: draws from it, and its logarithm.

    Attributes:
        num_classes: C.
    """

    num_classes: int

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        """Returns independent draws by a seed `[2]`: class ids of this shape, int64."""
        raise NotImplementedError

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of class ids, float64, of the same shape."""
        raise NotImplementedError

    def probabilities(self) -> np.ndarray:
        """Returns q, `[C]` float64. O(C): not for a training step."""
        raise NotImplementedError


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
