# SPDX-License-Identifier: Apache-2.0
"""Clusters of classes for a tree of two levels. NumPy."""

from __future__ import annotations

import math

import numpy as np

_RAREST = 1 / 16  # of the mean share: no class is treated as rarer, so no cluster is huge


def equal_clusters(num_classes: int) -> np.ndarray:
    """Returns `[C]` int32: sqrt(C) clusters of neighbouring ids, whose sizes differ by at most 1.

    Args:
        num_classes: C.
    """
    count = math.isqrt(num_classes - 1) + 1
    return (np.arange(num_classes, dtype=np.int64) * count // num_classes).astype(np.int32)


def frequency_clusters(counts: np.ndarray) -> np.ndarray:
    """Returns the cluster `[C]` int32 of each class; frequent classes are in small clusters.

    An example of class c looks at G clusters and at the n(c) members of its own. Let classes be
    sorted by falling share p. With clusters of n(c) neighbours there are G = sum_c 1/n(c) of them,
    and the mean cost is sum_c 1/n(c) + sum_c p_c n(c), least for n(c) = 1/sqrt(p_c): clusters hold
    equal parts of sum_c sqrt(p_c). The cost is then 2 sum_c sqrt(p_c) <= 2 sqrt(C). Clusters of
    equal size cost 2 sqrt(C), and so do those of equal mass unless single classes outweigh them:
    for both, sum_c p_c n(c) = C/G.

    A class counts as at least 1/16 of the mean, which bounds n by about 4 sqrt(C).

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
    # Sums one after the other: np.sum may add in another order on another machine, and a saved
    # model finds its classes only if the clusters are the same to the last bit.
    shares = counts[order] / np.cumsum(counts, dtype=np.float64)[-1]
    parts = np.sqrt(np.maximum(shares, _RAREST / len(counts)))
    ends = np.cumsum(parts)
    number = max(round(float(ends[-1])), 2)
    places = np.floor((ends - parts) / ends[-1] * number)
    clusters = np.empty(len(counts), np.int32)
    clusters[order] = np.cumsum(np.diff(places, prepend=places[0]) > 0)
    return clusters
