# SPDX-License-Identifier: Apache-2.0
"""The softmax over coded rows: draws, and the log probability of any class."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import check_each
from tfx_largeout.ops.multi_index.class_lists import ClassLists, damage_check
from tfx_largeout.ops.multi_index.multi_index_draws import multi_index_draws
from tfx_largeout.ops.multi_index.multi_index_draws_composed import inverse_sums, members
from tfx_largeout.run_time_checks import after

_LEAST_SCORE = -300.0
"""What a word's score counts as at least, below the greatest: float64 then holds all products."""


class CodedClasses(NamedTuple):
    """What is known of each class.

    Attributes:
        lists: The pair of code words of each class, and the classes of each pair.
        weights: `[C]` int32, w_c > 0.
    """

    lists: ClassLists
    weights: tf.Tensor

    def of(self, ids: tf.Tensor, num_pairs: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the pairs and the log weights, float64, of classes; -1 counts as 0."""
        codes, weights = (
            tf.gather(x, tf.maximum(ids, 0)) for x in (self.lists.codes, self.weights)
        )
        is_wrong = (codes < 0) | (codes >= num_pairs)
        checks = [
            check_each(f"codes must be in [0, {num_pairs}); got", codes, is_wrong),
            check_each("class_weights must be above 0; got", weights, weights <= 0),
        ]
        with after(checks):
            return tf.identity(codes), tf.math.log(tf.cast(weights, tf.float64))


class PairSoftmax(NamedTuple):
    """The distribution q(c|h) = w_c exp(s1[k1] + s2[k2]) / Z, (k1, k2) being the code of c.

    Attributes:
        first: s1 - max s1, `[B, Q]` float64.
        second: s2 - max s2, likewise.
        masses: The sum of w_c over the classes of each pair, `[Q, Q]` float64.
        log_partition: log Z with these scores, `[B]` float64.
        classes: The classes.
    """

    first: tf.Tensor
    second: tf.Tensor
    masses: tf.Tensor
    log_partition: tf.Tensor
    classes: CodedClasses

    @classmethod
    def of(cls, scores: tuple[tf.Tensor, tf.Tensor], classes: CodedClasses) -> PairSoftmax:
        """Returns the distributions of scores `[B, Q]`. Cost: O(B Q^2)."""
        first, second = (_below_the_greatest(x) for x in scores)
        num_words = scores[0].shape[1]
        masses = tf.reshape(classes.lists.masses(), [num_words, num_words])
        masses = tf.cast(masses, tf.float64)
        by_first = tf.matmul(tf.exp(second), masses, transpose_b=True)
        log_partition = tf.math.log(tf.reduce_sum(tf.exp(first) * by_first, axis=1))
        return cls(first, second, masses, log_partition, classes)

    def sample(self, num_draws: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws S classes of each example with replacement.

        Returns:
            `[B, S]` int64, -1 where q is no number; and log q of each, float64, 0 there.
        """
        shape = [tf.shape(self.first)[0], num_draws, 3]
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64, alg="philox")
        ids, log_probability = multi_index_draws(
            self.first, self.second, self.classes.lists, uniform
        )
        # Sums that are damaged within a list give a class more than all.
        with after([damage_check(tf.reduce_all(log_probability < 1e-6))]):
            return tf.identity(ids), tf.identity(log_probability)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of classes `[B, K]`, float64; of class 0 where they are -1."""
        num_words = self.masses.shape[0]
        codes, log_weights = self.classes.of(ids, num_words**2)
        return (
            tf.gather(self.first, codes // num_words, batch_dims=1)
            + tf.gather(self.second, codes % num_words, batch_dims=1)
            + log_weights
            - self.log_partition[:, tf.newaxis]
        )

    def mean(self) -> MeanPairSoftmax:
        """Returns the mean of the distributions. Cost: O(B Q^2)."""
        size = tf.maximum(tf.shape(self.first)[0], 1)
        share = tf.exp(self.first - self.log_partition[:, tf.newaxis])
        rates = tf.matmul(share, tf.exp(self.second), transpose_a=True)
        return MeanPairSoftmax(rates / tf.cast(size, tf.float64), self.masses, self.classes)


class MeanPairSoftmax(NamedTuple):
    """The mean of the distributions of a batch, q(c) = w_c r[k1, k2].

    Attributes:
        rates: r `[Q, Q]` float64.
        masses: As `PairSoftmax`.
        classes: The classes.
    """

    rates: tf.Tensor
    masses: tf.Tensor
    classes: CodedClasses

    def sample(self, num_draws: int, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Draws S classes with replacement; returns them and log q, `[S]`, as `PairSoftmax`."""
        uniform = tf.random.stateless_uniform([2, num_draws], seed, dtype=tf.float64, alg="philox")
        shares = tf.reshape(self.rates * self.masses, [1, -1])
        total = tf.reduce_sum(shares)
        is_number = tf.fill([num_draws], tf.math.is_finite(total) & (total > 0))
        pairs = tf.where(is_number, inverse_sums(shares, uniform[:1])[0], 0)
        ids, _ = members(self.classes.lists, pairs, uniform[1], is_number)
        return ids, tf.where(is_number, self.log_probability(ids), 0)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of classes of any shape, float64; of class 0 where they are -1."""
        codes, log_weights = self.classes.of(ids, self.masses.shape[0] ** 2)
        return tf.math.log(tf.gather(tf.reshape(self.rates, [-1]), codes)) + log_weights


def _below_the_greatest(scores: tf.Tensor) -> tf.Tensor:
    scores = tf.cast(scores, tf.float64)
    return tf.maximum(scores - tf.reduce_max(scores, axis=1, keepdims=True), _LEAST_SCORE)
