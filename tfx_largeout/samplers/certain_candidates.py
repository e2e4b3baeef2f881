# SPDX-License-Identifier: Apache-2.0
"""Candidates that are there for certain, put before those that were drawn."""

from __future__ import annotations

import functools
from collections.abc import Callable

import tensorflow as tf

from tfx_largeout.labels import Labels
from tfx_largeout.ops.sorted_search import is_in, is_in_rows
from tfx_largeout.samplers.base import Candidates

IsCertain = Callable[[tf.Tensor], tf.Tensor]


def with_certain(drawn: Candidates, labels: Labels, certain: tf.Tensor) -> Candidates:
    """Puts classes with an expected count of 1 first, and takes them out of those that were drawn.

    A sum over the classes stays unbiased: these terms are exact, and the others as likely as
    before. `certain` is `[S]` int64 in rising order, or `[N, S]`, without repeats; -1, behind the
    others, where there is none.
    """
    own = certain.shape.rank == 2
    is_certain = _own(certain) if own else _shared(certain)
    ids, expected = drawn.ids, drawn.log_expected
    if own and ids.shape.rank == 1:
        shape = [tf.shape(certain)[0], tf.size(ids)]
        ids, expected = tf.broadcast_to(ids, shape), tf.broadcast_to(expected, shape)
    again = is_certain(ids)
    shape = tf.concat([tf.shape(ids)[:-1], tf.shape(certain)[-1:]], axis=0)
    return Candidates(
        tf.concat(
            [tf.broadcast_to(certain, shape), tf.where(again, tf.constant(-1, tf.int64), ids)],
            axis=-1,
        ),
        tf.concat([tf.zeros(shape, expected.dtype), tf.where(again, 0.0, expected)], axis=-1),
        tf.where(is_certain(labels.ids), 0.0, drawn.true_log_expected),
    )


def _shared(certain: tf.Tensor) -> IsCertain:
    last = tf.constant([tf.int64.max])
    return functools.partial(is_in, tf.concat([tf.where(certain < 0, last, certain), last], axis=0))


def _own(certain: tf.Tensor) -> IsCertain:
    ascending = tf.sort(certain, axis=1)
    return lambda ids: is_in_rows(ascending, ids) & (ids >= 0)
