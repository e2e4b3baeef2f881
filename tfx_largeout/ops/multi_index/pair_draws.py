# SPDX-License-Identifier: Apache-2.0
"""Draws of pairs of code words from their softmax."""

from __future__ import annotations

import math

import tensorflow as tf


def pair_draws(
    first: tf.Tensor, second: tf.Tensor, masses: tf.Tensor, num_draws: int, uniform: tf.Tensor
) -> tf.Tensor:
    """Draws pairs (k1, k2) in proportion to N[k1, k2] u[k1] v[k2], independently.

    k1 by inverse sums of u[k1] (N v)[k1]; then k2 in two steps: a group of about sqrt(Q) words by
    its sum, and one of its words. Each choice has a random number of its own.

    Cost: O(B Q^2 + B S sqrt(Q)). Memory, in numbers: B (Q + S) sqrt(Q).

    Args:
        first: u `[B, Q]` float64, positive.
        second: v, likewise.
        masses: N `[Q, Q]` float64, at least 0, and one above 0.
        num_draws: S.
        uniform: `[B, S, 3]` float64 in [0, 1).

    Returns:
        k1 Q + k2 for each draw, `[B, S]` int32.
    """
    num_words = masses.shape[0]
    size = math.isqrt(num_words)
    masses, second = (_groups(x, size) for x in (masses, second))
    by_group = tf.einsum("bgm,kgm->bkg", second, masses)
    first_word = inverse_sums(first * tf.reduce_sum(by_group, axis=2), uniform[:, :, 0])
    group = _choice(tf.gather(by_group, first_word, batch_dims=1), uniform[:, :, 1])
    weights = tf.gather(second, group, batch_dims=1) * tf.gather_nd(
        masses, tf.stack([first_word, group], axis=2)
    )
    return first_word * num_words + group * size + _choice(weights, uniform[:, :, 2])


def inverse_sums(weights: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns places in rows of weights `[B, m]`, in proportion to them, `[B, S]` int32.

    Where they are not numbers, it is a place nevertheless. Cost: O(B (m + S log m)).

    Args:
        weights: float64.
        uniform: `[B, S]` float64 in [0, 1).
    """
    sums = tf.cumsum(weights, axis=1)
    places = tf.raw_ops.UpperBound(sorted_inputs=sums, values=uniform * sums[:, -1:])
    return tf.minimum(places, weights.shape[1] - 1)


def _choice(weights: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns a place in each row of weights `[..., m]`, in proportion to them, `[...]` int32."""
    sums = tf.cumsum(weights, axis=-1)
    below = sums <= uniform[..., tf.newaxis] * sums[..., -1:]
    number = tf.reduce_sum(tf.cast(below, tf.int32), axis=-1)
    return tf.minimum(number, weights.shape[-1] - 1)


def _groups(values: tf.Tensor, size: int) -> tf.Tensor:
    """Returns `[n, Q]` as `[n, groups, size]`, with zeros at the end."""
    values = tf.pad(values, [[0, 0], [0, -values.shape[1] % size]])
    return tf.reshape(values, [tf.shape(values)[0], values.shape[1] // size, size])
