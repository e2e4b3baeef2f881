# SPDX-License-Identifier: Apache-2.0
"""Bernoulli: the exponent, independence, empty draws."""

from __future__ import annotations

import numpy as np
import pytest
from oracles import samplers as oracle
from samplers.drawing import assert_mean, counts_of_draws, draw, many_draws

from tfx_largeout import samplers

FREQUENCIES = {
    "zipf": np.ceil(2000 / np.arange(1, 1001)),
    "even": np.ones(1000),
    "random": np.random.default_rng(0).random(1000) + 1e-6,
    "steep": 1 / np.arange(1.0, 1001) ** 3,
}


@pytest.mark.parametrize("name", list(FREQUENCIES))
@pytest.mark.parametrize("expected", [1.5, 20, 200.25, 999, 1000])
def test_alpha_solves_its_equation(name, expected):
    counts = FREQUENCIES[name]
    sampler = samplers.Bernoulli(counts, expected)
    sampler.build(1000)
    assert sampler.alpha >= 0
    total = (oracle.unigram(counts) ** sampler.alpha).sum()
    np.testing.assert_allclose(total, expected, rtol=1e-10)
    np.testing.assert_allclose(
        sampler.alpha, oracle.bernoulli_alpha(counts, expected), rtol=1e-9, atol=1e-12
    )


def test_the_papers_example():
    """C = 1000, K = 20 "results in b(c) = f(c)^0.54": so do frequencies within a factor of 4."""
    counts = np.random.default_rng(0).integers(1, 5, 1000)
    sampler = samplers.Bernoulli(counts, 20)
    sampler.build(1000)
    assert 0.5 < sampler.alpha < 0.6


@pytest.mark.parametrize("expected", [6.0, 35.0])
def test_classes_are_independent_and_their_number_varies_as_it_should(expected):
    counts = np.ceil(300 / np.arange(1, 41))
    sampler = samplers.Bernoulli(counts, expected, per_example=True)
    sampler.build(40)
    ids, _, _ = many_draws(sampler, 0, 5000)
    inclusion = oracle.bernoulli(counts, expected)
    drawn = counts_of_draws(ids, 40)
    size = drawn.sum(axis=1)
    assert_mean(size, expected)
    assert_mean((size - expected) ** 2, (inclusion * (1 - inclusion)).sum())
    for left, right in [(0, 1), (2, 10), (0, 39)]:
        assert_mean(drawn[:, left] * drawn[:, right], inclusion[left] * inclusion[right])


def test_a_draw_without_candidates():
    sampler = samplers.Bernoulli(np.ones(10), 0.001)
    sampler.build(10)
    ids, log_expected, true_log_expected = draw(sampler, [[4], [5]])
    assert ids.shape == log_expected.shape == (0,)
    np.testing.assert_allclose(true_log_expected, np.log(1e-4), rtol=1e-5)
    sampler = samplers.Bernoulli(np.ones(10), 0.001, per_example=True)
    sampler.build(10)
    assert draw(sampler, [[4], [5]]).ids.shape == (2, 0)


def test_own_candidates_are_packed_to_the_left():
    sampler = samplers.Bernoulli(np.ones(40), 6, per_example=True)
    sampler.build(40)
    ids = draw(sampler, np.zeros([50, 1], int)).ids.numpy()
    counts = (ids >= 0).sum(axis=1)
    assert counts.max() == ids.shape[1]
    np.testing.assert_array_equal(ids >= 0, np.arange(ids.shape[1]) < counts[:, None])


def test_a_class_that_is_nearly_certain():
    counts = [10**15, 1, 1, 1]
    sampler = samplers.Bernoulli(counts, 1.5, per_example=True)
    sampler.build(4)
    ids, log_expected, _ = many_draws(sampler, 0, 2000)
    assert np.all((ids == 0).any(axis=1))
    assert np.isfinite(log_expected).all()
    assert_mean(counts_of_draws(ids, 4)[:, 1:], 0.5 / 3)


def test_expected_that_no_exponent_gives():
    sampler = samplers.Bernoulli([10**20 // 10, 1], 0.01)
    with pytest.raises(ValueError, match=r"num_sampled must be .*; got 0.01, too small"):
        sampler.build(2)
    assert sampler.num_classes is None
