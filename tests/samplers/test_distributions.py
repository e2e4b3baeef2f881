# SPDX-License-Identifier: Apache-2.0
"""Uniform, log-uniform and unigram probabilities against their definitions and TensorFlow's."""

from __future__ import annotations

import json

import numpy as np
import pytest
import tensorflow as tf
from oracles import samplers as oracle
from samplers.drawing import draw

from tfx_largeout import samplers

COUNTS = [3, 1, 10, 2, 2, 50, 7]


@pytest.mark.parametrize("classes", [2, 7, 1000, 100_000])
def test_log_uniform_probabilities_are_tensorflows(classes):
    sampler = samplers.LogUniform(1, unique=False)
    sampler.build(classes)
    ids = np.unique(np.geomspace(1, classes, 50).astype(int)) - 1
    log_expected = draw(sampler, ids.reshape(-1, 1)).true_log_expected.numpy()[:, 0]
    np.testing.assert_allclose(log_expected, np.log(oracle.log_uniform(classes)[ids]), rtol=1e-6)
    _, theirs, _ = tf.random.log_uniform_candidate_sampler(
        ids.reshape(-1, 1), 1, 1, unique=False, range_max=classes
    )
    np.testing.assert_allclose(log_expected, np.log(theirs[:, 0]), rtol=1e-3)  # float32 logs


@pytest.mark.parametrize("power", [0.0, 0.75, 1.0])
@pytest.mark.parametrize("convert", [list, np.array, np.float32, lambda c: np.array(c, "uint8")])
def test_unigram_probabilities(power, convert):
    sampler = samplers.Unigram(convert(COUNTS), 3, power, unique=False)
    sampler.build(7)
    log_expected = draw(sampler, np.arange(7).reshape(-1, 1)).true_log_expected[:, 0]
    np.testing.assert_allclose(
        log_expected, np.log(3 * oracle.unigram(COUNTS, power)), rtol=1e-6, atol=1e-6
    )


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (samplers.Uniform(3), oracle.uniform(7)),
        (samplers.LogUniform(3), oracle.log_uniform(7)),
        (samplers.Unigram(COUNTS, 3, 0.75), oracle.unigram(COUNTS, 0.75)),
    ],
)
def test_probabilities_of_all_classes_are_those_of_each(sampler, expected):
    distribution = sampler.distribution(7)
    np.testing.assert_allclose(distribution.probabilities(), expected, rtol=1e-6)
    each = np.exp(distribution.log_probability(tf.range(7, dtype=tf.int64)))
    np.testing.assert_allclose(each, expected, rtol=1e-6)


@pytest.mark.parametrize("make", [samplers.Uniform, samplers.LogUniform])
def test_ids_of_very_many_classes(make):
    classes = 2**40
    sampler = make(1000, unique=False)
    sampler.build(classes)
    ids, log_expected, _ = draw(sampler, [[2**40 - 1]])
    assert ids.dtype == tf.int64
    assert np.all((ids >= 0) & (ids < classes))
    assert np.max(ids) > 2**38
    assert len(np.unique(ids)) > 900 or make is samplers.LogUniform
    assert np.isfinite(log_expected).all()


def test_log_uniform_draws_spread_evenly_over_the_logarithm():
    sampler = samplers.LogUniform(100_000, unique=False)
    sampler.build(10**6)
    ids = draw(sampler, [[0]]).ids.numpy()
    edges = np.array([0, 1, 10, 100, 1000, 10_000, 100_000, 10**6])
    found = np.histogram(ids, edges)[0]
    expected = 100_000 * np.diff(np.log(edges + 1)) / np.log(10**6 + 1)
    assert np.all(np.abs(found - expected) < 4 * np.sqrt(expected))


def test_counts_of_a_million_classes_are_saved_in_few_bytes():
    counts = np.random.default_rng(0).zipf(1.5, 10**6).clip(1, 10**9)
    sampler = samplers.Unigram(counts, 10)
    text = json.dumps(sampler.get_config())
    assert len(text) < 2_000_000
    copy = samplers.Unigram.from_config(json.loads(text))
    np.testing.assert_array_equal(copy.counts, counts)
    assert copy.counts.dtype == np.int64


def test_counts_are_copied():
    counts = np.array(COUNTS)
    sampler = samplers.Unigram(counts, 3)
    counts[0] = 10**6
    assert sampler.counts[0] == 3
