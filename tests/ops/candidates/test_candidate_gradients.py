# SPDX-License-Identifier: Apache-2.0
"""candidate_gradients: dL/dh and gradients of given rows, against float64; W does not change."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_gradients import (
    GradientSums,
    candidate_gradients,
    candidate_rows,
)

CLASSES, WIDTH, EXAMPLES = 23, 5, 7


def problem(own, padded):
    rng = np.random.default_rng(4)
    kernel, bias = rng.normal(size=[CLASSES, WIDTH]), rng.normal(size=CLASSES)
    hidden = rng.normal(size=[EXAMPLES, WIDTH])
    labels = rng.integers(0, CLASSES, [EXAMPLES, 2])
    candidates = rng.integers(0, CLASSES, [EXAMPLES, 4] if own else [4])
    if padded:
        labels[1:, 1] = -1
        candidates[..., -2] = -1
    return kernel, bias, hidden, labels, candidates, rng.normal(size=[2, EXAMPLES, 4])


def by_definition(kernel, hidden, labels, candidates, true_gradient, gradient):
    matrix = np.zeros([EXAMPLES, CLASSES])
    for ids, values in ((labels, true_gradient), (candidates, gradient)):
        for example in range(EXAMPLES):
            for c, value in zip(ids[example], values[example], strict=True):
                if c >= 0:
                    matrix[example, c] += value
    return matrix @ kernel, matrix.T @ hidden, matrix.sum(axis=0)


@pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float64"])
@pytest.mark.parametrize("implementation", ["auto", "composed"])
@pytest.mark.parametrize("has_bias", [True, False])
def test_gradients_are_those_of_the_definition(own, padded, dtype, implementation, has_bias):
    kernel, bias, hidden, labels, candidates, (first, gradient) = problem(own, padded)
    kernel = tf.Variable(tf.cast(kernel, dtype))
    bias = tf.Variable(tf.cast(bias, dtype)) if has_bias else None
    computed = "float64" if dtype == "float64" else "float32"
    sums = GradientSums(kernel, bias)

    @tf.function
    def run():
        return candidate_gradients(
            kernel,
            bias,
            sums,
            tf.cast(hidden, computed),
            tf.constant(labels),
            tf.constant(candidates),
            tf.cast(first[:, :2], computed),
            tf.cast(gradient, computed),
            implementation=implementation,
        )

    before = tf.cast(kernel, "float64").numpy()
    everyone = np.broadcast_to(candidates, [EXAMPLES, 4])
    wanted = by_definition(before, hidden, labels, everyone, first[:, :2], gradient)
    for _ in range(2):  # sums begin with zeros each time
        found = run()
        ids = found.ids.numpy()
        named = candidate_rows([tf.constant(labels), tf.constant(candidates)])
        np.testing.assert_array_equal(ids, named)
        assert {*ids} == {*labels[labels >= 0], *candidates[candidates >= 0]}
        np.testing.assert_allclose(found.hidden, wanted[0], rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(found.kernel, wanted[1][ids], rtol=1e-4, atol=1e-5)
        if has_bias:
            np.testing.assert_allclose(found.bias, wanted[2][ids], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(tf.cast(kernel, "float64"), before)
    assert all(v.shape[0] is None and len(v.numpy()) == 1 for v in sums.variables)


def test_a_batch_without_classes():
    kernel = tf.Variable(tf.ones([CLASSES, WIDTH]))
    nothing, none = tf.fill([2, 1], tf.constant(-1, tf.int64)), tf.zeros([2, 1])
    found = candidate_gradients(
        kernel, None, GradientSums(kernel, None), tf.ones([2, WIDTH]), nothing, nothing, none, none
    )
    assert found.ids.shape == [0] and found.kernel.shape == [0, WIDTH]
    np.testing.assert_array_equal(found.hidden, np.zeros([2, WIDTH]))
