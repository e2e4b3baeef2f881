# SPDX-License-Identifier: Apache-2.0
"""Options of layers that a swap keeps, and errors for options that it would lose."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

CLASSES, WIDTH = 30, 5


def model_of(*layers, sparse=False):
    inputs = outputs = keras.Input([7], sparse=sparse)
    for layer in layers:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


@pytest.mark.parametrize("trainable", [True, False])
def test_what_is_frozen_stays_so(trainable):
    dense = keras.layers.Dense(CLASSES, trainable=trainable)
    head = tlo.heads.DenseHead(CLASSES)
    swapped = tlo.replace_output(model_of(dense), head)
    assert head.trainable == trainable
    assert len(swapped.trainable_variables) == 2 * trainable
    assert head.to_dense().trainable == trainable
    assert head.to_dense(trainable=True).trainable


@pytest.mark.parametrize("name", ["train_step", "compute_loss"])
def test_a_step_of_ones_own_is_not_lost(name):
    own = type("Own", (keras.Sequential,), {name: lambda *args, **kwargs: None})
    model = own([keras.Input([7]), keras.layers.Dense(CLASSES)])
    with pytest.raises(TypeError, match=f"model must have no custom {name}"):
        tlo.replace_output(model, tlo.heads.DenseHead(CLASSES))


def test_initializers_of_this_package_are_left_behind():
    bias = tlo.initializers.LogFrequency(np.ones(WIDTH))
    hidden = tlo.layers.SparseDense(WIDTH, bias_initializer=bias)
    plain = tlo.to_keras(model_of(hidden, tlo.heads.DenseHead(CLASSES), sparse=True))
    assert "tfx_largeout" not in plain.to_json()
    np.testing.assert_array_equal(plain.layers[1].bias, hidden.bias)
    of_keras = keras.layers.Dense(WIDTH, bias_initializer=bias)
    with pytest.raises(TypeError, match="nothing of this package but layers"):
        tlo.to_keras(model_of(of_keras, tlo.heads.DenseHead(CLASSES)))


class OtherDense(tlo.layers.SparseDense):
    def call(self, inputs):
        return 2 * super().call(inputs)


class OtherHead(tlo.heads.DenseHead):
    def flat_logits(self, hidden, dtype):
        return 2 * super().flat_logits(hidden, dtype)


@pytest.mark.parametrize(
    "layers",
    [
        lambda: (OtherDense(WIDTH), tlo.heads.DenseHead(CLASSES)),
        lambda: (keras.layers.Dense(WIDTH), OtherHead(CLASSES)),
    ],
    ids=["layer", "head"],
)
def test_subclasses_that_do_something_else_are_refused(layers):
    with pytest.raises(TypeError, match="have an equal there; got Other"):
        tlo.to_keras(model_of(*layers()))


@pytest.mark.parametrize(
    ("kernel", "bias", "message"),
    [
        (np.full([CLASSES, WIDTH], np.nan), np.zeros(CLASSES), "kernel must be finite"),
        (np.full([CLASSES, WIDTH], 1e300), np.zeros(CLASSES), "kernel must be finite in float32"),
        (np.zeros([CLASSES, WIDTH]), np.full(CLASSES, np.inf), "bias must be finite"),
        (np.full([CLASSES, WIDTH], None), np.zeros(CLASSES), "kernel must be real numbers"),
        (np.full([CLASSES, WIDTH], 1j), np.zeros(CLASSES), "kernel must be real numbers"),
    ],
)
def test_weights_that_are_no_finite_numbers_change_nothing(kernel, bias, message):
    head = tlo.heads.DenseHead(CLASSES)
    head.build((None, WIDTH))
    before = head.get_weights()
    with pytest.raises(ValueError, match=message):
        head.set_dense_weights(kernel, bias)
    for one, other in zip(before, head.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_large_unsigned_ids_are_not_wrapped():
    layer = tlo.layers.RowEmbedding(4, 2)
    layer.build()
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer(tf.constant([2**32 + 1], tf.uint64))
