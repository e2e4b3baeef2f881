# SPDX-License-Identifier: Apache-2.0
"""RowRoutes: sends rows of classes from workers that hold them to workers that need them."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.devices import on_host
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.global_batch import Parts
from tfx_largeout.distribute.workers import Workers


class RowRoutes:
    """Which workers hold the rows of labels, and which need them.

    All workers know all labels, so no worker sends requests. A worker gets the row of a class once,
    however many of its examples have that label. The rows for each pair of workers are padded to
    the largest number of any pair.

    Cost: O(L log L) for L labels. `fetch` and `push` receive (R - 1) m rows, m that largest number:
    about f (B / R) K rows, f = (R - 1) / R, if labels differ and are spread evenly.

    `label_ids` are the labels of all workers, `[N, K]` int64, padded with -1; `parts` has the
    worker of each example.

    Attributes:
        rows: `[r]` int64: the rows here that any worker needs, each once.
        places: `[n, K]` int64: the places in `fetch` of the label rows of this worker's examples;
            for padding the number of rows that it needs.
    """

    @on_host
    def __init__(
        self, workers: Workers, shard: ClassShard, label_ids: tf.Tensor, parts: Parts, site: str
    ) -> None:
        self._workers, self._site = workers, site
        keys = label_ids + shard.num_classes * parts.ranks[:, tf.newaxis]
        at_labels = tf.where(label_ids >= 0)
        # A pair is a worker and a class whose row it needs.
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
        """Returns the needed rows and a last row of zeros, `[needed + 1, D]`, from `[r, D]`."""
        sent = self._exchange(self._to_needing, tf.gather(rows, self._of_given), name)
        fetched = tf.gather_nd(sent, self._from_owner)
        return tf.pad(tf.ensure_shape(fetched, [None, rows.shape[1]]), [[0, 1], [0, 0]])

    def push(self, rows: tf.Tensor, name: str) -> tf.Tensor:
        """Returns the sum over workers of their values for the rows here, `[r, D]`.

        Each worker passes values for the rows that it needs, as `fetch` returns them; the last is
        ignored.
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
    """Returns the place of each element within its group, and the size of the largest group."""
    order = tf.cast(tf.argsort(groups, stable=True), tf.int64)
    sizes = tf.math.unsorted_segment_sum(tf.ones_like(groups), groups, number)
    starts = tf.cumsum(sizes, exclusive=True)
    in_order = tf.range(tf.size(groups, tf.int64)) - tf.gather(starts, tf.gather(groups, order))
    shape = tf.shape(groups, tf.int64)
    return tf.scatter_nd(order[:, tf.newaxis], in_order, shape), tf.reduce_max(sizes)
