# SPDX-License-Identifier: Apache-2.0
"""RowRoutes: the ways of rows of classes between the workers that have and those that need them."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.global_batch import Parts
from tfx_largeout.distribute.workers import Workers


class RowRoutes:
    """Who has and who needs the rows of labels.

    All workers know all labels, so nobody has to ask. A worker gets the row of a class once,
    however many of its examples have that label. What a worker has for another is padded to the
    most that any has for any other.

    Cost: O(L log L) for L labels. `fetch` and `push` receive (R - 1) m rows, m that most: about
    f (B / R) K of them, f = (R - 1) / R, where labels differ and are spread evenly.

    The labels are those of all workers, `[N, K]` int64, padded with -1, and parts say whose each
    example is.

    Attributes:
        rows: `[r]` int64: the rows here that any worker needs, each once.
        places: `[n, K]` int64: where in `fetch` the rows of the labels of this worker's examples
            are; at padding m, the number of rows that it needs.
    """

    def __init__(
        self, workers: Workers, shard: ClassShard, label_ids: tf.Tensor, parts: Parts, site: str
    ) -> None:
        self._workers, self._site = workers, site
        keys = label_ids + shard.num_classes * parts.ranks[:, tf.newaxis]
        at_labels = tf.where(label_ids >= 0)
        # A pair is a worker and a class that it needs.
        pairs, of_label = tf.unique(tf.gather_nd(keys, at_labels))
        needs, ids = pairs // shard.num_classes, pairs % shard.num_classes
        owner, row = shard.owners(ids)
        offset, most = _places_in_groups(workers.size * owner + needs, workers.size**2)
        self._capacity = tf.maximum(most, 1)  # a collective needs something to send
        self._needed = tf.where(tf.equal(needs, workers.rank))[:, 0]
        self._given = tf.where(tf.equal(owner, workers.rank))[:, 0]
        self._from_owner = tf.gather(tf.stack([owner, offset], axis=1), self._needed)
        self._to_needing = tf.gather(tf.stack([needs, offset], axis=1), self._given)
        self.rows, self._of_given = tf.unique(tf.gather(row, self._given))
        among_needed = tf.cumsum(tf.cast(tf.equal(needs, workers.rank), tf.int64)) - 1
        places = tf.fill(tf.shape(label_ids), tf.size(self._needed, tf.int64))
        places = tf.tensor_scatter_nd_update(places, at_labels, tf.gather(among_needed, of_label))
        self.places = tf.gather(places, parts.own)

    def fetch(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the rows that this worker needs, and one of zeros, `[m + 1, D]` of `[r, D]`."""
        sent = self._exchange(self._to_needing, tf.gather(rows, self._of_given), name)
        fetched = tf.gather_nd(sent, self._from_owner)
        return tf.pad(tf.ensure_shape(fetched, [None, rows.shape[1]]), [[0, 1], [0, 0]])

    def push(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of what each has for the rows here, `[r, D]`.

        That is `[m + 1, D]` for the classes that a worker needs, of which the last is of none.
        """
        sent = self._exchange(self._from_owner, rows[:-1], name)
        given = tf.gather_nd(sent, self._to_needing)
        return tf.math.unsorted_segment_sum(
            tf.ensure_shape(given, [None, rows.shape[1]]), self._of_given, tf.size(self.rows)
        )

    def _exchange(self, places: tf.Tensor, rows: tf.Tensor, name: str) -> tf.Tensor:
        size, width = self._workers.size, rows.shape[1]
        shape = tf.stack([tf.constant(size, tf.int64), self._capacity, width])
        buffer = tf.ensure_shape(tf.scatter_nd(places, rows, shape), [size, None, width])
        return self._workers.exchange(buffer, f"{self._site}/{name}")


def _places_in_groups(groups: tf.Tensor, number: int) -> tf.Tensor:
    """Returns the place of each element among those of its group, and the size of the largest."""
    order = tf.cast(tf.argsort(groups, stable=True), tf.int64)
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(groups), groups, number)
    starts = tf.cumsum(sizes, exclusive=True)
    in_order = tf.range(tf.size(groups, tf.int64)) - tf.gather(starts, tf.gather(groups, order))
    shape = tf.shape(groups, tf.int64)
    return tf.scatter_nd(order[:, tf.newaxis], in_order, shape), tf.reduce_max(sizes)
