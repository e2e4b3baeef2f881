# SPDX-License-Identifier: Apache-2.0
"""Models to export, and the answers of their exports."""

from __future__ import annotations

import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

CLASSES, WIDTH, K = 50, 8, 5
X = np.random.default_rng(0).normal(size=(12, WIDTH)).astype("float32")
NAMES = [f"class {c}" for c in range(CLASSES)]


def model_of(head, width=WIDTH):
    trunk = keras.layers.Dense(width, activation="tanh")
    return keras.Sequential([keras.Input((WIDTH,)), trunk, head])


def dense_model(classes=CLASSES, width=WIDTH, **arguments):
    return model_of(
        tlo.heads.DenseHead(classes, bias_initializer="random_normal", **arguments), width
    )


def sparse_model():
    inputs = keras.Input((40,), sparse=True)
    hidden = tlo.layers.SparseDense(WIDTH, activation="relu")(inputs)
    return keras.Model(inputs, tlo.heads.DenseHead(CLASSES)(hidden))


def text_model():
    words = keras.layers.TextVectorization(vocabulary=["one", "two", "three"], output_mode="count")
    inputs = keras.Input((), dtype="string")
    head = tlo.heads.DenseHead(CLASSES)
    return keras.Model(inputs, head(keras.layers.Dense(WIDTH)(words(inputs))))


def loaded(folder, signature="serving_default"):
    return tf.saved_model.load(str(folder)).signatures[signature]


def exported(model, folder, x=X, k=K, **arguments):
    """Exports a model, loads it, and returns its answers."""
    tlo.export(model, folder, k, **arguments)
    result = loaded(folder)(inputs=tf.constant(x))
    return {name: values.numpy() for name, values in result.items()}


def assert_same(result, expected, atol=1e-5):
    scores, ids = expected
    np.testing.assert_array_equal(result["ids"], ids)
    np.testing.assert_allclose(result["scores"], scores, atol=atol)


def clustered_model(classes=600, seed=0):
    """A head of rows around a few directions, with different biases and lengths."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(30, WIDTH))
    rows = centres[rng.integers(0, 30, classes)] + 0.3 * rng.normal(size=(classes, WIDTH))
    rows *= rng.lognormal(sigma=0.7, size=(classes, 1))
    model = dense_model(classes)
    model.layers[-1].kernel.assign(rows)
    model.layers[-1].bias.assign(rng.normal(size=classes))
    return model
