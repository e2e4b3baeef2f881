# SPDX-License-Identifier: Apache-2.0
"""The softmax over coded rows: draws, and the log probability of any class."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import check_each
from tfx_largeout.ops.multi_index.class_lists import DAMAGED, ClassLists
from tfx_largeout.ops.multi_index.pair_draws import inverse_sums, pair_draws
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather
from tfx_largeout.run_time_checks import Check, after

_LEAST_SCORE = -300.0
"""What a word's score counts as at least, below the greatest: float64 then holds all products."""


class CodedClasses(NamedTuple):
    """What is known of each class.

    Attributes:
        codes: `[C]` int32, a variable, the pair of code words of each class.
        weights: `[C]` int32, likewise, w_c > 0.
        lists: The classes of each pair.
    """

    codes: Any
    weights: Any
    lists: ClassLists

    def of(self, ids: tf.Tensor, num_pairs: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the pairs and the log weights, float64, of classes; -1 counts as 0."""
        ids = tf.maximum(ids, 0)
        codes, weights = (gather(bare_variable(x), ids) for x in (self.codes, self.weights))
        is_wrong = (codes < 0) | (codes >= num_pairs)
        checks = [
            check_each(f"codes must be in [0, {num_pairs}); got", codes, is_wrong),
            check_each("class_weights must be above 0; got", weights, weights <= 0),
        ]
        with after(checks):
            return tf.identity(codes), tf.math.log(tf.cast(weights, tf.float64))

    def draw(self, pairs: tf.Tensor, uniform: tf.Tensor, is_pair: tf.Tensor) -> tf.Tensor:
        """Draws a class of each of some pairs, int64, in proportion to the weights; or -1."""
        pairs = tf.where(is_pair, pairs, gather(bare_variable(self.codes), tf.constant([0])))
        places = self.lists.places(pairs, uniform)
        entries = tf.gather(self.lists.entries, places)
        ids = tf.clip_by_value(entries, 0, self.codes.shape[0] - 1)
        codes, weights = (gather(bare_variable(x), ids) for x in (self.codes, self.weights))
        begin, end = (tf.gather(self.lists.sums, places + k) for k in (0, 1))
        is_right = (entries == ids) & (codes == pairs) & (end - begin == tf.cast(weights, tf.int64))
        with after([Check(tf.reduce_all(is_right), lambda: [DAMAGED])]):
            return tf.where(is_pair, tf.cast(ids, tf.int64), tf.constant(-1, tf.int64))


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

    def sample(self, num_draws: int, seed: tf.Tensor) -> tf.Tensor:
        """Draws S classes of each example with replacement, `[B, S]`; -1 where q is no number."""
        shape = [tf.shape(self.first)[0], num_draws, 4]
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64, alg="philox")
        pairs = pair_draws(
            tf.exp(self.first), tf.exp(self.second), self.masses, num_draws, uniform[:, :, :3]
        )
        is_number = tf.math.is_finite(self.log_partition)[:, tf.newaxis]
        return self.classes.draw(pairs, uniform[:, :, 3], is_number)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of classes `[B, K]`, float64; of class 0 where they are -1."""
        num_words = self.masses.shape[0]
        codes, log_weights = self.classes.of(ids, num_words**2)
        first, second = codes // num_words, codes % num_words
        return (
            tf.gather(self.first, first, batch_dims=1)
            + tf.gather(self.second, second, batch_dims=1)
            + log_weights
            - self.log_partition[:, tf.newaxis]
        )

    def mean(self) -> MeanPairSoftmax:
        """Returns the mean of the distributions. Cost: O(B Q^2)."""
        size = tf.maximum(tf.shape(self.first)[0], 1)
        share = tf.exp(self.first - self.log_partition[:, tf.newaxis])
        rates = tf.matmul(share, tf.exp(self.second), transpose_a=True)
        rates /= tf.cast(size, tf.float64)
        return MeanPairSoftmax(rates, self.masses, self.classes)


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

    def sample(self, num_draws: int, seed: tf.Tensor) -> tf.Tensor:
        """Draws S classes with replacement, `[S]`; -1 where q is no number, or nothing."""
        uniform = tf.random.stateless_uniform([2, num_draws], seed, dtype=tf.float64, alg="philox")
        shares = tf.reshape(self.rates * self.masses, [1, -1])
        pairs = inverse_sums(shares, uniform[:1])[0]
        total = tf.reduce_sum(shares)
        is_number = tf.math.is_finite(total) & (total > 0)
        return self.classes.draw(pairs, uniform[1], is_number)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of classes of any shape, float64; of class 0 where they are -1."""
        codes, log_weights = self.classes.of(ids, self.masses.shape[0] ** 2)
        rates = tf.gather(tf.reshape(self.rates, [-1]), codes)
        return tf.math.log(rates) + log_weights


def _below_the_greatest(scores: tf.Tensor) -> tf.Tensor:
    scores = tf.cast(scores, tf.float64)
    return tf.maximum(scores - tf.reduce_max(scores, axis=1, keepdims=True), _LEAST_SCORE)
