# SPDX-License-Identifier: Apache-2.0
"""Packs numbers of any dtype as int32 of the same bits, for one collective."""

from __future__ import annotations

import tensorflow as tf


def packed(x: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Returns numbers `[n, k]`, rounded to a dtype of 2, 4 or 8 bytes, as the int32 of its bits."""
    x, k = tf.cast(x, dtype), x.shape[1]
    if dtype.size == 2:  # two per int32
        x = tf.pad(x, [[0, 0], [0, tf.shape(x)[1] % 2]])
        x = tf.reshape(x, [tf.shape(x)[0], tf.shape(x)[1] // 2, 2])
    bits = tf.bitcast(x, tf.int32)
    if dtype.size == 8:
        bits = tf.reshape(bits, [tf.shape(bits)[0], 2 * tf.shape(bits)[1]])
    return tf.ensure_shape(bits, [None, None if k is None else -(-k * dtype.size // 4)])


def unpacked(bits: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Undoes `packed`, except for the column that pads an odd number of 2-byte values."""
    words = max(dtype.size // 4, 1)
    shape = [tf.shape(bits)[0], tf.shape(bits)[1] // words]
    numbers = tf.bitcast(tf.reshape(bits, [*shape, words]) if words > 1 else bits, dtype)
    return tf.reshape(numbers, [shape[0], -1]) if dtype.size == 2 else numbers
