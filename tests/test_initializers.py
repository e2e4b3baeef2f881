# SPDX-License-Identifier: Apache-2.0
"""LogFrequency compared with NumPy, in heads, in files, and its errors."""

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


@pytest.mark.parametrize(
    ("counts", "smoothing", "expected"),
    [
        ([4, 0, 6, 0], None, [6, 2, 8, 2]),  # half of the least one above 0
        ([0.5, 0, 0.25, 0.25], None, [0.625, 0.125, 0.375, 0.375]),  # whatever the scale
        ([1, 5, 2, 0], 1, [2, 6, 3, 1]),
        ([1, 5, 2, 4], 0.5, [1.5, 5.5, 2.5, 4.5]),
        ([1, 5, 2, 4], None, [1, 5, 2, 4]),
        ([0, 0, 0, 0], None, [1, 1, 1, 1]),
    ],
)
def test_an_item_that_is_never_seen_in_training_is_rare(counts, smoothing, expected, tmp_path):
    initializer = tlo.initializers.LogFrequency(counts, smoothing)
    shares = np.exp(np.float64(initializer([4])))
    np.testing.assert_allclose(shares, expected / np.sum(expected), rtol=1e-6)
    head = tlo.heads.DenseHead(4, bias_initializer=initializer)
    keras.Sequential([keras.Input([3]), head]).save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras").layers[-1].bias_initializer
    np.testing.assert_array_equal(loaded.counts, counts)
    assert loaded.smoothing == smoothing
    np.testing.assert_array_equal(loaded([4]), initializer([4]))


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"where smoothing is 0; got 0 for class 1"):
        tlo.initializers.LogFrequency([1, 0], smoothing=0)
    with pytest.raises(ValueError, match=r"counts must be finite and at least 0 .* got -1 for"):
        tlo.initializers.LogFrequency([1, -1])
    with pytest.raises(ValueError, match=r"smoothing must be a finite number at least 0; got nan"):
        tlo.initializers.LogFrequency([1, 1], float("nan"))
    with pytest.raises(ValueError, match=r"shape must be \[C\].* got \(5, 2\)"):
        tlo.initializers.LogFrequency(COUNTS)([5, 2])
    with pytest.raises(ValueError, match="one entry for each of the 6 classes; got 5"):
        tlo.initializers.LogFrequency(COUNTS)([6])
