# SPDX-License-Identifier: Apache-2.0
"""Stochastic rounding to bfloat16, by random bits that depend on the position of a number."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard


class RandomBits(NamedTuple):
    """The key of the random bits of a variable's rows, besides class and column.

    So a repeated step has the same bits, in any order, with any number of threads, any instruction
    set, and on any worker.

    Attributes:
        seed: An integer in [0, 2^32).
        step: The number of the step, an integer or an integer scalar.
        variable: The number of the variable in the optimizer. A bias follows its W.
        shard: The classes of the rows, or the numbers of rows in another dimension.
    """

    seed: int = 0
    step: Any = 0
    variable: int = 0
    shard: ClassShard = ClassShard()

    @property
    def numbers(self) -> list[Any]:
        """The numbers for the custom ops, float64."""
        step = tf.cast(self.step, tf.float64) if tf.is_tensor(self.step) else self.step
        return [self.seed, step, self.variable, self.shard.first, self.shard.stride]

    def of_bias(self) -> RandomBits:
        """Returns the key of the next variable."""
        return self._replace(variable=self.variable + 1)

    def keys(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns a key of 64 bits per row, `[n]` uint64. See core/row_update.cc."""
        step = split_mix(split_mix(_uint64(self.seed)) ^ _uint64(self.step))
        variable = split_mix(step ^ _uint64(self.variable))
        return split_mix(variable ^ _uint64(self.shard.class_of(rows)))


def bits_of_weights(keys: tf.Tensor, width: Any, again: bool = False) -> tf.Tensor:
    """Returns random numbers below 2^16, `[n, width]` uint32, by the keys of rows.

    `again`: others, for a second rounding of the same rows.
    """
    low, high = _halves(keys)
    high = tf.bitwise.invert(high) if again else high
    return _random_words(low, high, width) & _uint32(0xFFFF)


def bits_of_moments(keys: tf.Tensor, width: Any) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns two more such arrays, for the first and the second moment."""
    low, high = _halves(keys)
    words = _random_words(high, tf.bitwise.invert(low), width)
    return words & _uint32(0xFFFF), shifted(words, 16)


def rounded_at_random(x: tf.Tensor, bits: tf.Tensor) -> tf.Tensor:
    """Returns x in bfloat16, rounded so that the mean over random bits is x.

    x rounds up with a probability of its distance from the lower neighbour divided by the gap.
    Numbers that bfloat16 can represent don't change, also NaN and infinity. Finite numbers become
    infinite only beyond the largest bfloat16 number.

    Args:
        x: float32.
        bits: Random numbers below 2^16, uint32 of that shape.
    """
    upper = tf.cast(shifted(tf.bitcast(x, tf.uint32) + bits, 16), tf.uint16)
    rounded = tf.bitcast(upper, tf.bfloat16)
    return tf.where(tf.math.is_nan(x), tf.cast(x, tf.bfloat16), rounded)


# The generators of core/keep_random.h and of core/row_kernels_isa.cc.


def split_mix(x: tf.Tensor) -> tf.Tensor:
    """Returns the numbers of the generator SplitMix64 (Steele, Lea, Flood 2014) after x, uint64."""
    x += _uint64(0x9E3779B97F4A7C15)
    x = mixed(x, 30) * _uint64(0xBF58476D1CE4E5B9)
    x = mixed(x, 27) * _uint64(0x94D049BB133111EB)
    return mixed(x, 31)


def _random_words(low: tf.Tensor, high: tf.Tensor, width: Any) -> tf.Tensor:
    columns = tf.cast(tf.range(width), tf.uint32) * _uint32(0x9E3779B9)
    x = columns + low[:, tf.newaxis]
    x = (mixed(x, 16) * _uint32(0x21F0AAAD)) ^ high[:, tf.newaxis]
    x = mixed(x, 15) * _uint32(0x735A2D97)
    return mixed(x, 15)


def _halves(keys: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    low = tf.cast(keys & _uint64(0xFFFFFFFF), tf.uint32)
    return low, tf.cast(shifted(keys, 32), tf.uint32)


def mixed(x: tf.Tensor, places: int) -> tf.Tensor:
    """Returns x ^ (x >> places), of unsigned integers."""
    return x ^ shifted(x, places)


def shifted(x: tf.Tensor, places: int) -> tf.Tensor:
    """Returns unsigned integers shifted to the right."""
    return tf.bitwise.right_shift(x, tf.constant(places, x.dtype))


def _uint64(x: Any) -> tf.Tensor:
    return tf.cast(x, tf.uint64) if tf.is_tensor(x) else tf.constant(x, tf.uint64)


def _uint32(x: int) -> tf.Tensor:
    return tf.constant(x, tf.uint32)
