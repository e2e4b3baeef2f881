# SPDX-License-Identifier: Apache-2.0
"""Softmax over a tree of classes, in NumPy float64, from its definition.

A binary tree is given by the depths of its leaves. On each level the inner nodes come first, then
the leaves, by class; the children of a level's inner nodes are the next level, in order. Inner
nodes are rows of W, level by level.
"""

from __future__ import annotations

import numpy as np
from oracles.softmax import log_softmax
from oracles.softmax import logits as scores


def log_sigmoid(x):
    return -np.logaddexp(0, -x)


# Two levels


def two_level(hidden, kernel, bias, cluster_kernel, cluster_bias, clusters):
    """Returns log p `[N, C]`; rows of `kernel` are ordered by cluster, then by class."""
    members = scores(hidden, kernel, bias)
    result = np.empty_like(members)
    by_cluster = log_softmax(scores(hidden, cluster_kernel, cluster_bias))
    order = np.argsort(clusters, kind="stable")
    ends = np.cumsum(np.bincount(clusters))
    for cluster, end in enumerate(ends):
        here = slice(0 if cluster == 0 else ends[cluster - 1], end)
        own = log_softmax(members[:, here])
        result[:, order[here]] = by_cluster[:, cluster, np.newaxis] + own
    return result


def two_level_gradients(hidden, kernel, bias, cluster_kernel, cluster_bias, clusters, targets):
    """Returns d sum(targets * log p) with respect to the scores of members and of clusters."""
    order = np.argsort(clusters, kind="stable")
    members = scores(hidden, kernel, bias)
    of_clusters = scores(hidden, cluster_kernel, cluster_bias)
    members_gradient, clusters_gradient = np.zeros_like(members), np.zeros_like(of_clusters)
    p_cluster = np.exp(log_softmax(of_clusters))
    for i, c in np.argwhere(targets != 0):
        target, cluster = targets[i, c], clusters[c]
        clusters_gradient[i] -= target * p_cluster[i]
        clusters_gradient[i, cluster] += target
        here = np.flatnonzero(clusters[order] == cluster)
        members_gradient[i, here] -= target * np.exp(log_softmax(members[i, here]))
        members_gradient[i, np.flatnonzero(order == c)] += target
    return members_gradient, clusters_gradient


# Binary trees


def levels(lengths):
    """Yields for each level the parents `[n]` and sides `[n]` of its nodes, and its leaves."""
    inner, next_row = np.zeros(1, np.int64), 1
    for level in range(1, max(lengths) + 1):
        leaves = np.flatnonzero(lengths == level)
        parents, sides = np.repeat(inner, 2), np.tile([1, -1], len(inner))
        inner = next_row + np.arange(2 * len(inner) - len(leaves))
        next_row += len(inner)
        yield parents, sides, leaves
    assert len(inner) == 0  # the lengths form a tree


def paths(lengths):
    """Returns for each class its inner nodes and the signs, from the root down."""
    below, result = {0: ([], [])}, {}
    for parents, sides, leaves in levels(lengths):
        nodes = [
            (below[parent][0] + [parent], below[parent][1] + [side])
            for parent, side in zip(parents.tolist(), sides.tolist(), strict=True)
        ]
        result.update(zip(leaves.tolist(), nodes[len(nodes) - len(leaves) :], strict=True))
        first = max(below) + 1
        below = {first + j: node for j, node in enumerate(nodes[: len(nodes) - len(leaves)])}
    return [result[c] for c in range(len(lengths))]


def binary_tree(hidden, kernel, bias, lengths):
    """Returns log p `[N, C]`."""
    margins = scores(hidden, kernel, bias)
    result = np.empty((len(margins), len(lengths)))
    first, inner = 0, np.zeros((len(margins), 1))
    for parents, sides, leaves in levels(lengths):
        values = inner[:, parents - first] + log_sigmoid(sides * margins[:, parents])
        first = parents[-1] + 1
        inner, result[:, leaves] = np.split(values, [len(parents) - len(leaves)], axis=1)
    return result


def binary_tree_gradient(hidden, kernel, bias, lengths, targets):
    """Returns d sum(targets * log p) with respect to the scores of the inner nodes."""
    margins = scores(hidden, kernel, bias)
    gradient, ways = np.zeros_like(margins), paths(lengths)
    for i, c in np.argwhere(targets != 0):
        for node, sign in zip(*ways[c], strict=True):
            gradient[i, node] += targets[i, c] * sign / (1 + np.exp(sign * margins[i, node]))
    return gradient


# Losses


def loss(log_probabilities, label_lists):
    """Returns `[N]`: the mean over the labels of -log p."""
    pairs = zip(log_probabilities, label_lists, strict=True)
    return np.array([-np.mean([row[c] for c in labels]) for row, labels in pairs])


def two_level_loss(*arguments):
    return loss(two_level(*arguments[:-1]), arguments[-1])


def binary_tree_loss(*arguments):
    return loss(binary_tree(*arguments[:-1]), arguments[-1])
