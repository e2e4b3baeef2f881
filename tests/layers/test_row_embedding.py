# SPDX-License-Identifier: Apache-2.0
"""RowEmbedding looks words up as Keras's Embedding does, and its gradient names each once."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

IDS = np.array([[3, 3, 1], [0, 3, 1]])


def layer_of(**options):
    layer = tlo.layers.RowEmbedding(5, 4, **options)
    layer.build()
    return layer


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("ids", [IDS, IDS[0], IDS[:0], IDS.astype("uint8"), IDS.astype("float32")])
def test_rows_are_those_of_an_embedding(ids, policy):
    layer = layer_of(dtype=policy)
    dense = keras.layers.Embedding(5, 4, dtype=policy)
    dense.build()
    dense.set_weights(layer.get_weights())
    rows = layer(ids)
    assert rows.dtype == layer.compute_dtype
    assert layer.get_config().keys() == dense.get_config().keys()
    np.testing.assert_array_equal(tf.cast(rows, "float32"), tf.cast(dense(ids), "float32"))
    layer.enable_lora(2)
    np.testing.assert_array_equal(layer(ids), rows)


def test_a_gradient_has_one_slice_an_id():
    layer, factors = layer_of(), np.random.default_rng(0).normal(size=(2, 3, 4))
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(IDS) * factors)
    gradient = tape.gradient(loss, layer.embeddings.value)
    assert sorted(gradient.indices.numpy()) == [0, 1, 3]
    expected = np.zeros((5, 4))
    np.add.at(expected, IDS, factors)
    np.testing.assert_allclose(tf.convert_to_tensor(gradient), expected, rtol=1e-6)


def test_adam_of_keras_takes_the_steps_of_a_dense_gradient():
    models = []
    for kind in (keras.layers.Embedding, tlo.layers.RowEmbedding):
        model = keras.Sequential([kind(5, 4, name="table"), keras.layers.GlobalAveragePooling1D()])
        model.build([None, 3])
        models.append(model)
    models[1].set_weights(models[0].get_weights())
    table = models[0].layers[0].embeddings
    optimizer, target = keras.optimizers.Adam(0.1), np.ones((2, 4), "float32")
    models[1].compile(keras.optimizers.Adam(0.1), "mse", jit_compile=False)
    for _ in range(3):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((models[0](IDS) - target) ** 2)
        gradient = tape.gradient(loss, table.value)
        optimizer.apply([tf.convert_to_tensor(gradient)], [table])
        models[1].train_on_batch(IDS, target)
    np.testing.assert_allclose(models[1].get_weights()[0], table.numpy(), rtol=1e-5)


def test_shapes_of_symbolic_inputs_are_kept():
    for shape in ([None], [7], [None, 2]):
        inputs = keras.Input(shape, dtype="int32")
        assert tlo.layers.RowEmbedding(5, 4)(inputs).shape == (None, *shape, 4)
