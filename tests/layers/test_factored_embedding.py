# SPDX-License-Identifier: Apache-2.0
"""FactoredEmbedding: lookups and logits of one W, against a dense layer with two copies."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from loading import assert_goes_on_when_loaded
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.heads import FactoredHead
from tfx_largeout.layers import FactoredEmbedding

WORDS, WIDTH, EXAMPLES, LENGTH, RATE = 40, 6, 12, 5, 0.3


def data():
    rng = np.random.default_rng(3)
    return rng.integers(0, WORDS, [EXAMPLES, LENGTH]), rng.integers(0, WORDS, EXAMPLES)


def normal(seed):
    return keras.initializers.RandomNormal(stddev=0.5, seed=seed)


def model_of(head=None, optimizer=None, layers=1, **arguments):
    head = head or FactoredHead(
        WORDS, RATE, use_bias=True, kernel_initializer=normal(5), name="head"
    )
    inputs = keras.Input([LENGTH], dtype="int32")
    words = [FactoredEmbedding(head, WIDTH, **arguments)(inputs) for _ in range(layers)]
    hidden = keras.layers.GlobalAveragePooling1D()(words[0] if layers == 1 else sum(words))
    hidden = keras.layers.Dense(WIDTH, "tanh", kernel_initializer=normal(6), name="trunk")(hidden)
    model = keras.Model(inputs, head(hidden))
    model.compile(optimizer or keras.optimizers.SGD(0.1), tlo.losses.TaylorSoftmax())
    return model


def weights_of(model):
    return *model.get_layer("head").materialize(), *model.get_layer("trunk").get_weights()


class Naive:
    """W, b and the trunk in float64, by gradients of the whole."""

    def __init__(self, model):
        self.weights = [tf.Variable(np.float64(w)) for w in weights_of(model)]

    def gradients(self, x, y, mask=False):
        with tf.GradientTape() as tape:
            kernel, bias, trunk, trunk_bias = self.weights
            there = tf.cast((x != 0) | (not mask), tf.float64)[..., tf.newaxis]
            rows = tf.gather(kernel, x) * there
            hidden = tf.reduce_sum(rows, axis=1) / tf.reduce_sum(there, axis=1)
            logits = tf.tanh(hidden @ trunk + trunk_bias) @ tf.transpose(kernel) + bias
            values = 1 + logits + logits**2 / 2
            of_labels = tf.gather(values, y, batch_dims=1)
            loss = tf.reduce_mean(tf.math.log(tf.reduce_sum(values, axis=1) / of_labels))
        found = tape.gradient(loss, self.weights)
        return float(loss), [tf.convert_to_tensor(g) for g in found]

    def step(self, gradients):
        for weight, gradient, rate in zip(
            self.weights, gradients, (RATE, RATE, 0.1, 0.1), strict=True
        ):
            weight.assign_sub(rate * gradient)

    def fit(self, x, y, size, epochs, mask=False):
        for _ in range(epochs):
            for i in range(0, len(x), size):
                self.step(self.gradients(x[i : i + size], y[i : i + size], mask)[1])


def assert_same(model, naive):
    for own, other in zip(weights_of(model), naive.weights, strict=True):
        np.testing.assert_allclose(own, other, rtol=1e-4, atol=2e-5)


def test_a_lookup_gives_rows_of_w():
    model = model_of(mask_zero=True)
    layer, head = model.layers[1], model.get_layer("head")
    x, y = data()
    model.fit(x, y, epochs=3, verbose=0)
    words = layer(x)
    np.testing.assert_allclose(words, head.materialize()[0][x], rtol=1e-5, atol=1e-6)
    assert words.shape == (EXAMPLES, LENGTH, WIDTH) and words.dtype == "float32"
    np.testing.assert_array_equal(layer.compute_mask(x), x != 0)


@pytest.mark.parametrize("mask_zero", [False, True])
@pytest.mark.parametrize("run_eagerly", [False, *thorough(True)])
def test_steps_are_those_of_the_dense_layer(mask_zero, run_eagerly):
    x, y = data()
    x[:, -1] = 0
    x[:, 0] = 1 + x[:, 0] % (WORDS - 1)
    model = model_of(mask_zero=mask_zero)
    model.run_eagerly = run_eagerly
    naive = Naive(model)
    model.fit(x, y, EXAMPLES // 2, 4, 0, shuffle=False)
    naive.fit(x, y, EXAMPLES // 2, 4, mask_zero)
    assert_same(model, naive)
    assert int(model.get_layer("head").step_number) == 8
    assert max(model.get_layer("head").drift()) < 1e-4


OPTIMIZERS = {
    "accumulated": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=1024.0
    ),
    "scale_factor": lambda: keras.optimizers.SGD(0.1, loss_scale_factor=64.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_scaled_or_accumulated_loss_takes_the_same_steps(name):
    x, y = data()
    model = model_of(optimizer=OPTIMIZERS[name]())
    naive = Naive(model)
    parts = 2 if name == "accumulated" else 1
    model.fit(x, y, EXAMPLES // 2 // parts, 4, 0, shuffle=False)
    naive.fit(x, y, EXAMPLES // 2, 4)
    assert_same(model, naive)


def test_a_loss_that_overflows_is_left_out():
    x, y = data()
    optimizer = keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=2.0**127
    )
    model = model_of(optimizer=optimizer)
    before = weights_of(model)
    model.fit(x, y, EXAMPLES, 1, 0, sample_weight=np.full(EXAMPLES, 1e3))
    for own, old in zip(weights_of(model), before, strict=True):
        np.testing.assert_allclose(own, old, rtol=1e-6)


def test_two_layers_and_a_loop_of_your_own():
    """Three uses of one W in a step."""
    x, y = data()
    model = model_of(layers=2)
    one = model_of()
    before = weights_of(one)[0]
    optimizer, loss = keras.optimizers.SGD(0.1), tlo.losses.TaylorSoftmax()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = loss(y, one(x, training=True))
        weights = one.trainable_variables
        optimizer.apply(tape.gradient(value, [w.value for w in weights]), weights)

    optimizer.build(one.trainable_variables)
    naive = Naive(one)
    step()
    naive.step(naive.gradients(x, y)[1])
    assert_same(one, naive)
    assert (weights_of(one)[0] != before).any()
    before = weights_of(model)[0]
    model.fit(x, y, verbose=0)
    assert (weights_of(model)[0] != before).any()


@pytest.mark.parametrize("frozen", ["head", "layer"])
def test_what_is_frozen_takes_no_gradient_of_lookups(frozen):
    x, y = data()
    y[:] = 7
    model = model_of()
    model.layers[1 if frozen == "layer" else -1].trainable = False
    if frozen == "layer":
        model.get_layer("head").trainable = True
    model.compile("sgd", tlo.losses.TaylorSoftmax())
    naive = Naive(model)
    gradients = naive.gradients(x, y)[1]
    before = weights_of(model)
    model.fit(x, y, EXAMPLES, verbose=0)
    if frozen == "head":
        np.testing.assert_allclose(weights_of(model)[0], before[0], rtol=1e-6)
    else:
        step = before[0] - weights_of(model)[0]
        assert np.abs(step - RATE * gradients[0].numpy()).max() > 1e-3  # lookups are missing


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "mixed_float16"])
def test_trains_in_16_bits(policy):
    keras.config.set_dtype_policy(policy)
    x, y = data()
    model = model_of(optimizer=keras.optimizers.SGD(0.1))
    assert model.layers[1](x).dtype == policy.removeprefix("mixed_")
    losses = model.fit(x, y, epochs=10, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.1


def test_a_file_keeps_the_tie(tmp_path):
    x, y = data()
    model = model_of(mask_zero=True)
    model.fit(x, y, verbose=0)
    loaded = assert_goes_on_when_loaded(model, x, y, tmp_path)
    assert loaded.layers[1].head is loaded.get_layer("head")


@pytest.mark.cpu
def test_a_run_is_resumed_bit_for_bit(tmp_path):
    x, y = data()

    def run(epochs, folder):
        keras.utils.set_random_seed(3)
        model = model_of(optimizer=keras.optimizers.SGD(0.1, gradient_accumulation_steps=2))
        checkpoint = tlo.callbacks.Checkpoint(folder)
        batches = checkpoint.data(lambda epoch: tf.data.Dataset.from_tensor_slices((x, y)).batch(4))
        model.fit(batches, epochs=epochs, verbose=0, callbacks=[checkpoint], shuffle=False)
        return model.get_weights()

    run(3, tmp_path / "run")  # in the middle of a step: 3 batches an epoch
    pairs = zip(run(5, tmp_path / "run"), run(5, tmp_path / "straight"), strict=True)
    for resumed, straight in pairs:
        np.testing.assert_array_equal(resumed, straight)


def test_what_is_refused():
    head = FactoredHead(WORDS, RATE)
    with pytest.raises(TypeError, match="head must be a FactoredHead; got <Dense"):
        FactoredEmbedding(keras.layers.Dense(3), 3)
    with pytest.raises(ValueError, match="output_dim must be an integer of at least 1; got 0"):
        FactoredEmbedding(head, 0)
    head.build((None, WIDTH))
    with pytest.raises(ValueError, match="the width of the head, 6; got 7"):
        FactoredEmbedding(head, WIDTH + 1)(np.zeros([2], "int64"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="40"):
        FactoredEmbedding(head, WIDTH)(np.array([WORDS]))
