# SPDX-License-Identifier: Apache-2.0
"""HuffmanTree: a binary tree in which frequent classes are near the root, by Huffman's code."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.class_trees.base import ClassOrder, ClassTree, RowTable, TableGradient, flat
from tfx_largeout.class_trees.sweep import Sweep
from tfx_largeout.labels import Labels
from tfx_largeout.ops.sorted_search import upper_bound

NODES = "node"
_RAREST = 2.0**-40  # smallest share: no code word is longer than 60
_MOST_SHIFT = 62  # no path is this long, and shifts of 64 are undefined


def huffman_code_lengths(counts: np.ndarray) -> np.ndarray:
    """Returns `[C]` int32: the depth of each class in a binary tree of minimal mean depth.

    Huffman's algorithm joins the two lightest trees, C - 1 times. All trees that weigh at most the
    sum s of the two lightest are joined before any new tree (each new one weighs at least s), so
    they can be joined pair by pair in one round. Since s grows by half or more per round, fewer
    than 100 rounds are needed.

    Only the lengths are returned: they determine the mean depth, and a tree with its leaves in
    canonical order needs no pointers (see `HuffmanTree`).

    Cost: O(C log C) time; memory 60 bytes per class.

    Args:
        counts: `[C]`, positive, C at least 2.

    References:
        Huffman 1952, A Method for the Construction of Minimum-Redundancy Codes. Two queues: van
        Leeuwen 1976, On the construction of Huffman trees.
    """
    order = np.argsort(counts, kind="stable")
    weights = counts[order].astype(np.float64)
    # A sequential sum is the same to the last bit on every machine.
    leaves = np.maximum(weights, np.cumsum(weights)[-1] * _RAREST)
    lengths = np.empty(len(counts), np.int32)
    lengths[order] = _depths(_rounds(leaves), len(counts))
    return lengths


class HuffmanTree(ClassTree):
    """A binary tree with given depths of the classes, and leaves in canonical order.

        log p(c | h) = sum_n log sigmoid(s_n (w_n . h + b_n))

    over the inner nodes n on the path to c, with s_n = 1 if the path goes to the first child and -1
    if it goes to the second.

    On each level, nodes are numbered from 0: first the inner ones, then the leaves, by class id.
    The children of inner node u are then 2u and 2u + 1 of the next level, and the ancestor of leaf
    u on level d at depth l is u >> (l - d): a path takes a few shifts, without pointers or tables.
    Inner nodes are rows of the table, level by level, so that ancestors of neighbours are
    neighbours, too.

    Cost: O(l D) per label of depth l; a sweep O(C D) per example.

    Args:
        lengths: `[C]`, the depth of each class; sum_c 2^-length = 1.

    References:
        Huffman 1952. Schwartz, Kallick 1964, Generating a canonical prefix encoding. Morin, Bengio
        2005, Hierarchical Probabilistic Neural Network Language Model. Mikolov et al. 2013,
        Distributed Representations of Words and Phrases and their Compositionality.
    """

    def __init__(self, lengths: np.ndarray) -> None:
        self.num_classes = len(lengths)
        self.order = ClassOrder(np.argsort(lengths, kind="stable"))
        self.table_rows = {NODES: self.num_classes - 1}
        leaves = np.bincount(lengths)
        inner = np.ones_like(leaves)
        for level in range(1, len(leaves)):
            inner[level] = 2 * inner[level - 1] - leaves[level]
        with tf.init_scope():
            self.inner = tf.constant(inner, tf.int64)  # nodes of each level
            self.first_rows = tf.constant(np.cumsum(inner) - inner, tf.int64)
            self.first_positions = tf.constant(np.concatenate([[0], np.cumsum(leaves)]), tf.int64)

    def log_probabilities(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, labels: Labels
    ) -> tuple[tf.Tensor, _Residuals]:
        nodes, signs = self._paths(labels)
        logits = tables[NODES].logits_of_each(nodes, hidden)
        signs = tf.cast(signs, logits.dtype)
        margins = signs * logits
        values = tf.reduce_sum(tf.where(nodes >= 0, tf.math.log_sigmoid(margins), 0), axis=2)
        return values, _Residuals(nodes, signs, margins)

    def gradients(self, residuals: _Residuals, gradient: tf.Tensor) -> list[TableGradient]:
        nodes, signs, margins = residuals
        slopes = gradient[..., tf.newaxis] * signs * tf.sigmoid(-margins)
        return [TableGradient(NODES, flat(nodes), flat(slopes))]

    def sweep(
        self, tables: dict[str, RowTable], hidden: tf.Tensor, best_first: bool = False
    ) -> Sweep:
        return _LeafSweep(self, tables[NODES], hidden)

    def leaves_at(self, positions: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the depths of the leaves at positions, and u, their numbers on their levels."""
        depths = upper_bound(self.first_positions, positions) - 1
        places = positions - tf.gather(self.first_positions, depths)
        return depths, tf.gather(self.inner, depths) + places

    def _paths(self, labels: Labels) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the nodes `[N, K, P]` from the root to each label, and their signs.

        P is the depth of the deepest of these labels; nodes are rows, padded with -1.
        """
        depths, numbers = self.leaves_at(self.order.positions(labels.safe_ids))
        numbers = numbers[..., tf.newaxis]
        depths = tf.where(labels.mask, depths, 0)[..., tf.newaxis]
        levels = tf.range(tf.maximum(tf.reduce_max(depths), 1))
        below = depths - levels  # the distance from a level to the leaf
        rows = tf.gather(self.first_rows, levels) + _ancestor(numbers, below)
        signs = 1 - 2 * (_ancestor(numbers, below - 1) & 1)
        return tf.where(below > 0, rows, -1), signs


class _Residuals(NamedTuple):
    """The data that the backward pass reuses.

    Attributes:
        nodes: `[N, K, P]`, rows; -1: none.
        signs: `[N, K, P]`, 1 or -1.
        margins: `[N, K, P]`, sign times logit.
    """

    nodes: tf.Tensor
    signs: tf.Tensor
    margins: tf.Tensor


class _LeafSweep(Sweep):
    """Neighbouring leaves of one level. A place is a leaf's position."""

    def __init__(self, tree: HuffmanTree, table: RowTable, hidden: tf.Tensor) -> None:
        self.end, self.hidden = tree.num_classes, hidden
        self._tree, self._table = tree, table

    def block(self, place: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        depth, first = self._tree.leaves_at(place)
        level_end = tf.gather(self._tree.first_positions, depth + 1)
        next_place = tf.minimum(place + self.size, level_end)
        values = self._down(depth, first, first + (next_place - place))
        return next_place, self._tree.order.classes(tf.range(place, next_place)), values

    def _down(self, depth: tf.Tensor, first: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Returns log p of the nodes first, ..., end - 1 of a level, from the root down."""

        def body(level: tf.Tensor, values: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            left, right = self._range(depth - level, first, end)
            row = tf.gather(self._tree.first_rows, level)
            logits = self._table.logits(tf.range(row + left, row + right), self.hidden)
            both = [values + tf.math.log_sigmoid(logits), values + tf.math.log_sigmoid(-logits)]
            children = tf.reshape(tf.stack(both, axis=1), [2 * (right - left), -1])
            child_left, child_right = self._range(depth - level - 1, first, end)
            return level + 1, children[child_left - 2 * left : child_right - 2 * left]

        root = tf.zeros(tf.stack([1, tf.shape(self.hidden)[0]]), self.hidden.dtype)
        _, values = tf.while_loop(
            lambda level, _: level < depth,
            body,
            (tf.zeros([], tf.int64), root),
            shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
            parallel_iterations=1,
        )
        return values

    def _range(
        self, below: tf.Tensor, first: tf.Tensor, end: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the first and the end of the nodes' ancestors, a number of levels above."""
        return _ancestor(first, below), _ancestor(end - 1, below) + 1


def _ancestor(number: tf.Tensor, above: tf.Tensor) -> tf.Tensor:
    """Returns the number, on its level, of a node's ancestor, a number of levels above."""
    return tf.bitwise.right_shift(number, tf.clip_by_value(above, 0, _MOST_SHIFT))


def _rounds(leaves: np.ndarray) -> list[np.ndarray]:
    """Returns for each round the trees that it joins, as neighbouring pairs.

    Leaves are trees 0 to C - 1; joined trees get the numbers C, C + 1, ...
    """
    num_leaves = len(leaves)
    weights = np.concatenate([leaves, np.empty(num_leaves - 1)])  # joined trees are made in order
    leaf, joined, made = 0, num_leaves, num_leaves  # first remaining ones; the end
    rounds = []
    while made < len(weights):
        lightest = np.concatenate([weights[leaf:num_leaves][:2], weights[joined:made][:2]])
        limit = np.sort(lightest)[:2].sum()
        leaves_end = leaf + int(np.searchsorted(weights[leaf:num_leaves], limit, "right"))
        joined_end = joined + int(np.searchsorted(weights[joined:made], limit, "right"))
        trees = np.concatenate([np.arange(leaf, leaves_end), np.arange(joined, joined_end)])
        by_weight = np.argsort(weights[trees], kind="stable")
        trees = trees[by_weight[: len(trees) // 2 * 2]]
        pairs = weights[trees].reshape(-1, 2).sum(axis=1)
        weights[made : made + len(pairs)] = pairs
        made += len(pairs)
        from_leaves = int(np.count_nonzero(trees < num_leaves))
        leaf += from_leaves
        joined += len(trees) - from_leaves
        rounds.append(trees)
    return rounds


def _depths(rounds: list[np.ndarray], num_leaves: int) -> np.ndarray:
    """Returns the depth of each leaf, from the root (joined last) down."""
    depths = np.zeros(2 * num_leaves - 1, np.int32)
    parents_end = 2 * num_leaves - 1
    for trees in reversed(rounds):
        parents = np.arange(parents_end - len(trees) // 2, parents_end)
        parents_end = int(parents[0])
        depths[trees] = np.repeat(depths[parents], 2) + 1
    return depths[:num_leaves]
