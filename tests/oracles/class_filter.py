# SPDX-License-Identifier: Apache-2.0
"""The k best of the classes that each example may find, in NumPy float64."""

from __future__ import annotations

import numpy as np


def findable(num_classes, excluded, groups=None, wanted=None):
    """Returns `[N, C]` bool: which classes each example may find."""
    may = np.ones((len(excluded), num_classes), bool)
    for n, ids in enumerate(excluded):
        may[n, [c for c in ids if c >= 0]] = False
        if groups is not None:
            may[n] &= (groups >= 0) & ((wanted[n] < 0) | (groups == wanted[n]))
    return may


def best(scores, may, k):
    """Returns the k best scores of each row and their classes; ties by lower id; -inf and -1."""
    top, ids = np.full((len(scores), k), -np.inf), np.full((len(scores), k), -1)
    for n, row in enumerate(scores):
        order = sorted(np.flatnonzero(may[n]), key=lambda c: (-row[c], c))[:k]
        top[n, : len(order)], ids[n, : len(order)] = row[order], order
    return top, ids


def ranks(scores, may, labels):
    """Returns the rank of each label among the classes that may be found; -1 at padding.

    The rank of a label that may not be found is infinite.
    """
    found = np.full(np.shape(labels), -1.0)
    for n, row in enumerate(labels):
        for slot, label in enumerate(row):
            if label >= 0:
                above = (scores[n] > scores[n, label]) | (
                    (scores[n] == scores[n, label]) & (np.arange(scores.shape[1]) < label)
                )
                found[n, slot] = (above & may[n]).sum() if may[n, label] else np.inf
    return found
