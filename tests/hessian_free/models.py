# SPDX-License-Identifier: Apache-2.0
"""Small compiled models with data, for the tests of Hessian-free training."""

from __future__ import annotations

import keras
import numpy as np
from keras import layers

import tfx_largeout as tlo
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Examples

CLASSES, WIDTH = 4, 5


def classes_data(examples=24, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(examples, WIDTH)), rng.integers(0, CLASSES, examples)


def loss_data(kind, examples=24, seed=0):
    """Inputs and targets for `softmax`, `sigmoid` and `squared`."""
    x, y = classes_data(examples, seed)
    if kind == "softmax":
        return x, y
    rng = np.random.default_rng(seed + 1)
    return x, rng.random((examples, CLASSES)).round() if kind == "sigmoid" else rng.normal(
        size=(examples, CLASSES)
    )


def dense_model(loss, activation=None, dtype=None, hidden=(3,), width=CLASSES):
    model = keras.Sequential([keras.Input((WIDTH,), dtype=dtype)])
    for units in hidden:
        model.add(layers.Dense(units, "tanh", dtype=dtype, bias_initializer="random_normal"))
    model.add(layers.Dense(width, activation, dtype=dtype))
    model.compile(loss=loss)
    return model


def head_model(hidden=6, smoothing=0.0):
    model = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(hidden, "tanh"), tlo.heads.DenseHead(CLASSES)]
    )
    model.compile(loss=tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing))
    return model


def sparse_softmax():
    return keras.losses.SparseCategoricalCrossentropy(from_logits=True)


ARCHITECTURES = {
    "dense": ((WIDTH,), lambda: [layers.Dense(6, "sigmoid"), layers.Dense(CLASSES)]),
    "convolution": (
        (6, 6, 2),
        lambda: [
            layers.Conv2D(3, 3, activation="softplus"),
            layers.BatchNormalization(),
            layers.AveragePooling2D(2),
            layers.Flatten(),
            layers.Dropout(0.5),
            layers.Dense(CLASSES),
        ],
    ),
    "normalised": (
        (3, WIDTH),
        lambda: [layers.LayerNormalization(), layers.Flatten(), layers.Dense(CLASSES, "gelu")],
    ),
    "lstm": ((3, 2), lambda: [layers.LSTM(3), layers.Dense(CLASSES)]),
    "gru": ((3, 2), lambda: [layers.GRU(3, return_sequences=True), layers.Dense(CLASSES)]),
    "head": ((WIDTH,), lambda: [layers.Dense(6, "tanh"), tlo.heads.DenseHead(CLASSES)]),
}


def architecture(name, examples=12):
    """Returns a compiled model of that name, with x and y."""
    shape, make = ARCHITECTURES[name]
    model = keras.Sequential([keras.Input(shape), *make()])
    model.compile(
        loss=tlo.losses.SoftmaxCrossentropy() if name == "head" else sparse_softmax(),
    )
    rng = np.random.default_rng(3)
    x = rng.normal(size=(examples, *shape)).astype("float32")
    labels_shape = (examples, *model.output_shape[1:-1])
    return model, x, rng.integers(0, CLASSES, labels_shape)


def curvature_of(model, x, y, weights=None, mode=None):
    """Returns the Curvature, and the batch of all examples."""
    examples = Examples(x, y, weights)
    return Curvature(model, examples.spec, mode), examples.take(np.arange(len(examples)))
