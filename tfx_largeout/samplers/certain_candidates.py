# SPDX-License-Identifier: Apache-2.0
"""Candidates that are there for certain, put before those that were drawn."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.labels import Labels
from tfx_largeout.samplers.base import Candidates
from tfx_largeout.sorted_search import is_in, is_in_rows


def with_certain(drawn: Candidates, labels: Labels, certain: tf.Tensor) -> Candidates:
    """Puts classes with an expected count of 1 first, and takes them out of those that were drawn.

    A sum over the classes stays unbiased: these terms are exact, and the others as likely as
    before.

    Args:
        drawn: What a sampler drew.
        labels: N examples.
        certain: `[S]` int64 in rising order, or `[N, S]`, without repeats; -1, behind the others,
            where there is none.
    """
    own = certain.shape.rank == 2
    among = _is_in_own if own else _is_in_shared
    ids, expected = drawn.ids, drawn.log_expected
    if own and ids.shape.rank == 1:
        shape = [tf.shape(certain)[0], tf.size(ids)]
        ids, expected = tf.broadcast_to(ids, shape), tf.broadcast_to(expected, shape)
    again = among(certain, ids)
    shape = tf.concat([tf.shape(ids)[:-1], tf.shape(certain)[-1:]], axis=0)
    return Candidates(
        tf.concat(
            [tf.broadcast_to(certain, shape), tf.where(again, tf.constant(-1, tf.int64), ids)],
            axis=-1,
        ),
        tf.concat([tf.zeros(shape, expected.dtype), tf.where(again, 0.0, expected)], axis=-1),
        tf.where(among(certain, labels.ids), 0.0, drawn.true_log_expected),
    )


def _is_in_shared(certain: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    last = tf.constant([tf.int64.max])
    return is_in(tf.concat([tf.where(certain < 0, last, certain), last], axis=0), ids)


def _is_in_own(certain: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return is_in_rows(tf.sort(certain, axis=1), ids) & (ids >= 0)
