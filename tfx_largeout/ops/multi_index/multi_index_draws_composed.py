# SPDX-License-Identifier: Apache-2.0
"""Draws from the softmax over coded classes, in TensorFlow's own ops."""

from __future__ import annotations

import math

import tensorflow as tf

from tfx_largeout.ops.checks import check_each
from tfx_largeout.ops.multi_index.class_lists import ClassLists, damage_check
from tfx_largeout.ops.sorted_search import upper_bound
from tfx_largeout.run_time_checks import after

_BELOW_ONE = 1 - 2**-53


def multi_index_draws_composed(
    first: tf.Tensor, second: tf.Tensor, lists: ClassLists, uniform: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """As `multi_index_draws`, which see.

    k2 is found in two steps: a group of about sqrt(Q) words, and one of them.
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
    ids, weights = members(lists, pairs, uniform[:, :, 2], is_number)
    log_probability = (
        tf.gather(first, words[0], batch_dims=1)
        + tf.gather(second, words[1], batch_dims=1)
        + tf.math.log(tf.cast(weights, tf.float64))
        - tf.math.log(partition)[:, tf.newaxis]
    )
    return ids, tf.where(is_number, log_probability, 0)


def members(
    lists: ClassLists, pairs: tf.Tensor, uniform: tf.Tensor, is_pair: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws a class of each of some pairs by weight.

    Args:
        lists: The classes of each pair.
        pairs: Any shape, int32 in [0, Q^2).
        uniform: Likewise, float64 in [0, 1).
        is_pair: Likewise, or a shape that can be broadcast: where a class is to be drawn.

    Returns:
        The classes, int64, -1 where none is; and their weights.

    Raises:
        tf.errors.InvalidArgumentError: The lists do not have the classes whose code is the pair.
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
    with after([damage_check(tf.reduce_all(is_right | ~is_pair))]):
        return tf.where(is_pair, tf.cast(entries, tf.int64), tf.constant(-1, tf.int64)), weights


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


def _words(
    first: tf.Tensor, second: tf.Tensor, masses: tf.Tensor, uniform: tf.Tensor
) -> tuple[tuple[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Returns k1 and k2 of each draw, `[B, S]` int32, and Z `[B]`.

    Args:
        first: exp(u).
        second: exp(v).
        masses: `[Q, Q]` float64.
        uniform: As `multi_index_draws`.
    """
    num_words = masses.shape[0]
    size = math.isqrt(num_words)
    masses, second = (_groups(x, size) for x in (masses, second))
    by_group = tf.einsum("bgm,kgm->bkg", second, masses)
    of_first = first * tf.reduce_sum(by_group, axis=2)
    first_word = inverse_sums(of_first, uniform[:, :, 0])
    group, rest = _choice(tf.gather(by_group, first_word, batch_dims=1), uniform[:, :, 1])
    weights = tf.gather(second, group, batch_dims=1) * tf.gather_nd(
        masses, tf.stack([first_word, group], axis=2)
    )
    second_word = group * size + _choice(weights, rest)[0]
    return (first_word, second_word), tf.reduce_sum(of_first, axis=1)


def _choice(weights: tf.Tensor, uniform: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns a place in each row of weights `[..., m]`, in proportion to them, `[...]` int32.

    And what is left of the random number, which is as good as a new one.
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
