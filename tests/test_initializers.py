# SPDX-License-Identifier: Apache-2.0
"""LogFrequency against NumPy, in heads, in files, and what it refuses."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfx_largeout as tlo

COUNTS = np.array([1, 5, 2, 2, 90])
HEADS = {
    "sampled": lambda b: tlo.heads.SampledHead(
        5, tlo.samplers.Uniform(2), tlo.optimizers.RowSGD(0.1), bias_initializer=b
    ),
    "exact": lambda b: tlo.heads.ExactSoftmaxHead(
        5, tlo.optimizers.RowSGD(0.1), bias_initializer=b
    ),
    "dense": lambda b: tlo.heads.DenseHead(5, bias_initializer=b),
    "factored": lambda b: tlo.heads.FactoredHead(5, 0.1, use_bias=True, bias_initializer=b),
}


@pytest.mark.parametrize("scale", [1, 0.5, 1000])
def test_the_softmax_of_the_bias_is_the_frequency(scale):
    bias = np.float64(tlo.initializers.LogFrequency(COUNTS * scale)([5]))
    np.testing.assert_allclose(np.exp(bias), COUNTS / 100, rtol=1e-6)


def test_many_large_counts_are_added_without_overflow():
    bias = tlo.initializers.LogFrequency(np.full(4, 2**62))([4], "float64")
    np.testing.assert_allclose(bias, np.log(np.full(4, 0.25)), rtol=1e-12)


@pytest.mark.parametrize("name", HEADS)
def test_a_head_begins_with_it_and_is_saved(name, tmp_path):
    model = keras.Sequential([keras.Input([3]), HEADS[name](tlo.initializers.LogFrequency(COUNTS))])
    scores = np.float64(model(np.zeros([1, 3])))[0]
    np.testing.assert_allclose(np.exp(scores), COUNTS / 100, rtol=1e-5)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1].bias_initializer
    np.testing.assert_array_equal(loaded.counts, COUNTS)


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"counts must be positive .* got 0 for class 1"):
        tlo.initializers.LogFrequency([1, 0])
    with pytest.raises(ValueError, match=r"shape must be \[C\].* got \(5, 2\)"):
        tlo.initializers.LogFrequency(COUNTS)([5, 2])
    with pytest.raises(ValueError, match="one entry for each of the 6 classes; got 5"):
        tlo.initializers.LogFrequency(COUNTS)([6])
