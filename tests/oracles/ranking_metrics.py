# SPDX-License-Identifier: Apache-2.0
"""Ranking metrics in plain Python, straight from their definitions.

`scores` is `[N, C]`, and may be a masked array, of classes that may not be found; `labels` a list
of N lists of class ids, in which -1 is padding and repeats count once; `weights` a list of N
numbers, or None for ones. Each row is sorted in full. A row without labels is left out.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

Labels = Sequence[Sequence[int]]
Weights = Sequence[float] | None


def ranking(row: np.ndarray) -> list[int]:
    """Class ids by falling score, ties by lower id, without masked classes."""
    ids = np.flatnonzero(~np.ma.getmaskarray(row)).tolist()
    return sorted(ids, key=lambda c: (-float(row[c]), c))


def _label_set(row: Sequence[int]) -> set[int]:
    return {int(c) for c in row if c != -1}


def _weighted_mean(values: list[float | None], weights: Weights) -> float:
    weights = [1.0] * len(values) if weights is None else [float(w) for w in weights]
    kept = [(v, w) for v, w in zip(values, weights, strict=True) if w != 0 and v is not None]
    total = math.fsum(w for _, w in kept)
    return math.fsum(v * w for v, w in kept) / total if total else math.nan


def precision_at_k(scores: np.ndarray, labels: Labels, k: int, weights: Weights = None) -> float:
    values = []
    for row, ids in zip(scores, labels, strict=True):
        relevant = _label_set(ids)
        found = sum(c in relevant for c in ranking(row)[:k])
        values.append(found / k if relevant else None)
    return _weighted_mean(values, weights)


def recall_at_k(scores: np.ndarray, labels: Labels, k: int, weights: Weights = None) -> float:
    values = []
    for row, ids in zip(scores, labels, strict=True):
        relevant = _label_set(ids)
        found = sum(c in relevant for c in ranking(row)[:k])
        values.append(found / len(relevant) if relevant else None)
    return _weighted_mean(values, weights)


def ndcg_at_k(scores: np.ndarray, labels: Labels, k: int, weights: Weights = None) -> float:
    values = []
    for row, ids in zip(scores, labels, strict=True):
        relevant = _label_set(ids)
        dcg = 0.0
        for place, c in enumerate(ranking(row)[:k], start=1):
            if c in relevant:
                dcg += 1 / math.log2(place + 1)
        ideal = sum(1 / math.log2(place + 1) for place in range(1, min(k, len(relevant)) + 1))
        values.append(dcg / ideal if relevant else None)
    return _weighted_mean(values, weights)


def mean_reciprocal_rank(scores: np.ndarray, labels: Labels, weights: Weights = None) -> float:
    values = []
    for row, ids in zip(scores, labels, strict=True):
        relevant = _label_set(ids)
        value = 0.0 if relevant else None
        for place, c in enumerate(ranking(row), start=1):
            if c in relevant:
                value = 1 / place
                break
        values.append(value)
    return _weighted_mean(values, weights)


def propensity(count: int, num_examples: int, a: float, b: float) -> float:
    c = (math.log(num_examples) - 1) * (b + 1) ** a
    return 1 / (1 + c * math.exp(-a * math.log(count + b)))


def ps_precision_at_k(
    scores: np.ndarray,
    labels: Labels,
    k: int,
    label_counts: Sequence[int],
    num_examples: int,
    a: float,
    b: float,
    weights: Weights = None,
) -> float:
    weights = [1.0] * len(labels) if weights is None else weights
    gain = best = 0.0
    for row, ids, weight in zip(scores, labels, weights, strict=True):
        worth = {
            c: 1 / propensity(int(label_counts[c]), num_examples, a, b) for c in _label_set(ids)
        }
        gain += weight * sum(worth.get(c, 0.0) for c in ranking(row)[:k]) / k
        best += weight * sum(sorted(worth.values(), reverse=True)[:k]) / k
    return gain / best if best else math.nan


def exact_loss(scores: np.ndarray, labels: Labels, weights: Weights = None) -> float:
    values = []
    for row, ids in zip(scores, labels, strict=True):
        relevant = _label_set(ids)
        top = max(float(o) for o in row)
        log_z = top + math.log(math.fsum(math.exp(float(o) - top) for o in row))
        mean = math.fsum(float(row[c]) for c in relevant) / max(len(relevant), 1)
        values.append(log_z - mean if relevant else None)
    return _weighted_mean(values, weights)


def perplexity(scores: np.ndarray, labels: Labels, weights: Weights = None) -> float:
    return math.exp(exact_loss(scores, labels, weights))
