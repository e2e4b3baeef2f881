# SPDX-License-Identifier: Apache-2.0
"""tf_idf and uniform_labels in plain loops over rows, as their docstrings define them."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np

Row = tuple[list[int], dict[int, float]]


def tf_idf(train: list[Row], rows: list[Row]) -> list[dict[int, float]]:
    frequency = Counter(i for _, features in train for i, v in features.items() if v)
    weighted = []
    for _, features in rows:
        row = {
            i: v * (math.log((1 + len(train)) / (1 + frequency[i])) + 1)
            for i, v in features.items()
        }
        norm = math.sqrt(sum(v * v for v in row.values()))
        weighted.append({i: v / norm for i, v in row.items()} if norm else row)
    return weighted


def uniform_labels(
    train: list[Row], rows: list[Row], num_labels: int, max_count: int, seed: int, sample: bool
) -> list[Row]:
    """`rows` with the labels that stay; `sample`: whether rows are the training rows."""
    counts = Counter(label for labels, _ in train for label in labels)
    kept = sorted(sorted(counts, key=lambda label: (-counts[label], label))[:num_labels])
    new_ids = {label: i for i, label in enumerate(kept)}
    place = np.random.default_rng(seed).permutation(len(rows))
    used: Counter[int] = Counter()
    result: dict[int, Row] = {}
    for row in sorted(range(len(rows)), key=lambda i: place[i]):
        labels, features = rows[row]
        stay = []
        for label in labels:
            if label in new_ids and (not sample or used[label] < max_count):
                used[label] += 1
                stay.append(new_ids[label])
        if stay:
            result[row] = (stay, features)
    return [result[row] for row in sorted(result)]
