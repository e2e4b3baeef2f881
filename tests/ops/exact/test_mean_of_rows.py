# SPDX-License-Identifier: Apache-2.0
"""mean_of_rows: against NumPy in float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, use

from tfx_largeout.ops.exact.mean_of_rows import mean_of_rows

every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
RNG = np.random.default_rng(0)


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", [(1,), (70001,), (1, 1), (33, 7), (5000, 129), (3, 2000), (9, 0)])
def test_values(implementation, shape, dtype, monkeypatch):
    variable = tf.Variable(tf.cast(RNG.normal(size=shape) + 3, dtype))
    mean = mean_of_rows(variable, implementation=use(implementation, monkeypatch))
    expected = tf.cast(variable, tf.float64).numpy().mean(axis=0)
    assert mean.dtype == tf.float32
    np.testing.assert_allclose(mean, expected, rtol=2e-7)


@every_implementation
def test_the_rounding_of_many_rows_does_not_add_up(implementation, monkeypatch):
    variable = tf.Variable(1 + 0.1 * RNG.random((4_000_000, 1)).astype("float32"))
    expected = variable.numpy().astype(np.float64).mean()
    mean = mean_of_rows(variable, implementation=use(implementation, monkeypatch))
    np.testing.assert_allclose(mean, [expected], rtol=1e-7)


def test_float64_and_a_variable_of_keras():
    with tf.device("cpu"):
        variable = keras.Variable(RNG.normal(size=(1000, 3)), dtype="float64")
    mean = mean_of_rows(variable)
    np.testing.assert_allclose(mean, variable.numpy().mean(axis=0), rtol=1e-14)


@every_implementation
def test_nothing_is_hidden_that_is_not_finite(implementation, monkeypatch):
    rows = RNG.normal(size=(300, 3))
    rows[100, 1], rows[299, 2] = np.nan, -np.inf
    variable = tf.Variable(rows.astype("float32"))
    mean = mean_of_rows(variable, implementation=use(implementation, monkeypatch)).numpy()
    assert np.isfinite(mean[0])
    assert np.isnan(mean[1])
    assert mean[2] == -np.inf


@pytest.mark.parametrize(
    ("variable", "error", "message"),
    [
        (tf.zeros([0, 3]), ValueError, r"variable must be \[C, ...\] with C at least 1; got shape"),
        (tf.zeros([]), ValueError, r"variable must be \[C, ...\] with C at least 1; got shape"),
        (tf.zeros([2, 3], tf.int32), TypeError, "weights must be float32.*; got dtype int32"),
    ],
)
def test_bad_variables(variable, error, message):
    with pytest.raises(error, match=message):
        mean_of_rows(tf.Variable(variable))


def test_a_step_beside_it_does_not_copy_the_variable():
    """Read as a tensor, the variable would be copied by the op that changes it."""
    variable = tf.Variable(tf.ones([1000, 8]))

    @tf.function
    def step():
        mean = mean_of_rows(variable)
        variable.scatter_sub(tf.IndexedSlices(tf.ones([1, 8]), [3]))
        return mean

    np.testing.assert_allclose(step(), np.ones(8))
    np.testing.assert_allclose(step(), np.full(8, 0.999))
    types = {op.type for op in step.get_concrete_function().graph.get_operations()}
    assert "ReadVariableOp" not in types
