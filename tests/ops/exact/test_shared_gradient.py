# SPDX-License-Identifier: Apache-2.0
"""shared_gradient: its expectation, and its value with all classes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.exact.shared_gradient import shared_gradient, systematic_samples

RNG = np.random.default_rng(3)


@pytest.mark.parametrize(("classes", "drawn"), [(7, 3), (12, 4), (100, 1), (9, 8)])
def test_each_class_is_drawn_as_often(classes, drawn):
    samples = 20_000
    ids = systematic_samples(classes, drawn, tf.constant(samples), tf.constant([4, 5], tf.int64))
    assert ids.shape == (samples, drawn)
    assert (np.diff(ids, axis=1) > 0).all()  # none twice
    p = drawn / classes
    counts = np.bincount(ids.numpy().ravel(), minlength=classes)
    error = np.sqrt(samples * p * (1 - p))
    assert len(counts) == classes
    assert np.abs(counts - samples * p).max() < 4 * error


def test_classes_of_a_large_layer():
    classes = 2**31 - 1
    ids = systematic_samples(classes, 50_000, tf.constant(3), tf.constant([1, 2], tf.int64)).numpy()
    assert ids.min() >= 0
    assert ids.max() < classes
    np.testing.assert_allclose(np.diff(ids), classes / 50_000, atol=1)


def update_of(examples, classes):
    """The sums that `candidate_update` makes: dL/dW and dL/db."""
    hidden, _, ids, _, gradient = (x.numpy() for x in examples)
    kernel, bias = np.zeros((classes, hidden.shape[1])), np.zeros(classes)
    for h, own, g in zip(hidden, ids, gradient, strict=True):
        here = own >= 0
        np.add.at(kernel, own[here], g[here, np.newaxis] * h)
        np.add.at(bias, own[here], g[here])
    return kernel, bias


@pytest.mark.parametrize("signs", ["negative", "both", "positive"])
@pytest.mark.parametrize("batch", [1, 20, 50])
def test_all_classes_have_the_shared_gradient(batch, signs):
    classes = 20
    hidden = RNG.normal(size=(batch, 3))
    gradient = RNG.normal(size=batch)
    gradient = {"negative": -np.abs(gradient), "both": gradient, "positive": np.abs(gradient)}[
        signs
    ]
    seed = tf.constant([1, 2], tf.int64)
    examples = shared_gradient(tf.constant(hidden), tf.constant(gradient), classes, classes, seed)
    kernel, bias = update_of(examples, classes)
    expected = gradient @ hidden / classes
    np.testing.assert_allclose(kernel, np.tile(expected, (classes, 1)), rtol=1e-12)
    np.testing.assert_allclose(bias, np.full(classes, gradient.sum() / classes), rtol=1e-12)


@pytest.mark.parametrize("batch", [3, 25])
def test_a_few_classes_have_it_in_expectation(batch):
    classes, draws = 20, 2000
    hidden, gradient = RNG.normal(size=(batch, 3)), RNG.normal(size=batch)
    constants = tf.constant(hidden), tf.constant(gradient), classes, 6
    draw = tf.function(lambda seed: shared_gradient(*constants, seed), autograph=False)
    updates = [update_of(draw(tf.constant([9, i], tf.int64)), classes) for i in range(draws)]
    v = gradient @ hidden / classes
    for got, expected in zip(
        zip(*updates, strict=True), (v, gradient.sum() / classes), strict=True
    ):
        error = np.std(got, axis=0) / np.sqrt(draws)
        assert (np.abs(np.mean(got, axis=0) - expected) < 4 * error).all()


@pytest.mark.parametrize("batch", [0, 4])
def test_without_a_gradient_no_row_is_named(batch):
    examples = shared_gradient(
        tf.ones([batch, 3]), tf.zeros([batch]), 20, 6, tf.constant([1, 2], tf.int64)
    )
    assert (examples.without_zeros().candidates.numpy() == -1).all()
    assert np.isfinite(examples.hidden.numpy()).all()
