# SPDX-License-Identifier: Apache-2.0
"""Examples with weight 0 change no row of a head with a row optimizer."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.samplers import Uniform

CLASSES, WIDTH = 60, 4
HEADS = {
    "shared": lambda optimizer: tlo.heads.SampledHead(CLASSES, Uniform(2), optimizer, seed=4),
    "own": lambda optimizer: tlo.heads.SampledHead(
        CLASSES, Uniform(2, per_example=True), optimizer, seed=4
    ),
    "exact": lambda optimizer: tlo.heads.ExactSoftmaxHead(CLASSES, optimizer, 2, seed=4),
    "two levels": lambda optimizer: tlo.heads.HierarchicalSoftmaxHead(CLASSES, optimizer),
}
LOSSES = {
    "exact": tlo.losses.SoftmaxCrossentropy,
    "two levels": tlo.losses.NegativeLogLikelihood,
}
OPTIMIZERS = {
    "adam": lambda: tlo.optimizers.RowAdam(0.1),
    "decay": lambda: tlo.optimizers.RowSGD(0.1, weight_decay=1.0),
}


@pytest.mark.parametrize("optimizer", list(OPTIMIZERS))
@pytest.mark.parametrize("name", list(HEADS))
def test_the_labels_of_examples_of_weight_0_do_not_matter(name, optimizer):
    """Also if the optimizer has moments of their rows, or decays touched rows."""
    x = np.random.default_rng(0).normal(size=(6, WIDTH)).astype("float32")
    first, weights = np.array([50, 50, 9, 9, 1, 2]), np.array([1, 1, 1, 1, 0, 0], "float32")
    results = []
    for unseen in (-1, 50):
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input([WIDTH]), HEADS[name](OPTIMIZERS[optimizer]())])
        model.compile("sgd", LOSSES.get(name, tlo.losses.ComplementarySum)(), run_eagerly=True)
        model.train_on_batch(x, first)
        for _ in range(3):
            model.train_on_batch(x, np.array([1, 2, 3, 4, unseen, unseen]), sample_weight=weights)
        results.append(model.layers[-1].get_weights())
    for left, right in zip(*results, strict=True):
        np.testing.assert_array_equal(left, right)
