# SPDX-License-Identifier: Apache-2.0
"""IndexShard: what indexes over the rows of several workers do together."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.distribute.workers import Workers
from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.hashing.bucket_candidates import BucketCandidates


class IndexShard:
    """The part of the classes whose rows an index is over: class c is row c // R of worker c % R.

    All workers have the same hash functions, and a bucket of one process is spread over theirs. In
    a single process each method returns what it gets.

    Args:
        workers: Those that share the classes.
        num_classes: C.
        site: Who asks, for collectives.
    """

    def __init__(self, workers: Workers, num_classes: int, site: str) -> None:
        self.workers = workers
        self.num_classes = num_classes
        self._site = site
        self._num_rows = len(range(workers.rank, num_classes, workers.size))
        self._shard = ClassShard(workers.rank, workers.size, num_classes)

    def rows_of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the rows of those classes that are here, `[n]`; padding is left out."""
        rows = self._shard.row_of(ids, self._num_rows)
        return tf.boolean_mask(rows, rows >= 0)

    def first_row(self, first_class: tf.Tensor) -> tf.Tensor:
        """Returns the first row that is a class from `first_class` on, in a circle."""
        rank, size = self.workers.rank, self.workers.size
        return (first_class - rank + size - 1) // size % self._num_rows

    def num_found(self, budget: int) -> int:
        """Returns how many classes to look for here, to find so many in all."""
        return budget if self.workers.alone else min(budget, self._num_rows)

    def longest(self, length: tf.Tensor) -> tf.Tensor:
        """Returns the greatest of what the workers have, `[]`."""
        if self.workers.alone:
            return length
        return tf.reduce_max(self.workers.gather(length, f"{self._site}/radius"))

    def total(self, number: tf.Tensor) -> tf.Tensor:
        """Returns the sum of what the workers have, `[]`."""
        return self.workers.sum(number, f"{self._site}/moved")

    def first_of_each(self, found: BucketCandidates, budget: int, num_turns: int) -> tf.Tensor:
        """Returns each example's first S classes in all: those of them that are here.

        They are those of one process, but in the turn in which there are more than S in all: of
        that, each worker takes as great a part of what it has found.

        Args:
            found: `[N, S']` rows, by rising turn.
            budget: S.
            num_turns: How many turns there are, T.

        Returns:
            `[N, S']` ids, and then -1. Cost: two collectives, of N T and of N numbers.
        """
        if self.workers.alone:
            return found.ids
        turns = tf.range(num_turns, dtype=tf.int64)
        every = tf.broadcast_to(turns, tf.stack([tf.shape(found.marks)[0], num_turns]))
        up_to = tf.searchsorted(found.marks, every, side="right")
        of_all = self.workers.sum(up_to, f"{self._site}/turns")
        last = tf.math.count_nonzero(of_all <= budget, axis=1)  # the turn that does not fit
        here, of_all = (tf.pad(counts, [[0, 0], [1, 0]]) for counts in (up_to, of_all))
        before, of_all = (tf.gather(counts, last, batch_dims=1) for counts in (here, of_all))
        more = tf.gather(here, tf.minimum(last + 1, num_turns), batch_dims=1) - before
        number = before + self._parts(more, budget - of_all)
        stays = tf.sequence_mask(number, tf.shape(found.ids)[1])
        return tf.where(stays, self._shard.class_of(found.ids), tf.constant(-1, tf.int64))

    def most_voted(self, found: BucketCandidates, budget: int, first_class: tf.Tensor) -> tf.Tensor:
        """Returns the S classes with the most votes in all, by rising id, as one process does.

        Args:
            found: Rows and their votes here, `[S']`.
            budget: S.
            first_class: As `BucketOrder`.

        Returns:
            `[S]` ids, the same on all workers; -1 where there are no more. Cost: 2 R S numbers are
            gathered.
        """
        if self.workers.alone:
            return found.ids
        missing = [[0, 0], [0, budget - found.ids.shape[0]]]
        own = tf.pad(tf.stack([self._shard.class_of(found.ids), found.marks]), missing)
        every = tf.transpose(self.workers.gather(own, f"{self._site}/votes"), [1, 0, 2])
        ids, votes = tf.unstack(tf.reshape(every, [2, self.workers.size * budget]))
        circle = (ids - first_class) % self.num_classes
        best = tf.argsort(circle - votes * self.num_classes)[:budget]
        last = tf.constant(tf.int64.max)
        ids = tf.sort(tf.where(tf.gather(votes, best) > 0, tf.gather(ids, best), last))
        return tf.where(ids == last, tf.constant(-1, tf.int64), ids)

    def _parts(self, here: tf.Tensor, room: tf.Tensor) -> tf.Tensor:
        """Returns how many of `here` this worker takes, `[N]`, so that all take `room`."""
        every = tf.cast(self.workers.gather(here, f"{self._site}/last_turn"), tf.int64)
        room = tf.cast(room, tf.int64)
        ends = tf.cumsum(every)
        places = [ends[rank] * room // tf.maximum(ends[-1], 1) for rank in range(self.workers.size)]
        begin = places[self.workers.rank - 1] if self.workers.rank else tf.zeros_like(room)
        return tf.cast(places[self.workers.rank] - begin, tf.int32)
