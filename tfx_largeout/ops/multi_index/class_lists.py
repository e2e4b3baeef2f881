# SPDX-License-Identifier: Apache-2.0
"""The classes of each pair of code words, and whole numbers that weigh them."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.sorted_search import upper_bound
from tfx_largeout.run_time_checks import Check

DAMAGED = "the lists of classes by pair are damaged: call rebuild"
_LARGEST_WEIGHT = 2**30
"""The weight of the heaviest class: sums over 2^23 such classes are exact in float64, too."""


class ClassLists(NamedTuple):
    """Classes by pair, as a compressed sparse matrix of Q^2 rows.

    Weights are whole numbers, so that their sums are exact in any order: how often a class is drawn
    is what is said of it, to the last bit.

    Attributes:
        entries: `[C]` int32, the classes of pair 0, those of pair 1 and so on, by rising id.
        starts: `[Q^2 + 1]` int32, where each pair's begin.
        sums: `[C + 1]` int64, the sum of the weights of the entries before each, from 0 on.
    """

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
        sorted_weights = tf.cast(tf.gather(weights, entries), tf.int64)
        return cls(entries, *(tf.pad(tf.cumsum(x), [[1, 0]]) for x in (sizes, sorted_weights)))

    def check(self) -> Check:
        """Returns a check that the lists are lists, at a cost independent of C."""
        sizes = self.starts[1:] - self.starts[:-1]
        is_right = tf.reduce_all(sizes >= 0) & (self.starts[0] == 0)
        is_right &= self.starts[-1] == tf.size(self.entries)
        ends = tf.gather(self.sums, tf.clip_by_value(self.starts, 0, tf.size(self.entries)))
        is_right &= tf.reduce_all((ends[1:] - ends[:-1] > 0) == (sizes > 0))
        return Check(is_right, lambda: [DAMAGED])

    def masses(self) -> tf.Tensor:
        """Returns the sum of the weights of each pair's classes, `[Q^2]` int64."""
        ends = tf.gather(self.sums, self.starts)
        return ends[1:] - ends[:-1]

    def places(self, pairs: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
        """Draws an entry of each of some pairs, in proportion to weights; returns its place.

        Args:
            pairs: Any shape, each with an entry.
            uniform: Likewise, float64 in [0, 1).
        """
        begin = tf.gather(self.sums, tf.gather(self.starts, pairs))
        mass = tf.gather(self.masses(), pairs)
        within = tf.cast(uniform * tf.cast(mass, uniform.dtype), tf.int64)
        return upper_bound(self.sums, begin + tf.minimum(within, mass - 1)) - 1


def whole_weights(log_weights: tf.Tensor) -> tf.Tensor:
    """Returns weights `[C]` int32 in proportion to exp(log_weights), the greatest 2^30, least 1.

    So a class counts at least e^-20.8 times as much as the heaviest one.
    """
    shares = tf.exp(tf.cast(log_weights - tf.reduce_max(log_weights), tf.float64))
    return tf.cast(tf.maximum(tf.round(shares * _LARGEST_WEIGHT), 1), tf.int32)
