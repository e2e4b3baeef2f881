# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import heapq

import numpy as np
import pytest

from tfx_largeout.class_trees import huffman_code_lengths


def least_total_depth(counts):
    """Huffman's algorithm: the sum of the weights of all joined trees."""
    heap = [float(count) for count in counts]
    heapq.heapify(heap)
    total = 0.0
    while len(heap) > 1:
        joined = heapq.heappop(heap) + heapq.heappop(heap)
        total += joined
        heapq.heappush(heap, joined)
    return total


def counts_of(kind, num_classes, rng):
    return {
        "few values": lambda: rng.integers(1, 5, num_classes),
        "many values": lambda: rng.integers(1, 10**6, num_classes),
        "equal": lambda: np.ones(num_classes, np.int8),
        "reals": lambda: rng.random(num_classes) + 1e-6,
        "powers of two": lambda: 2.0 ** rng.integers(0, 20, num_classes),
        "powers": lambda: 1.3 ** rng.integers(0, 60, num_classes),
        "zipf": lambda: 1 / (1 + rng.permutation(num_classes)),
    }[kind]()


KINDS = ["few values", "many values", "equal", "reals", "powers of two", "powers", "zipf"]


@pytest.mark.parametrize("kind", KINDS)
def test_lengths_are_those_of_a_tree_of_least_mean_depth(kind):
    rng = np.random.default_rng(0)
    for num_classes in [2, 3, 4, 5, *rng.integers(6, 200, 40), 20_000]:
        counts = counts_of(kind, num_classes, rng)
        lengths = huffman_code_lengths(counts)
        assert lengths.min() >= 1
        assert np.ldexp(1.0, -lengths.astype(int)).sum() == 1  # Kraft: every leaf is taken
        assert (lengths * counts).sum() == pytest.approx(least_total_depth(counts), rel=1e-12)


def test_frequent_classes_are_no_deeper():
    counts = counts_of("many values", 1000, np.random.default_rng(1))
    lengths = huffman_code_lengths(counts)
    assert np.all(np.diff(lengths[np.argsort(counts)]) <= 0)


def test_no_code_word_is_longer_than_60():
    for ratio in (2.0, 1.62, 1.5):
        lengths = huffman_code_lengths(ratio ** -np.arange(900.0))
        assert lengths.max() <= 60
        assert np.ldexp(1.0, -lengths.astype(int)).sum() == 1
