# SPDX-License-Identifier: Apache-2.0
"""Merges the classes that several workers find in the buckets of their tables.

Workers have the same hash functions; the classes of a bucket are spread over them.
"""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.bucket_candidates import BucketCandidates


def first_of_each(
    rows: ClassRows, found: BucketCandidates, budget: int, num_turns: int
) -> tf.Tensor:
    """Returns the classes on this worker among each example's first S classes.

    They equal the classes found by one process, except in the turn in which the total exceeds S:
    from it, each worker takes the same share of its found classes.

    Args:
        rows: The rows on this worker.
        found: `[N, S']` rows, by rising turn.
        budget: S.
        num_turns: The number of turns, T.

    Returns:
        `[N, S']` ids, and then -1. Cost: two collectives, of N T and of N numbers.
    """
    if rows.shard.is_whole:
        return found.ids
    turns = tf.range(num_turns, dtype=tf.int64)
    every = tf.broadcast_to(turns, tf.stack([tf.shape(found.marks)[0], num_turns]))
    up_to = tf.searchsorted(found.marks, every, side="right")
    of_all = rows.workers.sum(up_to, f"{rows.site}/turns")
    last = tf.math.count_nonzero(of_all <= budget, axis=1)  # the turn that exceeds the budget
    here, of_all = (tf.pad(counts, [[0, 0], [1, 0]]) for counts in (up_to, of_all))
    before, of_all = (tf.gather(counts, last, batch_dims=1) for counts in (here, of_all))
    more = tf.gather(here, tf.minimum(last + 1, num_turns), batch_dims=1) - before
    number = before + _part(rows, more, budget - of_all)
    stays = tf.sequence_mask(number, tf.shape(found.ids)[1])
    return tf.where(stays, rows.shard.class_of(found.ids), tf.constant(-1, tf.int64))


def most_voted(
    rows: ClassRows, found: BucketCandidates, budget: int, first_class: tf.Tensor
) -> tf.Tensor:
    """Returns the S classes with the most votes, by rising id, as in one process.

    Args:
        rows: The rows on this worker.
        found: Rows on this worker and their votes, `[S']`.
        budget: S.
        first_class: As in `BucketOrder`.

    Returns:
        `[S]` ids, the same on all workers, padded with -1. Cost: 2 R S numbers are gathered.
    """
    if rows.shard.is_whole:
        return found.ids
    missing = [[0, 0], [0, budget - found.ids.shape[0]]]
    own = tf.pad(tf.stack([rows.shard.class_of(found.ids), found.marks]), missing)
    every = tf.transpose(rows.workers.gather(own, f"{rows.site}/votes"), [1, 0, 2])
    ids, votes = tf.unstack(tf.reshape(every, [2, rows.workers.size * budget]))
    circle = (ids - first_class) % rows.num_classes
    best = tf.argsort(circle - votes * rows.num_classes)[:budget]
    last = tf.constant(tf.int64.max)
    ids = tf.sort(tf.where(tf.gather(votes, best) > 0, tf.gather(ids, best), last))
    return tf.where(ids == last, tf.constant(-1, tf.int64), ids)


def _part(rows: ClassRows, here: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
    """Returns how many of `here` this worker takes, `[N]`, so that the total is `room`."""
    every = tf.cast(rows.workers.gather(here, f"{rows.site}/last_turn"), tf.int64)
    ends = tf.pad(tf.cumsum(every), [[1, 0], [0, 0]])
    places = ends * tf.cast(room, tf.int64) // tf.maximum(ends[-1], 1)
    return tf.cast(places[rows.workers.rank + 1] - places[rows.workers.rank], tf.int32)
