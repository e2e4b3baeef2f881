# SPDX-License-Identifier: Apache-2.0
"""RowRMSprop is Adam without momentum over all rows, of which it visits the touched ones."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.optimizers import RowAdam, RowRMSprop

ROWS, WIDTH = 40, 3


def slices(step, dtype="float32"):
    """Gradients of three rows, small ids much more often than large ones; one of them twice."""
    rng = np.random.default_rng(step)
    ids = (ROWS * rng.random(3) ** 4).astype(np.int64)
    values = tf.constant(rng.normal(size=(4, WIDTH)), dtype)
    return tf.IndexedSlices(values, tf.constant([*ids, ids[0]]), tf.constant([ROWS, WIDTH]))


def oracle(weights, rate, rho, steps):
    """The dense method in float64."""
    v = np.zeros_like(weights)
    for t in range(1, steps + 1):
        g = tf.convert_to_tensor(slices(t, "float64")).numpy()
        v = rho * v + (1 - rho) * g**2
        root = np.sqrt(np.where(v > 0, v, 1))
        weights = weights - rate(t - 1) * np.sqrt(1 - rho**t) * g / root
    return weights


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("rho, steps", [(0.7, 130), (0.999, 60)])  # 130 steps: three periods
def test_untouched_rows_forget_as_in_the_dense_method(rho, steps, sparse, compiled, dtype):
    start = np.random.default_rng(3).normal(size=(ROWS, WIDTH))
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.1, 20, 0.3)
    variable = keras.Variable(start, dtype=dtype, name="weight")
    optimizer = RowRMSprop(schedule, rho=rho)
    optimizer.build([variable])

    def apply(values, ids):
        gradient = tf.IndexedSlices(values, ids, tf.constant([ROWS, WIDTH]))
        optimizer.apply([gradient if sparse else tf.convert_to_tensor(gradient)], [variable])

    apply = tf.function(apply) if compiled else apply
    for t in range(1, steps + 1):
        gradient = slices(t, dtype)
        apply(gradient.values, gradient.indices)
    expected = oracle(start, lambda t: 0.1 / (1 + 0.3 * t / 20), rho, steps)
    np.testing.assert_allclose(variable.numpy(), expected, atol=2e-5)


def test_row_adam_without_momentum_is_another_method():
    variables = [keras.Variable(np.ones((ROWS, WIDTH), "float32")) for _ in range(2)]
    for kind, variable in zip((RowRMSprop, RowAdam), variables, strict=True):
        optimizer = kind(0.1) if kind is RowRMSprop else kind(0.1, beta_1=0.0)
        optimizer.build([variable])
        for t in range(20):
            optimizer.apply([slices(t)], [variable])
    assert np.abs(variables[0].numpy() - variables[1].numpy()).max() > 0.1


def test_it_goes_on_as_if_it_had_not_been_saved():
    straight, resumed = (keras.Variable(np.ones((ROWS, WIDTH), "float32")) for _ in range(2))
    first, second = RowRMSprop(0.1, rho=0.7), RowRMSprop(0.1, rho=0.7)
    first.build([straight])
    second.build([resumed])
    for t in range(50):
        if t == 43:
            resumed.assign(straight)
            for old, new in zip(first.variables, second.variables, strict=True):
                new.assign(old)
        first.apply([slices(t)], [straight])
        if t >= 43:
            second.apply([slices(t)], [resumed])
    np.testing.assert_array_equal(straight.numpy(), resumed.numpy())


def test_config_makes_the_same_again():
    optimizer = RowRMSprop(0.5, rho=0.25, epsilon=1e-3, clipnorm=2.0)
    again = keras.optimizers.deserialize(keras.optimizers.serialize(optimizer))
    assert again.get_config() == optimizer.get_config()
    assert (again.rho, again.epsilon, again.clipnorm) == (0.25, 1e-3, 2.0)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"rho": 0.0}, "rho must be .*; got 0.0"),
        ({"rho": 1.0}, "rho must be .*; got 1.0"),
        ({"epsilon": 0.0}, "epsilon must be .*; got 0.0"),
        ({"weight_decay": 0.1}, "no weight_decay.*; got 0.1"),
        ({"row_clip_norm": 1.0}, "no row_clip_norm.*; got 1.0"),
    ],
)
def test_arguments_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        RowRMSprop(0.1, **arguments)


def test_heads_refuse_it():
    with pytest.raises(TypeError, match="one that serves heads"):
        tlo.heads.SampledHead(50, tlo.samplers.LogUniform(10), RowRMSprop(0.1))
