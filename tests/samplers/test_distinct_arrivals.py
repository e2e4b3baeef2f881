# SPDX-License-Identifier: Apache-2.0
"""Draws without replacement against the process that defines them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from oracles import samplers as oracle
from samplers.drawing import counts_of_draws

from tfx_largeout.samplers.class_distribution import LogUniformDistribution
from tfx_largeout.samplers.distinct_arrivals import DistinctArrivals

CLASSES, SAMPLED, DRAWS = 20, 5, 5000


def draws(arrivals, count=DRAWS):
    @tf.function(autograph=False)
    def run():
        signature = (tf.TensorSpec([SAMPLED], tf.int64), tf.TensorSpec([], tf.float64))
        return tf.map_fn(
            lambda step: tuple(arrivals.draw(tf.stack([2, step]))),
            tf.range(count),
            fn_output_signature=signature,
        )

    return [field.numpy() for field in run()]


def assert_same_mean(ours, theirs):
    error = np.sqrt(ours.var(axis=0) / len(ours) + theirs.var(axis=0) / len(theirs))
    difference = np.abs(ours.mean(axis=0) - theirs.mean(axis=0))
    np.testing.assert_array_less(difference, 4 * error + 1e-12)


def ways():
    """One block that suffices, many short blocks, all classes at once."""
    made = [DistinctArrivals(LogUniformDistribution(CLASSES), SAMPLED) for _ in range(3)]
    for arrivals, block in zip(made, (60, 2, None), strict=True):
        arrivals.block = block
    return made


@pytest.mark.parametrize("way", [0, 1, 2], ids=["one block", "short blocks", "all times"])
def test_it_is_the_process_of_the_definition(way):
    ids, tries = draws(ways()[way])
    expected_ids, expected_tries = oracle.distinct_arrivals(
        np.random.default_rng(0), oracle.log_uniform(CLASSES), SAMPLED, 20_000
    )
    assert all(len(set(row)) == SAMPLED for row in ids.tolist())
    assert_same_mean(tries, expected_tries)
    assert_same_mean(tries**2, expected_tries**2)
    for place in range(SAMPLED):  # the order of arrival, too
        assert_same_mean(
            counts_of_draws(ids[:, [place]], CLASSES),
            counts_of_draws(expected_ids[:, [place]], CLASSES),
        )
    # The number of tries goes with the classes: it is small where the likeliest came late.
    assert_same_mean(tries * (ids[:, 0] == 0), expected_tries * (expected_ids[:, 0] == 0))


@pytest.mark.parametrize(("classes", "sampled"), [(1000, 10), (10_000, 1000), (100_000, 1000)])
def test_one_block_nearly_always_suffices(classes, sampled):
    distribution = LogUniformDistribution(classes)
    arrivals = DistinctArrivals(distribution, sampled)
    assert sampled < arrivals.block <= classes
    tries = [distribution.sample([arrivals.block], [9, step]).numpy() for step in range(300)]
    assert sum(len(set(row.tolist())) <= sampled for row in tries) <= 1


def test_all_times_are_drawn_where_tries_would_be_more_than_classes():
    distribution = LogUniformDistribution(1000)
    assert DistinctArrivals(distribution, 900).block is None
    assert DistinctArrivals(distribution, 100).block is not None


@pytest.mark.parametrize("tries", [3, 7, 20, 150, 4000])
def test_expected_counts_are_the_mean_over_the_waiting_times(tries):
    arrivals = DistinctArrivals(LogUniformDistribution(CLASSES), 2)
    found = arrivals.log_expected(tf.range(CLASSES, dtype=tf.int64), tf.constant(tries, tf.float64))
    probabilities = oracle.log_uniform(CLASSES)
    expected = [oracle.expected_count(q, tries) for q in probabilities]
    np.testing.assert_allclose(np.exp(found), expected, rtol=1e-6)


def test_expected_counts_of_rare_classes():
    arrivals = DistinctArrivals(LogUniformDistribution(10**6), 10)
    found = arrivals.log_expected(tf.constant([10**6 - 1], tf.int64), tf.constant(100, tf.float64))
    rare = oracle.log_uniform(10**6)[-1]
    # To first order 1 / (q (T - 1)) + 1 / 2.
    np.testing.assert_allclose(found, -np.log(1 / (rare * 99) + 0.5), rtol=1e-9)
