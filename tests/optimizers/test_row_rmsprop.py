# SPDX-License-Identifier: Apache-2.0
"""RowRMSprop equals Adam without momentum over all rows, but visits only touched rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.optimizers import FusedAdam, RowAdam, RowRMSprop

ROWS, WIDTH = 40, 3


def slices(step, dtype="float32", size=1.0):
    """Gradients of three rows, small ids much more often than large ones; one of them twice."""
    rng = np.random.default_rng(step)
    ids = (ROWS * rng.random(3) ** 4).astype(np.int64)
    values = tf.constant(size * rng.normal(size=(4, WIDTH)), dtype)
    return tf.IndexedSlices(values, tf.constant([*ids, ids[0]]), tf.constant([ROWS, WIDTH]))


def oracle(weights, gradients, rho, rate=lambda t: 0.1, epsilon=1e-14):
    """The dense method in float64."""
    v = np.zeros_like(weights)
    for t, gradient in enumerate(gradients, start=1):
        g = 0 if gradient is None else tf.convert_to_tensor(gradient).numpy().astype(np.float64)
        v = rho * v + (1 - rho) * g**2
        weights = weights - rate(t - 1) * np.sqrt(1 - rho**t) * g / np.sqrt(v + epsilon)
    return weights


def step_of(optimizer, variable, compiled, sparse=False):
    """Returns a function of the values and ids of slices that takes a step."""
    optimizer.build([variable])

    def apply(values, ids):
        gradient = tf.IndexedSlices(values, ids, tf.constant([ROWS, WIDTH]))
        optimizer.apply([gradient if sparse else tf.convert_to_tensor(gradient)], [variable])

    return tf.function(apply) if compiled else apply


def start():
    return np.random.default_rng(3).normal(size=(ROWS, WIDTH))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
@pytest.mark.parametrize("rho, steps", [(0.7, 130), (0.999, 60)])  # 130 steps: three periods
def test_untouched_rows_forget_as_in_the_dense_method(rho, steps, sparse, compiled, dtype):
    schedule = keras.optimizers.schedules.InverseTimeDecay(0.1, 20, 0.3)
    variable = keras.Variable(start(), dtype=dtype, name="weight")
    apply = step_of(RowRMSprop(schedule, rho=rho), variable, compiled, sparse)
    for t in range(1, steps + 1):
        gradient = slices(t, dtype)
        apply(gradient.values, gradient.indices)
    gradients = [slices(t, "float64") for t in range(1, steps + 1)]
    expected = oracle(start(), gradients, rho, lambda t: 0.1 / (1 + 0.3 * t / 20))
    np.testing.assert_allclose(variable.numpy(), expected, atol=2e-5)


@pytest.mark.parametrize("implementation", ["op", "composed"])
@pytest.mark.parametrize("size", [1e-5, 1e-7, 1e-9])  # the root of epsilon is 1e-7
def test_epsilon_is_the_same_in_every_step(size, implementation, monkeypatch):
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", str(int(implementation == "composed")))
    variable = keras.Variable(start(), dtype="float32", name="weight")
    optimizer = RowRMSprop(0.1, rho=0.7)
    gradients = [slices(t, size=size) for t in range(100)]
    for gradient in gradients:
        optimizer.apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy(), oracle(start(), gradients, 0.7), atol=2e-5)


def test_a_variable_that_steps_leave_out_goes_on_as_if_its_gradient_had_been_zero():
    """Also across the step in which its slot would have been put right."""
    always, at_times = (keras.Variable(start(), dtype="float32") for _ in range(2))
    optimizer = RowRMSprop(0.1, rho=0.7)
    optimizer.build([always, at_times])
    gradients = [None if 35 <= t < 45 or 70 <= t < 110 else slices(t) for t in range(120)]
    for gradient in gradients:
        optimizer.apply([slices(0), gradient], [always, at_times])
    np.testing.assert_allclose(at_times.numpy(), oracle(start(), gradients, 0.7), atol=2e-5)


def test_a_step_leaves_the_slots_of_other_rows_alone_until_they_are_put_right():
    variable = keras.Variable(start(), dtype="float32")
    optimizer = RowRMSprop(0.1, rho=0.99)
    first, second = (
        tf.IndexedSlices(tf.ones([1, WIDTH]), tf.constant([row]), tf.constant([ROWS, WIDTH]))
        for row in (1, 2)
    )
    optimizer.apply([first], [variable])
    (slot,) = optimizer.slots_of(variable)
    before = slot.numpy()
    for _ in range(5):
        optimizer.apply([second], [variable])
    assert np.all(before[1] > 0)
    np.testing.assert_array_equal(np.delete(slot.numpy(), 2, axis=0), np.delete(before, 2, axis=0))


def test_a_refused_step_changes_nothing_when_the_slot_is_put_right():
    variable = keras.Variable(start(), dtype="float32")
    optimizer = RowRMSprop(0.1, rho=0.7)
    gradients = [slices(t) for t in range(60)]
    nan = tf.IndexedSlices(np.nan * gradients[0].values, gradients[0].indices, [ROWS, WIDTH])
    for gradient in gradients:
        with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
            optimizer.apply([nan], [variable])
        optimizer.apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy(), oracle(start(), gradients, 0.7), atol=2e-5)


@pytest.mark.parametrize("iterations", [0, 20, 10_000])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_the_count_of_steps_may_be_set(iterations, compiled):
    """As Adam without momentum: the correction uses the new count, the decay of v does not."""
    weights = []
    for optimizer in (RowRMSprop(0.1, rho=0.7), FusedAdam(0.1, beta_1=0.0, beta_2=0.7)):
        variable = keras.Variable(start(), dtype="float32")
        apply = step_of(optimizer, variable, compiled)
        for t in range(50):  # more than a period
            apply(slices(t).values, slices(t).indices)
        optimizer.iterations.assign(iterations)
        for t in range(50, 100):
            apply(slices(t).values, slices(t).indices)
        weights.append(variable.numpy())
    np.testing.assert_allclose(weights[0], weights[1], atol=1e-4)


def test_row_adam_without_momentum_is_another_method():
    variables = [keras.Variable(np.ones((ROWS, WIDTH), "float32")) for _ in range(2)]
    for kind, variable in zip((RowRMSprop, RowAdam), variables, strict=True):
        optimizer = kind(0.1) if kind is RowRMSprop else kind(0.1, beta_1=0.0)
        optimizer.build([variable])
        for t in range(20):
            optimizer.apply([slices(t)], [variable])
    assert np.abs(variables[0].numpy() - variables[1].numpy()).max() > 0.1


def test_a_saved_model_goes_on_as_if_it_had_not_been_saved(tmp_path):
    x, y = np.arange(ROWS)[:, None], np.arange(ROWS) % 5
    model = keras.Sequential([keras.layers.Embedding(ROWS, 5), keras.layers.Flatten()])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(RowRMSprop(0.1, rho=0.7), loss, jit_compile=False)
    model.fit(x, y, batch_size=1, epochs=1, shuffle=False, verbose=0)  # 40 steps, a period is 39
    model.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, again):
        each.fit(x, y, batch_size=1, epochs=2, shuffle=False, verbose=0)
    np.testing.assert_array_equal(model.get_weights()[0], again.get_weights()[0])


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
