# SPDX-License-Identifier: Apache-2.0
"""The weights of a mixture of scores, by what it ranks best on held-out examples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

_STEPS = 10  # weights are multiples of 1 / _STEPS


class HeldOut(NamedTuple):
    """What the parts of a mixture say of a batch of examples, class by class.

    Attributes:
        rows: The example of each entry, `[E]`, rising.
        ranks: The place of each entry among those of its example, `[E]`.
        scores: What the parts give its class, `[E, parts]`; entries of an example by rising class.
        hits: Whether the class is a label of the example, `[E]`.
        num_labels: How many labels each example has, `[B]`.
    """

    rows: np.ndarray
    ranks: np.ndarray
    scores: np.ndarray
    hits: np.ndarray
    num_labels: np.ndarray


def held_out(keys: np.ndarray, scores: np.ndarray, labels: np.ndarray, num_classes: int) -> HeldOut:
    """Says which of the classes that were found for a batch are labels.

    Args:
        keys: example * num_classes + class of each entry, `[E]`, rising, different ones.
        scores: What the parts give it, `[E, parts]`.
        labels: Labels of the examples, `[B, K]`, filled up with -1, different ones.
        num_classes: C.
    """
    example, _ = np.nonzero(labels >= 0)
    hits = np.isin(keys, example * num_classes + labels[labels >= 0])
    rows = keys // num_classes
    ranks = np.arange(len(rows)) - np.searchsorted(rows, rows)
    return HeldOut(rows, ranks, scores, hits, (labels >= 0).sum(axis=1))


def best_weights(batches: list[HeldOut], k: int) -> tuple[float, float, float]:
    """Returns the weights w and v with the best nDCG@k, and that nDCG@k.

    The mixture is (1 - w - v, w, v) of three parts, (1 - w, w) of two; among equals the least
    w + v, then the least v. Examples without labels do not count.

    Cost: a sort of all entries for each of 66 pairs of weights, 11 for two parts.
    """
    if not any((batch.num_labels > 0).any() for batch in batches):
        raise ValueError("data must have at least one example with a label; got none")
    num_parts = batches[0].scores.shape[1]
    steps = range(_STEPS + 1)
    pairs = [(i, j) for i in steps for j in steps if i + j <= _STEPS and (num_parts == 3 or not j)]
    best = (-1.0, 0, 0)
    for i, j in sorted(pairs, key=lambda pair: (sum(pair), pair[1])):
        weights = np.array([_STEPS - i - j, i, j][:num_parts], np.float32) / _STEPS
        ndcg = _ndcg(batches, weights, k)
        if ndcg > best[0]:
            best = ndcg, i, j
    return best[1] / _STEPS, best[2] / _STEPS, best[0]


def _ndcg(batches: list[HeldOut], weights: np.ndarray, k: int) -> float:
    discounts = 1 / np.log2(np.arange(k) + 2)
    ideal = np.append(np.nan, np.cumsum(discounts))
    sums, number = 0.0, 0
    for rows, ranks, scores, hits, num_labels in batches:
        order = np.lexsort((-(scores @ weights), rows))  # stable: ties by lower class
        first = ranks < k
        gains = np.bincount(
            rows[first], discounts[ranks[first]] * hits[order][first], len(num_labels)
        )
        some = num_labels > 0
        sums += float((gains[some] / ideal[np.minimum(num_labels[some], k)]).sum())
        number += int(some.sum())
    return sums / number
