# SPDX-License-Identifier: Apache-2.0
"""FusedAdam takes the steps of Keras's Adam."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_program

from tfx_largeout.optimizers import FusedAdam

SHAPE = (20, 3)
OPTIONS = {
    "plain": {},
    "numbers": {"beta_1": 0.5, "beta_2": 0.9, "epsilon": 1e-2},
    "no momentum": {"beta_1": 0.0},
    "decay": {"weight_decay": 0.2},
    "clipped": {"clipnorm": 0.5},
    "amsgrad": {"amsgrad": True},
    "averaged": {"use_ema": True, "ema_overwrite_frequency": 2},
    "accumulated": {"gradient_accumulation_steps": 2},
}


def start(dtype="float32"):
    values = np.random.default_rng(3).normal(size=SHAPE)
    return keras.Variable(values, dtype=dtype, name="weight")


def gradient(step, dtype="float32"):
    return tf.constant(np.random.default_rng(step).normal(size=SHAPE), dtype)


def step_of(optimizer, variable):
    def apply(g):
        optimizer.apply([g], [variable])

    return apply


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", list(OPTIONS))
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "graph"])
def test_steps_are_those_of_keras(name, dtype, compiled):
    rate = keras.optimizers.schedules.InverseTimeDecay(0.1, 2, 0.3)
    variables = start(dtype), start(dtype)
    for kind, variable in zip((FusedAdam, keras.optimizers.Adam), variables, strict=True):
        optimizer = kind(rate, **OPTIONS[name])
        optimizer.build([variable])
        apply = step_of(optimizer, variable)
        apply = tf.function(apply) if compiled else apply
        for step in range(6):
            apply(gradient(step, dtype))
    ours, theirs = (keras.ops.convert_to_numpy(keras.ops.cast(v, "float32")) for v in variables)
    if dtype == "bfloat16":  # in which Keras's own step takes them
        np.testing.assert_array_equal(ours, theirs)
        assert (ours != start(dtype).numpy()).any() or name != "numbers"  # beta_2 = 0.999 is 1
    else:
        # Keras computes 1 - beta_2^t in float32, which leaves it 4 or 5 digits.
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
        assert np.abs(ours - start().numpy()).max() > 0.1


def test_steps_in_float64_are_those_of_the_formula():
    variable, optimizer = start("float64"), FusedAdam(0.125, beta_1=0.7, beta_2=0.9)
    w, m, v = variable.numpy(), 0.0, 0.0
    for step in range(1, 6):
        g = gradient(step, "float64")
        optimizer.apply([g], [variable])
        m, v = m + 0.3 * (g - m), v + 0.1 * (g**2 - v)
        w = w - 0.125 * np.sqrt(1 - 0.9**step) / (1 - 0.7**step) * m / (np.sqrt(v) + 1e-7)
    np.testing.assert_allclose(variable.numpy(), w, rtol=1e-12)


def test_slices_of_the_same_row_are_added_up():
    """Keras's squares each of them for itself."""
    ids = [3, 0, 3, 7]
    values = tf.constant(np.random.default_rng(1).normal(size=(4, 3)), tf.float32)
    slices = tf.IndexedSlices(values, tf.constant(ids), tf.constant(SHAPE))
    sparse, dense = start(), start()
    for variable, g in ((sparse, slices), (dense, tf.convert_to_tensor(slices))):
        optimizer = FusedAdam(0.1)
        for _ in range(3):
            optimizer.apply([g], [variable])
    np.testing.assert_array_equal(sparse.numpy(), dense.numpy())
    assert (sparse.numpy()[1] == start().numpy()[1]).all()


def test_rows_without_a_gradient_move_on_as_in_keras():
    """Unlike in RowAdam, momentum continues."""
    variables = start(), start()
    for kind, variable in zip((FusedAdam, keras.optimizers.Adam), variables, strict=True):
        optimizer = kind(0.1)
        for step in range(4):
            ids = tf.constant([step, step + 1])
            values = gradient(step)[:2]
            optimizer.apply([tf.IndexedSlices(values, ids, tf.constant(SHAPE))], [variable])
    ours, theirs = (variable.numpy() for variable in variables)
    np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)
    assert np.abs(ours[0] - start().numpy()[0]).max() > 0.15  # two steps' length from one


def test_a_saved_model_trains_on_as_if_it_had_not_been_saved(tmp_path):
    x, y = gradient(0).numpy(), gradient(1).numpy()[:, :1]
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile(FusedAdam(0.01), "mse")
    model.fit(x, y, epochs=2, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.optimizer) is FusedAdam
    for trained in (model, loaded):
        trained.fit(x, y, epochs=2, verbose=0, shuffle=False)
    for own, other in zip(model.weights, loaded.weights, strict=True):
        np.testing.assert_array_equal(own.numpy(), other.numpy())


def test_a_model_compiled_with_xla_trains_alike():
    x, y = gradient(0).numpy(), gradient(1).numpy()[:, :1]
    losses = []
    for kind in (FusedAdam, keras.optimizers.Adam):
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
        model.compile(kind(0.01), "mse", jit_compile=True)
        losses.append(model.fit(x, y, epochs=5, verbose=0, shuffle=False).history["loss"])
    np.testing.assert_allclose(*losses, rtol=1e-4)


TWO_REPLICAS = """
import keras, numpy as np, tensorflow as tf
from tfx_largeout.optimizers import FusedAdam
(cpu,) = tf.config.list_physical_devices("CPU")
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
random = np.random.default_rng(0)
ids, y = random.integers(0, 5, size=(40, 2)), random.normal(size=(40, 1)).astype("float32")

def trained():
    keras.utils.set_random_seed(0)
    layers = keras.layers.Embedding(6, 3), keras.layers.Flatten(), keras.layers.Dense(1)
    model = keras.Sequential([keras.Input([2], dtype="int32"), *layers])
    model.compile(FusedAdam(0.01), "mse")
    model.fit(ids, y, 8, epochs=3, verbose=0, shuffle=False)
    return model.weights

alone = [weight.numpy() for weight in trained()]
with tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
    for weight, expected in zip(trained(), alone, strict=True):
        replicas = weight.value.values
        assert len(replicas) == 2
        for replica in replicas:
            np.testing.assert_allclose(replica.numpy(), expected, rtol=1e-4, atol=1e-5)
print("alike")
"""


@pytest.mark.cpu
def test_each_replica_of_a_strategy_takes_the_step(tmp_path):
    assert run_program(tmp_path, TWO_REPLICAS) == ["alike"]
