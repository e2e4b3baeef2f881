# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.ops.rows import row_blocks

SHAPE = (10_000, 7)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(row_blocks, "_BLOCK_ELEMENTS", 7 * 999)


@pytest.mark.parametrize(
    "initializer",
    [
        keras.initializers.GlorotUniform(seed=1),
        keras.initializers.HeNormal(),
        keras.initializers.LecunUniform(seed=1),
        keras.initializers.VarianceScaling(2.0, "fan_out", "uniform", seed=1),
        keras.initializers.RandomNormal(0.3, 0.1, seed=1),
        keras.initializers.RandomUniform(-1, 2, seed=1),
        keras.initializers.TruncatedNormal(seed=1),
    ],
    ids=lambda i: type(i).__name__,
)
def test_blocks_have_the_moments_of_the_whole_and_differ(initializer):
    values = row_blocks.initialize_by_blocks(initializer, SHAPE, "float32").numpy()
    whole = initializer(SHAPE, dtype="float32").numpy()
    assert values.shape == SHAPE
    count = values.size
    np.testing.assert_allclose(values.mean(), whole.mean(), atol=5 * whole.std() / count**0.5)
    np.testing.assert_allclose(values.std(), whole.std(), rtol=5 / count**0.5)
    assert len(np.unique(values[:, 0])) > 9_900
    again = row_blocks.initialize_by_blocks(initializer, SHAPE, "float32").numpy()
    np.testing.assert_array_equal(again, values)


@pytest.mark.parametrize("name", ["zeros", "ones"])
def test_constants(name):
    initializer = keras.initializers.get(name)
    values = row_blocks.initialize_by_blocks(initializer, SHAPE, "float64")
    np.testing.assert_array_equal(values, initializer(SHAPE, dtype="float64"))
    assert values.dtype == tf.float64


def test_other_initializers_are_called_once_for_the_whole():
    calls = []

    def rows(shape, dtype):
        calls.append(shape)
        return tf.cast(tf.reshape(tf.range(70_000), shape), dtype)

    values = row_blocks.initialize_by_blocks(rows, SHAPE, "float32")
    np.testing.assert_array_equal(values, np.arange(70_000).reshape(SHAPE))
    assert calls == [SHAPE]


@pytest.mark.parametrize("initializer", [keras.initializers.RandomNormal(seed=1), np.ones])
def test_a_last_column(initializer):
    column = tf.range(SHAPE[0], dtype=tf.float32)
    values = row_blocks.initialize_by_blocks(initializer, SHAPE, "float32", column)
    np.testing.assert_array_equal(values[:, -1], column)
    alone = row_blocks.initialize_by_blocks(initializer, SHAPE, "float32")
    np.testing.assert_array_equal(values[:, :-1], alone)
