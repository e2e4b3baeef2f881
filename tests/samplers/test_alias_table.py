# SPDX-License-Identifier: Apache-2.0
"""The probabilities that the boxes of an alias table imply."""

from __future__ import annotations

import numpy as np
import pytest
from samplers.drawing import assert_mean, counts_of_draws

from tfx_largeout.samplers.class_distribution import AliasTable

RNG = np.random.default_rng(0)
WEIGHTS = {
    "one": np.ones(1),
    "two": np.array([1.0, 3.0]),
    "even": np.full(1000, 0.1),
    "even thirds": np.full(3, 1 / 3),
    "random": RNG.random(1000) + 1e-3,
    "zipf": 1 / np.arange(1.0, 5001),
    "zipf, shuffled": RNG.permutation(1 / np.arange(1.0, 5001)),
    "zipf squared": RNG.permutation(1 / np.arange(1.0, 5001) ** 2),
    "one is nearly all": np.array([1e-9, 1.0, 1e-12, 1e-3]),
    "the last is the heaviest": np.arange(1.0, 101),
    "two values": np.repeat([0.5, 1.5], 50),
}


@pytest.mark.parametrize("name", list(WEIGHTS))
def test_the_boxes_hold_the_probabilities(name):
    weights = WEIGHTS[name]
    table = AliasTable(weights)
    threshold, alias = table._threshold.numpy().astype(np.float64), table._alias.numpy()
    assert np.all((threshold >= 0) & (threshold <= 1))
    content = threshold + np.bincount(alias, 1 - threshold, weights.size)
    np.testing.assert_allclose(content / weights.size, weights / weights.sum(), rtol=3e-7)


def test_draws_have_the_probabilities():
    weights = np.array([5.0, 1.0, 0.1, 3.0, 7.0, 0.5])
    ids = AliasTable(weights).sample([4000, 10], [1, 2]).numpy()
    assert_mean(counts_of_draws(ids, 6), 10 * weights / weights.sum())
