# SPDX-License-Identifier: Apache-2.0
"""The vectors that are hashed for the rows of W."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.rows.variable_rows import gather


class HashedRows(NamedTuple):
    """The vectors that are hashed for classes: their rows, with radii longer by two.

    Attributes:
        kernel: W `[C, D]`.
        biases: b `[C]`, or nothing.
        radii: `[m]` float32, as `update_tables`.
    """

    kernel: tf.Variable
    biases: list[tf.Variable]
    radii: tf.Tensor

    def get(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns vectors, and the place in `radii` of the radius of each, `[n]` int32, or 0."""
        rows = tf.cast(gather(self.kernel, ids), tf.float32)
        if self.radii.shape[0] == 0:
            return rows, tf.zeros(tf.shape(ids), tf.int32)
        bias = tf.cast(gather(self.biases[0], ids), tf.float32) if self.biases else rows[:, 0] * 0
        rows = tf.concat([rows, bias[:, tf.newaxis]], axis=1)
        square = tf.reduce_sum(rows**2, axis=1, keepdims=True)
        fits = tf.math.count_nonzero(square <= self.radii**2, axis=1, dtype=tf.int32)
        ranges = tf.maximum(fits - 1, 0)
        radius = tf.gather(self.radii, ranges)[:, tf.newaxis]
        rest = tf.sqrt(tf.maximum(radius**2 - square, 0))
        return tf.concat([rows, rest], axis=1), ranges


def codes_in_ranges(codes: tf.Tensor, ranges: tf.Tensor, buckets_of_range: int) -> tf.Tensor:
    """Returns codes `[n, L]` of the first range in those that the vectors are of, `[n]`."""
    return tf.where(codes < 0, codes, codes + ranges[:, tf.newaxis] * buckets_of_range)
