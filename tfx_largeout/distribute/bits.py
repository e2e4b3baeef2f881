# SPDX-License-Identifier: Apache-2.0
"""Sums of the bits of weights, by which workers find out whether they are alike."""

from __future__ import annotations

import tensorflow as tf


def sum_of_bits(value: tf.Tensor, place: int) -> tf.Tensor:
    """Returns a number `[]` int64 that is the same for the same bits, and hardly for others.

    Args:
        value: Of numbers.
        place: Which of several weights it is, from 0: they may not change places.
    """
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.int8)
    integer = {8: tf.int64, 4: tf.int32, 2: tf.int16, 1: tf.int8}[value.dtype.size]
    bits = value if value.dtype.is_integer else tf.bitcast(value, integer)
    return tf.reduce_sum(tf.cast(bits, tf.int64)) * (2 * place + 1)
