# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from tfx_largeout.class_trees import equal_clusters, frequency_clusters


def zipf(num_classes):
    return 1 / np.arange(1, num_classes + 1)


def mean_cost(clusters, counts):
    """The mean number of logits that an example looks at."""
    sizes = np.bincount(clusters)
    return len(sizes) + (sizes[clusters] * counts / counts.sum()).sum()


@pytest.mark.parametrize("num_classes", [2, 3, 4, 5, 10, 99, 100, 101, 10_000])
def test_equal_clusters_are_equal(num_classes):
    clusters = equal_clusters(num_classes)
    sizes = np.bincount(clusters)
    assert len(clusters) == num_classes
    assert np.all(np.diff(clusters) >= 0)
    assert sizes.min() >= 1
    assert sizes.max() - sizes.min() <= 1
    assert len(sizes) == int(np.ceil(np.sqrt(num_classes)))


@pytest.mark.parametrize(
    "counts",
    [
        np.ones(2),
        np.array([1e9, 1, 1]),
        np.arange(1, 1000),
        zipf(5000)[::-1],
        2.0 ** -np.arange(100),
        np.ones(1000, np.int8),
    ],
    ids=["two", "one rules", "linear", "zipf", "geometric", "equal"],
)
def test_frequency_clusters_partition_the_classes_in_order_of_frequency(counts):
    clusters = frequency_clusters(counts)
    sizes = np.bincount(clusters)
    assert len(clusters) == len(counts)
    assert len(sizes) >= 2
    assert sizes.min() >= 1
    assert sizes.max() <= 5 * np.sqrt(len(counts)) + 1
    by_cluster = np.argsort(clusters, kind="stable")
    least = np.minimum.reduceat(counts[by_cluster], np.cumsum(sizes) - sizes)
    most = np.maximum.reduceat(counts[by_cluster], np.cumsum(sizes) - sizes)
    assert np.all(least[:-1] >= most[1:])


def test_frequency_clusters_cost_what_is_claimed():
    counts = zipf(100_000)
    least = 2 * np.sqrt(counts / counts.sum()).sum()
    cost = mean_cost(frequency_clusters(counts), counts)
    assert cost == pytest.approx(least, rel=0.01)
    assert cost < 0.6 * mean_cost(equal_clusters(len(counts)), counts)


def test_equal_mass_costs_as_much_as_equal_size_where_no_class_is_heavy():
    counts = zipf(110_000)[10_000:]
    shares = np.cumsum(counts) / counts.sum()
    of_equal_mass = np.unique(np.minimum(shares * 1000, 999).astype(int), return_inverse=True)[1]
    equal = mean_cost(np.arange(100_000) // 100, counts)
    assert mean_cost(of_equal_mass, counts) == pytest.approx(equal, rel=0.03)
