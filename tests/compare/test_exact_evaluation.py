# SPDX-License-Identifier: Apache-2.0
"""The same figures for each way in which a model may end, against NumPy."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from compare.own_models import CLASSES, WIDTH, X, Y

import tfx_largeout as tlo
from tfx_largeout.compare.exact_evaluation import ExactEvaluation

SPARSE = keras.losses.SparseCategoricalCrossentropy
ONE_HOT = np.eye(CLASSES, dtype="float32")[Y]


def probabilities(logits):
    return keras.ops.exp(logits) / keras.ops.sum(keras.ops.exp(logits), axis=-1, keepdims=True)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("output", "loss", "labels"),
    [
        (keras.layers.Dense(CLASSES), SPARSE(from_logits=True), Y),
        (keras.layers.Dense(CLASSES, "softmax"), "sparse_categorical_crossentropy", Y),
        (keras.layers.Dense(CLASSES, probabilities), SPARSE(), Y),
        (keras.layers.Dense(CLASSES, "softmax"), "categorical_crossentropy", ONE_HOT),
        (keras.layers.Dense(CLASSES, "sigmoid"), keras.losses.BinaryCrossentropy(), ONE_HOT),
        (keras.layers.Dense(CLASSES), lambda y, o: keras.ops.mean(o, axis=-1), Y),
        (tlo.heads.DenseHead(CLASSES), tlo.losses.SoftmaxCrossentropy(), Y),
    ],
    ids=["logits", "softmax", "probabilities", "one_hot", "sigmoid", "own_loss", "head"],
)
def test_figures_of_a_model(output, loss, labels):
    model = keras.Sequential([keras.Input([WIDTH]), output])
    model.compile("sgd", loss=loss, metrics=["mean_squared_error"], run_eagerly=True)
    kernel, bias = (np.float64(weight) for weight in model.get_weights()[:2])
    if kernel.shape[0] == CLASSES:
        kernel = kernel.T
    logits = X @ kernel + bias
    weights = np.linspace(0.5, 2, len(X)).astype("float32")
    ranks = (logits > logits[np.arange(len(X)), Y][:, np.newaxis]).sum(axis=1)
    losses = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(len(X)), Y]
    found = ExactEvaluation(model).measure(
        {"x": X, "y": labels, "sample_weight": weights, "batch_size": 40}
    )
    expected = {f"precision_at_{k}": np.average(ranks < k, weights=weights) / k for k in (1, 3, 5)}
    expected["exact_loss"] = np.average(losses, weights=weights)
    assert found == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [[x]], lambda x: {"out": x}])
def test_the_options_of_a_loss_in_each_form(form):
    softmax = keras.layers.Lambda(lambda x: tf.nn.softmax(x) + 0, name="out")
    inputs = keras.Input([WIDTH])
    model = keras.Model(inputs, softmax(keras.layers.Dense(CLASSES)(inputs)))
    model.compile("sgd", loss=form(SPARSE(ignore_class=0)), run_eagerly=True)
    kept = Y != 0
    found = ExactEvaluation(model).measure({"x": X, "y": Y})
    assert found == pytest.approx(ExactEvaluation(model).measure({"x": X[kept], "y": Y[kept]}))
    assert found["exact_loss"] == pytest.approx(model.evaluate(X[kept], Y[kept], verbose=0))


def test_a_model_with_several_outputs_is_refused():
    inputs = keras.Input([WIDTH])
    model = keras.Model(inputs, [keras.layers.Dense(3)(inputs), keras.layers.Dense(3)(inputs)])
    model.compile("sgd", loss=["mse", "mse"], run_eagerly=True)
    with pytest.raises(ValueError, match=r"each model must have one output"):
        ExactEvaluation(model).measure({"x": X, "y": Y})
