# SPDX-License-Identifier: Apache-2.0
"""The classes of each pair of code words, and whole numbers that weigh them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.run_time_checks import Check

_LARGEST_WEIGHT = 2**30  # sums of 2^23 of them are exact in float64, too


class ClassLists(NamedTuple):
    """Classes by pair, as a compressed sparse matrix of Q^2 rows.

    Weights are whole numbers, so that their sums are exact in any order: how often a class is drawn
    is what is said of it, to the last bit.

    Attributes:
        codes: `[C]` int32, the pair of each class.
        entries: `[C]` int32, the classes of pair 0, those of pair 1 and so on, by rising id.
        starts: `[Q^2 + 1]` int32, where each pair's begin.
        sums: `[C + 1]` int64, the sum of the weights of the entries before each, from 0 on.
    """

    codes: tf.Tensor
    entries: tf.Tensor
    starts: tf.Tensor
    sums: tf.Tensor

    @classmethod
    def of(cls, codes: tf.Tensor, weights: tf.Tensor, num_pairs: int) -> ClassLists:
        """Returns the lists. Cost: O(C log C).

        Args:
            codes: `[C]` int32, the pair of each class.
            weights: `[C]` int32, as `whole_weights`.
            num_pairs: Q^2.
        """
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
        return damage_check(is_right & tf.reduce_all((self.masses() > 0) == (sizes > 0)))


def damage_check(is_right: tf.Tensor) -> Check:
    """Returns a check of lists; it holds if they are right."""
    message = "codes, entries, starts and sums must be lists of classes by pair; they are damaged: "
    return Check(is_right, lambda: [message + "call rebuild"])


def _sums_before(numbers: tf.Tensor) -> tf.Tensor:
    """Returns 0 and the cumulative sums, `[n + 1]`, of `[n]`."""
    return tf.concat([tf.zeros([1], numbers.dtype), tf.cumsum(numbers)], axis=0)


def whole_weights(log_weights: tf.Tensor) -> tf.Tensor:
    """Returns weights `[C]` int32 in proportion to exp(log_weights), the greatest 2^30, least 1.

    So a class counts at least e^-20.8 times as much as the heaviest one.
    """
    shares = tf.exp(tf.cast(log_weights - tf.reduce_max(log_weights), tf.float64))
    return tf.cast(tf.maximum(tf.round(shares * _LARGEST_WEIGHT), 1), tf.int32)
