# SPDX-License-Identifier: Apache-2.0
"""Draws from the softmax over classes coded by pairs of words, and lists of classes by pair."""

from __future__ import annotations

import math
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.checks import check_each
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.sorted_search import upper_bound
from tfx_largeout.run_time_checks import Check, after

_LARGEST_WEIGHT = 2**30  # sums of 2^23 such weights are exact in float64, too
_BELOW_ONE = 1 - 2**-53
_LEAST_SCORE = -300.0
"""What a word's score counts as at least, below the greatest: float64 then holds all products."""


class ClassLists(NamedTuple):
    """Classes by pair, as a compressed sparse matrix of Q^2 rows.

    Weights are integers, so that their sums are exact in any order, and so are the drawing
    probabilities.

    Attributes:
        codes: `[C]` int32, the pair of each class.
        entries: `[C]` int32, the classes of pair 0, of pair 1 and so on, by rising id.
        starts: `[Q^2 + 1]` int32, the start of each pair.
        sums: `[C + 1]` int64, the cumulative sum of weights before each entry.
    """

    codes: tf.Tensor
    entries: tf.Tensor
    starts: tf.Tensor
    sums: tf.Tensor

    @classmethod
    def of(cls, codes: tf.Tensor, weights: tf.Tensor, num_pairs: int) -> ClassLists:
        """Creates the lists for `codes`, with `whole_weights`. Cost: O(C log C)."""
        entries = tf.argsort(codes, stable=True)
        sizes = tf.math.bincount(codes, minlength=num_pairs, maxlength=num_pairs)
        by_pair = tf.cast(tf.gather(weights, entries), tf.int64)
        return cls(codes, entries, _sums_before(sizes), _sums_before(by_pair))

    def masses(self) -> tf.Tensor:
        """Returns the sum of the weights of each pair's classes, `[Q^2]` int64."""
        ends = tf.gather(self.sums, tf.clip_by_value(self.starts, 0, tf.size(self.entries)))
        return ends[1:] - ends[:-1]

    def check(self) -> Check:
        """Returns a check that each pair has a list. Cost: O(Q^2)."""
        sizes = self.starts[1:] - self.starts[:-1]
        is_right = tf.reduce_all(sizes >= 0) & (self.starts[0] == 0)
        is_right &= self.starts[-1] == tf.size(self.entries)
        return _damage_check(is_right & tf.reduce_all((self.masses() > 0) == (sizes > 0)))


def _damage_check(is_right: tf.Tensor) -> Check:
    """Returns a check of lists; it holds if they are right."""
    message = "codes, entries, starts and sums must be lists of classes by pair; they are damaged: "
    return Check(is_right, lambda: [message + "call rebuild"])


def _sums_before(numbers: tf.Tensor) -> tf.Tensor:
    """Returns 0 and the cumulative sums, `[n + 1]`, of `[n]`."""
    return tf.concat([tf.zeros([1], numbers.dtype), tf.cumsum(numbers)], axis=0)


def whole_weights(log_weights: tf.Tensor) -> tf.Tensor:
    """Returns weights `[C]` int32 proportional to exp(log_weights), at most 2^30, at least 1.

    So a weight is at least e^-20.8 times the largest one.
    """
    shares = tf.exp(tf.cast(log_weights - tf.reduce_max(log_weights), tf.float64))
    return tf.cast(tf.maximum(tf.round(shares * _LARGEST_WEIGHT), 1), tf.int32)


def multi_index_draws(
    first: tf.Tensor,
    second: tf.Tensor,
    lists: ClassLists,
    uniform: tf.Tensor,
    *,
    implementation: str = "auto",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws classes of each example with replacement, by q(c) = w_c exp(u[k1] + v[k2]) / Z.

    (k1, k2) is the code of c, w_c its weight. By inverse cumulative sums: k1, then k2, then a class
    of the pair, each with a separate random number.

    Cost: O(B (Q^2 + S log(Q C))); composed O(B (Q^2 + S (sqrt(Q) + log C))), and memory for
    B (Q + 3 S) sqrt(Q) numbers.

    Args:
        first: u `[B, Q]` float64, at most 0 so that exp stays in range.
        second: v, likewise.
        lists: The classes of each pair.
        uniform: `[B, S, 3]` float64 in [0, 1).
        implementation: See `ops`, which has the errors, too; also for corrupt lists.

    Returns:
        The classes `[B, S]` int64, -1 where Z is not a number above 0; and log q of each, float64,
        0 for no class.
    """
    module = op_module(
        implementation, "tfx_multi_index_draws", "first", first, [tf.float64], gpu_dtypes=[]
    )
    if module is None:
        return _composed(first, second, lists, uniform)
    ids, log_probability = module.tfx_multi_index_draws(first, second, *lists, uniform)
    return ids, log_probability


def _composed(
    first: tf.Tensor, second: tf.Tensor, lists: ClassLists, uniform: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `multi_index_draws`.

    k2 is drawn in two steps: a group of about sqrt(Q) words, and a word of the group.
    """
    num_words = first.shape[1]
    out_of_range = check_each(
        "uniform must be in [0, 1); got", uniform, ~((uniform >= 0) & (uniform < 1))
    )
    with after([out_of_range, lists.check()]):
        masses = tf.cast(tf.reshape(lists.masses(), [num_words, num_words]), tf.float64)
    words, partition = _words(tf.exp(first), tf.exp(second), masses, uniform)
    is_number = (tf.math.is_finite(partition) & (partition > 0))[:, tf.newaxis]
    pairs = tf.where(is_number, words[0] * num_words + words[1], 0)
    ids, weights = _members(lists, pairs, uniform[:, :, 2], is_number)
    log_probability = (
        tf.gather(first, words[0], batch_dims=1)
        + tf.gather(second, words[1], batch_dims=1)
        + tf.math.log(tf.cast(weights, tf.float64))
        - tf.math.log(partition)[:, tf.newaxis]
    )
    return ids, tf.where(is_number, log_probability, 0)


def _members(
    lists: ClassLists, pairs: tf.Tensor, uniform: tf.Tensor, is_pair: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws a class of each given pair by weight; raises if a pair's list is missing.

    Args:
        lists: The classes of each pair.
        pairs: Any shape, int32 in [0, Q^2).
        uniform: Likewise, float64 in [0, 1).
        is_pair: Likewise, or broadcastable: where to draw a class.

    Returns:
        The classes, int64, -1 for none; and their weights.
    """
    last = tf.size(lists.entries) - 1
    begin = tf.gather(lists.sums, tf.gather(lists.starts, pairs))
    mass = tf.gather(lists.masses(), pairs)
    within = tf.cast(uniform * tf.cast(mass, uniform.dtype), tf.int64)
    place = upper_bound(lists.sums, begin + tf.minimum(within, mass - 1)) - 1
    place = tf.clip_by_value(place, 0, tf.cast(last, tf.int64))
    entries = tf.gather(lists.entries, place)
    weights = tf.gather(lists.sums, place + 1) - tf.gather(lists.sums, place)
    is_right = (entries >= 0) & (entries <= last) & (weights > 0)
    is_right &= tf.gather(lists.codes, tf.clip_by_value(entries, 0, last)) == pairs
    with after([_damage_check(tf.reduce_all(is_right | ~is_pair))]):
        return tf.where(is_pair, tf.cast(entries, tf.int64), tf.constant(-1, tf.int64)), weights


def _inverse_sums(weights: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws positions in rows of weights `[B, m]`, proportional to them, `[B, S]` int32.

    If weights are NaN, it is still a valid position. Cost: O(B (m + S log m)).
    """
    sums = tf.cumsum(weights, axis=1)
    places = tf.raw_ops.UpperBound(sorted_inputs=sums, values=uniform * sums[:, -1:])
    return tf.minimum(places, weights.shape[1] - 1)


def _words(
    first: tf.Tensor, second: tf.Tensor, masses: tf.Tensor, uniform: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns k1 and k2 of each draw, `[B, S]` int32, and Z `[B]`, of exp(u), exp(v), `[Q, Q]`."""
    num_words = masses.shape[0]
    size = math.isqrt(num_words)
    masses, second = (_groups(x, size) for x in (masses, second))
    by_group = tf.einsum("bgm,kgm->bkg", second, masses)
    of_first = first * tf.reduce_sum(by_group, axis=2)
    first_word = _inverse_sums(of_first, uniform[:, :, 0])
    group, rest = _choice(tf.gather(by_group, first_word, batch_dims=1), uniform[:, :, 1])
    weights = tf.gather(second, group, batch_dims=1) * tf.gather_nd(
        masses, tf.stack([first_word, group], axis=2)
    )
    second_word = group * size + _choice(weights, rest)[0]
    return (first_word, second_word), tf.reduce_sum(of_first, axis=1)


def _choice(weights: tf.Tensor, uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws a position in each row of weights `[..., m]`, proportional to them, `[...]` int32.

    Also returns the rest of the random number, which is again uniform.
    """
    sums = tf.cumsum(weights, axis=-1)
    target = uniform[..., tf.newaxis] * sums[..., -1:]
    is_below = sums <= target
    place = tf.reduce_sum(tf.cast(is_below, tf.int32), axis=-1)
    place = tf.minimum(place, weights.shape[-1] - 1)
    before = tf.reduce_max(tf.where(is_below, sums, 0), axis=-1)
    share = (target[..., 0] - before) / tf.gather(weights, place, batch_dims=weights.shape.rank - 1)
    return place, tf.clip_by_value(share, 0, _BELOW_ONE)


def _groups(values: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `[n, Q]` as `[n, groups, size]`, with zeros at the end."""
    values = tf.pad(values, [[0, 0], [0, -values.shape[1] % size]])
    return tf.reshape(values, [tf.shape(values)[0], values.shape[1] // size, size])


class CodedClasses(NamedTuple):
    """The codes and weights of classes.

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
    """The distribution q(c|h) = w_c exp(s1[k1] + s2[k2]) / Z, with (k1, k2) the code of c.

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
            `[B, S]` int64, -1 where q is not a number; and log q of each, float64, 0 there.
        """
        shape = [tf.shape(self.first)[0], num_draws, 3]
        uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
        ids, log_probability = multi_index_draws(
            self.first, self.second, self.classes.lists, uniform
        )
        # Corrupt sums in a list can give a class more than the whole weight.
        with after([_damage_check(tf.reduce_all(log_probability < 1e-6))]):
            return tf.identity(ids), tf.identity(log_probability)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of classes `[B, K]`, float64; for -1, of class 0."""
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
        uniform = tf.random.stateless_uniform([2, num_draws], seed, dtype=tf.float64)
        shares = tf.reshape(self.rates * self.masses, [1, -1])
        total = tf.reduce_sum(shares)
        is_number = tf.fill([num_draws], tf.math.is_finite(total) & (total > 0))
        pairs = tf.where(is_number, _inverse_sums(shares, uniform[:1])[0], 0)
        ids, _ = _members(self.classes.lists, pairs, uniform[1], is_number)
        return ids, tf.where(is_number, self.log_probability(ids), 0)

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of classes of any shape, float64; for -1, of class 0."""
        codes, log_weights = self.classes.of(ids, self.masses.shape[0] ** 2)
        return tf.math.log(tf.gather(tf.reshape(self.rates, [-1]), codes)) + log_weights


def _below_the_greatest(scores: tf.Tensor) -> tf.Tensor:
    scores = tf.cast(scores, tf.float64)
    return tf.maximum(scores - tf.reduce_max(scores, axis=1, keepdims=True), _LEAST_SCORE)
