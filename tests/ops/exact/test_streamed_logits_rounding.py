# SPDX-License-Identifier: Apache-2.0
"""Rounding, NaN and infinity in streamed_logits."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, random_labels, use
from oracles import streamed_logits as oracle

from tfx_largeout.ops.exact.streamed_logits import streamed_logits

INF, NAN = np.inf, np.nan


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, monkeypatch):
    return use(request.param, monkeypatch)


@pytest.mark.parametrize("scale", [0.01, 1.0, 20.0])
@pytest.mark.parametrize("shape", [(33, 252, 10007), (7, 507, 1009), (64, 64, 50021)], ids=str)
def test_error_is_that_of_float32(shape, scale, implementation):
    """Not above the error of the plain float32 formula, up to a few units in the last place."""
    batch, width, num_classes = shape
    rng = np.random.default_rng(0)
    hidden = (scale * rng.normal(size=(batch, width))).astype(np.float32)
    kernel = rng.normal(size=(num_classes, width)).astype(np.float32)
    bias = rng.normal(size=num_classes).astype(np.float32)
    labels = random_labels(rng, batch, 4, num_classes)
    result = streamed_logits(hidden, kernel, bias, labels, 5, implementation=implementation)
    expected = oracle.streamed_logits(hidden, kernel, bias, labels, 5)

    logits = tf.matmul(hidden, kernel, transpose_b=True) + bias
    plain_sum = tf.reduce_logsumexp(logits, axis=1)
    plain_targets = np.where(labels < 0, 0, np.take_along_axis(logits.numpy(), labels, 1))
    plain_scores = tf.math.top_k(logits, 5).values
    for ours, plain, exact in (
        (result.logsumexp, plain_sum, expected.logsumexp),
        (result.target_logits, plain_targets, expected.target_logits),
        (result.top_scores, plain_scores, expected.top_scores),
    ):
        unit = np.spacing(np.abs(exact).max().astype(np.float32))
        assert np.abs(ours - exact).max() <= 1.5 * np.abs(plain - exact).max() + 4 * unit


def test_many_small_terms_are_not_lost(implementation):
    """One logit of 0 and 2 million of -20: together they are worth 0.4% of it."""
    num_classes = 2_000_000
    bias = np.full(num_classes, -20.0, np.float32)
    bias[0] = 0.0
    kernel, labels = np.zeros((num_classes, 1), np.float32), np.zeros((1, 0), np.int64)
    result = streamed_logits([[0.0]], kernel, bias, labels, 0, implementation=implementation)
    exact = np.log1p((num_classes - 1) * np.exp(-20.0))
    np.testing.assert_allclose(result.logsumexp, [exact], rtol=0, atol=1e-6)


# Logits of one example; classes beyond these are -1.
ROWS = [
    [NAN, 1.0, NAN, 2.0],
    [INF, 1.0, INF, 2.0],
    [-INF, 1.0, -INF, 2.0],
    [NAN, INF, -INF, 2.0],
    [-INF, NAN, 2.0, INF],
    [3e38, 3e38, -3e38, 1.0],
]


@pytest.mark.parametrize("num_classes", [4, 29, 1000])
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_nan_and_infinity_in_the_bias(row, num_classes, implementation):
    bias = np.full(num_classes, -1.0, np.float32)
    bias[num_classes // 4 * np.arange(4)] = row
    labels = np.array([num_classes // 4 * np.arange(4)] * 2)
    hidden, kernel = np.zeros((2, 3), np.float32), np.ones((num_classes, 3), np.float32)
    check_special(hidden, kernel, bias, labels, num_classes, implementation)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_all_logits_are_special(value, implementation):
    bias, labels = np.full(50, value, np.float32), np.array([[0, 49, -1]])
    hidden, kernel = np.zeros((1, 3), np.float32), np.ones((50, 3), np.float32)
    check_special(hidden, kernel, bias, labels, 50, implementation)


@pytest.mark.parametrize("value", [INF, -INF, NAN])
@pytest.mark.parametrize("where", ["hidden", "kernel"])
def test_nan_and_infinity_in_hidden_and_kernel(where, value, implementation):
    rng = np.random.default_rng(1)
    hidden = rng.integers(-3, 4, (20, 5)).astype(np.float32)
    kernel = rng.integers(-3, 4, (700, 5)).astype(np.float32)
    (hidden if where == "hidden" else kernel)[3, 2] = value
    labels = random_labels(rng, 20, 3, 700)
    labels[:, 0] = 3
    check_special(hidden, kernel, None, labels, 10, implementation)


def check_special(hidden, kernel, bias, labels, k, implementation):
    result = streamed_logits(hidden, kernel, bias, labels, k, implementation=implementation)
    expected = oracle.streamed_logits(hidden, kernel, bias, labels, k)
    np.testing.assert_array_equal(result.target_ranks, expected.target_ranks)
    np.testing.assert_array_equal(result.top_ids, expected.top_ids)
    np.testing.assert_array_equal(result.top_scores, expected.top_scores.astype(np.float32))
    np.testing.assert_array_equal(result.target_logits, expected.target_logits.astype(np.float32))
    np.testing.assert_allclose(result.logsumexp, expected.logsumexp, rtol=1e-6)
    # The plain formula has the same rule for the logsumexp.
    logits = tf.matmul(hidden, kernel, transpose_b=True) + (0.0 if bias is None else bias)
    np.testing.assert_allclose(result.logsumexp, tf.reduce_logsumexp(logits, 1), rtol=1e-6)
