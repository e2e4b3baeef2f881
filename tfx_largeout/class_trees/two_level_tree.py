# SPDX-License-Identifier: Apache-2.0
"""TwoLevelTree: first the cluster, then the class within it; and how to form clusters."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.class_trees.base import ClassOrder, ClassTree, RowTable, TableGradient, flat
from tfx_largeout.class_trees.sweep import Sweep
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.exact.logit_blocks import NO_LOGIT
from tfx_largeout.ops.sorted_search import upper_bound

CLUSTERS, MEMBERS = "cluster", "class"
_RAREST = 1 / 16  # smallest share, relative to the mean: limits the size of clusters


def equal_clusters(num_classes: int) -> np.ndarray:
    """Returns `[C]` int32: sqrt(C) clusters of neighbouring ids, whose sizes differ by at most 1.

    Args:
        num_classes: C.
    """
    count = math.isqrt(num_classes - 1) + 1
    return (np.arange(num_classes, dtype=np.int64) * count // num_classes).astype(np.int32)


def frequency_clusters(counts: np.ndarray) -> np.ndarray:
    """Returns the cluster `[C]` int32 of each class; frequent classes are in small clusters.

    An example of class c needs G clusters and the n(c) members of the cluster of c. Let classes be
    sorted by falling share p. With clusters of n(c) neighbours, G = sum_c 1/n(c), and the mean cost
    is sum_c 1/n(c) + sum_c p_c n(c), minimal for n(c) = 1/sqrt(p_c): clusters have equal parts of
    sum_c sqrt(p_c). The cost is then 2 sum_c sqrt(p_c) <= 2 sqrt(C). Clusters of equal size cost 2
    sqrt(C), and so do clusters of equal mass, unless single classes have more than that: for both,
    sum_c p_c n(c) = C/G.

    A share is at least 1/16 of the mean, which bounds n by about 4 sqrt(C).

    Cost: O(C log C).

    Args:
        counts: `[C]`, positive, C at least 2.

    References:
        Goodman 2001, Classes for fast maximum entropy training: two levels. Mikolov et al. 2011,
        Extensions of recurrent neural network language model: clusters by frequency, of equal mass.
        Mikolov's RNNLM toolkit: equal parts of the square roots. Zweig, Makarychev 2013, Speed
        regularization and optimality in word classing: the least cost.
    """
    order = np.argsort(-counts.astype(np.float64), kind="stable")
    # Sequential sums: np.sum may add in another order on another machine, and a saved model finds
    # its classes only if the clusters are the same to the last bit.
    shares = counts[order] / np.cumsum(counts, dtype=np.float64)[-1]
    parts = np.sqrt(np.maximum(shares, _RAREST / len(counts)))
    ends = np.cumsum(parts)
    number = max(round(float(ends[-1])), 2)
    places = np.floor((ends - parts) / ends[-1] * number)
    clusters = np.empty(len(counts), np.int32)
    clusters[order] = np.cumsum(np.diff(places, prepend=places[0]) > 0)
    return clusters


class TwoLevelTree(ClassTree):
    """A root with G children, the clusters, whose children are the classes.

        log p(c | h) = log p(g | h) + log p(c | g, h),  where g is the cluster of c

    Both are softmaxes: over the G clusters, and over the members of one. The members of a cluster
    are neighbours in the table of classes, by id.

    Cost: O((G + M) D) per label, with M the size of its cluster; a sweep O((G + C) D) per example.

    Args:
        clusters: `[C]`, the cluster of each class: 0 to G - 1, none empty.

    References:
        Goodman 2001, Classes for fast maximum entropy training.
    """

    def __init__(self, clusters: np.ndarray) -> None:
        sizes = np.bincount(clusters)
        self.num_classes, self.num_clusters = len(clusters), len(sizes)
        self.order = ClassOrder(np.argsort(clusters, kind="stable"))
        self.table_rows = {CLUSTERS: self.num_clusters, MEMBERS: self.num_classes}
        with tf.init_scope():
            self.starts = tf.constant(np.concatenate([[0], np.cumsum(sizes)]), tf.int64)

    def log_probabilities(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, labels: Labels
    ) -> tuple[tf.Tensor, _Residuals]:
        no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
        every = tf.range(self.num_clusters, dtype=tf.int64)
        logits = candidate_logits(*tables[CLUSTERS], hidden, no_labels, every).candidate_logits
        by_cluster = tf.nn.log_softmax(logits)
        clusters, places, members = self._members(labels)
        logits = tables[MEMBERS].logits_of_each(members, hidden)
        # Padding counts as a cluster of zeros, so that its values are finite.
        there = (members >= 0) | ~labels.mask[..., tf.newaxis]
        by_member = tf.nn.log_softmax(tf.where(there, logits, NO_LOGIT))
        values = tf.gather(by_cluster, clusters, batch_dims=1)
        values += tf.gather(by_member, places, batch_dims=2)
        values = tf.where(labels.mask, values, 0)
        return values, _Residuals(clusters, places, members, by_cluster, by_member)

    def gradients(self, residuals: _Residuals, gradient: tf.Tensor) -> list[TableGradient]:
        clusters, places, members, by_cluster, by_member = residuals
        # d log p_j / do_i = [i = j] - p_i, in both softmaxes.
        total = tf.reduce_sum(gradient, axis=1, keepdims=True)
        examples = tf.broadcast_to(
            tf.range(tf.shape(clusters, tf.int64)[0])[:, tf.newaxis], tf.shape(clusters)
        )
        of_clusters = tf.tensor_scatter_nd_add(
            -total * tf.exp(by_cluster), tf.stack([examples, clusters], axis=-1), gradient
        )
        own = tf.one_hot(places, tf.shape(members)[2], dtype=gradient.dtype)
        of_members = gradient[..., tf.newaxis] * (own - tf.exp(by_member))
        every = tf.range(self.num_clusters, dtype=tf.int64)
        return [
            TableGradient(CLUSTERS, every, of_clusters),
            TableGradient(MEMBERS, flat(members), flat(of_members)),
        ]

    def sweep(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, best_first: bool = False
    ) -> Sweep:
        return _ClusterSweep(self, tables, hidden, best_first)

    def _members(self, labels: Labels) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        """Returns the labels' clusters and places in them `[N, K]`, and the members `[N, K, M]`.

        M is the size of the largest of these clusters; members are positions, padded with -1.
        """
        positions = self.order.positions(labels.safe_ids)
        clusters = upper_bound(self.starts, positions) - 1
        starts = tf.gather(self.starts, clusters)
        sizes = tf.where(labels.mask, tf.gather(self.starts, clusters + 1) - starts, 0)
        offsets = tf.range(tf.maximum(tf.reduce_max(sizes), 1))
        there = offsets < sizes[..., tf.newaxis]
        members = tf.where(there, starts[..., tf.newaxis] + offsets, -1)
        return clusters, tf.where(labels.mask, positions - starts, 0), members


class _Residuals(NamedTuple):
    """The data that the backward pass reuses.

    Attributes:
        clusters: `[N, K]`, the clusters of the labels.
        places: `[N, K]`, the labels' places in their clusters.
        members: `[N, K, M]`, positions; -1: none.
        by_cluster: `[N, G]`, log p(g | h).
        by_member: `[N, K, M]`, log p(c | g, h); about `NO_LOGIT`: none.
    """

    clusters: tf.Tensor
    places: tf.Tensor
    members: tf.Tensor
    by_cluster: tf.Tensor
    by_member: tf.Tensor


class _ClusterSweep(Sweep):
    """Blocks of whole clusters, at least one. A place is the number of a cluster."""

    def __init__(
        self,
        tree: TwoLevelTree,
        tables: dict[str, RowTable],
        hidden: tf.Tensor,
        best_first: bool,
    ) -> None:
        self.end, self.hidden = tree.num_clusters, hidden
        self._order, self._table = tree.order, tables[MEMBERS]
        every = tf.range(tree.num_clusters, dtype=tf.int64)
        self._by_cluster = tf.nn.log_softmax(tables[CLUSTERS].logits(every, hidden), axis=0)
        self._bounds = tf.reduce_max(self._by_cluster, axis=1)
        starts, ends = tree.starts[:-1], tree.starts[1:]
        if best_first:
            line = tf.argsort(self._bounds, direction="DESCENDING")
            starts, ends = tf.gather(starts, line), tf.gather(ends, line)
            self._by_cluster = tf.gather(self._by_cluster, line)
            self._bounds = tf.gather(self._bounds, line)
        self._starts, self._ends = starts, ends
        self._after = tf.cumsum(ends - starts)  # number of classes up to each place

    def block(self, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        before = tf.where(place > 0, tf.gather(self._after, tf.maximum(place - 1, 0)), 0)
        limit = upper_bound(self._after, before + self.size)
        next_place = tf.maximum(limit, place + 1)
        after = self._after[place:next_place] - before
        number = tf.range(after[-1])
        cluster = upper_bound(after, number)
        members = number + tf.gather(self._ends[place:next_place] - after, cluster)
        logits = self._table.logits(members, self.hidden)
        # A log-softmax in each cluster; values above 0, from rounding, become 0.
        logits -= tf.gather(tf.math.segment_max(logits, cluster), cluster)
        sums = tf.math.log(tf.math.segment_sum(tf.exp(logits), cluster))
        by_cluster = self._by_cluster[place:next_place]
        values = (logits - tf.gather(sums, cluster)) + tf.gather(by_cluster, cluster)
        return next_place, self._order.classes(members), values

    def bound(self, place: tf.Tensor) -> tf.Tensor:
        return tf.gather(self._bounds, place)
