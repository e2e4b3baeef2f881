# SPDX-License-Identifier: Apache-2.0
"""Probability distributions over the classes, and draws from any of them in constant time."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfx_largeout.devices import split_seed


class ClassDistribution:
    """q(c) > 0 for c = 0 .. C-1: draws from it, and its logarithm.

    Attributes:
        num_classes: C.
    """

    num_classes: int

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        """Returns independent draws for a seed `[2]`: class ids of this shape, int64."""
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
        return tf.random.stateless_uniform(shape, seed, 0, self.num_classes, tf.int64)

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
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        ids = tf.cast(tf.exp(uniform * self._log_range), tf.int64) - 1
        return tf.minimum(ids, self.num_classes - 1)  # (C + 1)^u < C + 1, except for rounding

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        following = tf.cast(ids, tf.float64) + 1
        return tf.math.log(tf.math.log1p(1 / following) / self._log_range)

    def probabilities(self) -> np.ndarray:
        return np.log1p(1 / np.arange(1, self.num_classes + 1)) / self._log_range


class UnigramDistribution(ClassDistribution):
    """q proportional to weights; log q is a float32 table."""

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


class AliasTable:
    """Draws classes with probabilities proportional to weights.

    Alias method: a draw picks one of C boxes uniformly; box c holds class c up to its threshold,
    and above it one other class, its alias. The boxes are filled in one sweep over two queues, of
    light classes (probability below 1 / C) and heavy ones. The box of a light class is filled from
    the first heavy class that has some left; a heavy class that falls below 1 / C is filled from
    the next one. Both queues are prefix sums, so the sweep is two sorted searches.

    The thresholds are float32: probabilities have a relative error of about 1e-7.

    Cost: a draw is two cache misses. 8 bytes per class. To build: O(C).

    Args:
        weights: `[C]` float64, positive, of any sum.

    References:
        Walker 1977, An efficient method for generating discrete random variables with general
        distributions. Hübschle-Schneider and Sanders 2022, Parallel weighted random sampling (the
        sweep as prefix sums).
    """

    def __init__(self, weights: np.ndarray) -> None:
        self.num_classes = weights.size
        threshold, alias = _fill_boxes(weights / weights.sum())
        self._threshold = tf.constant(threshold)
        self._alias = tf.constant(alias)

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        """Returns independent draws for a seed `[2]`: class ids of this shape, int64."""
        box_seed, height_seed = split_seed(seed, 2)
        box = tf.random.stateless_uniform(shape, box_seed, 0, self.num_classes, tf.int32)
        height = tf.random.stateless_uniform(shape, height_seed, dtype=tf.float64)
        threshold = tf.cast(tf.gather(self._threshold, box), tf.float64)
        ids = tf.where(height < threshold, box, tf.gather(self._alias, box))
        return tf.cast(ids, tf.int64)


def _fill_boxes(probabilities: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Returns thresholds `[C]` float32 and aliases `[C]` int32."""
    content = probabilities * probabilities.size  # a box holds 1
    is_heavy = content >= 1
    is_heavy[content.argmax()] = True  # rounding could hide it
    light, heavy = np.flatnonzero(~is_heavy), np.flatnonzero(is_heavy)
    taken = np.concatenate([[0.0], np.cumsum(1 - content[light])])  # by the first light classes
    surplus = np.cumsum(content[heavy] - 1)  # what the first heavy classes have to give
    threshold = np.ones(content.size, np.float32)
    alias = np.arange(content.size, dtype=np.int32)

    giver = np.searchsorted(surplus, taken[:-1], side="right")
    threshold[light] = content[light]
    alias[light] = heavy[np.minimum(giver, heavy.size - 1)]

    end = np.searchsorted(taken, surplus, side="left")  # after how many light classes it is used up
    used_up = np.flatnonzero(end[:-1] < taken.size)  # the last heavy class fills its own box
    threshold[heavy[used_up]] = 1 + surplus[used_up] - taken[end[used_up]]
    alias[heavy[used_up]] = heavy[used_up + 1]
    return threshold, alias
