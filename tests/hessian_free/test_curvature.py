# SPDX-License-Identifier: Apache-2.0
"""Curvature: against finite differences, the explicit matrix, and the losses of Keras."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from hessian_free.models import (
    ARCHITECTURES,
    CLASSES,
    WIDTH,
    architecture,
    classes_data,
    curvature_of,
    dense_model,
    head_model,
    loss_data,
    sparse_softmax,
)
from keras import layers, losses
from oracles import hessian_free as oracle

import tfx_largeout as tlo
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.flat_parameters import FlatParameters

pytestmark = pytest.mark.filterwarnings("ignore:Hessian-free training calls the model")

LOSSES = {
    "softmax, ids": ("softmax", sparse_softmax, None),
    "softmax, by name": ("softmax", lambda: "sparse_categorical_crossentropy", "softmax"),
    "softmax, smoothed": (
        "softmax",
        lambda: losses.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
        None,
    ),
    "softmax, activation": ("softmax", losses.CategoricalCrossentropy, "softmax"),
    "sigmoid, logits": ("sigmoid", lambda: losses.BinaryCrossentropy(from_logits=True), None),
    "sigmoid, activation": ("sigmoid", lambda: "binary_crossentropy", "sigmoid"),
    "squared error": ("squared", lambda: "mse", None),
}

ONE_HOT = ("softmax, smoothed", "softmax, activation")


def case(name, dtype=None):
    kind, loss, activation = LOSSES[name]
    model = dense_model(loss(), activation, dtype)
    x, y = loss_data(kind)
    return kind, model, x, np.eye(CLASSES)[y] if name in ONE_HOT else y


def random_vector(curvature, seed=0):
    vector = np.random.default_rng(seed).normal(size=curvature.parameters.size)
    return tf.constant(vector, curvature.parameters.dtype)


@pytest.mark.parametrize("name", LOSSES)
def test_products_are_those_of_the_explicit_matrix(name):
    keras.backend.set_floatx("float64")
    try:
        kind, model, x, y = case(name, "float64")
        weights = np.random.default_rng(5).random(len(x))
        curvature, batch = curvature_of(model, x, y, weights)
        assert curvature.parameters.dtype == tf.float64
        columns = [
            curvature.product(*batch, v).vector
            for v in tf.eye(curvature.parameters.size, dtype="float64")
        ]
    finally:
        keras.backend.set_floatx("float32")
    expected = oracle.gauss_newton(kind, model.get_weights(), x, weights)
    np.testing.assert_allclose(np.stack(columns), expected, atol=1e-7)
    assert curvature.mode == "forward"


@pytest.mark.parametrize("name", ["softmax, ids", "sigmoid, activation", "squared error"])
def test_gradients_are_the_oracles(name):
    kind, model, x, y = case(name)
    curvature, batch = curvature_of(model, x, y)
    sums = curvature.gradient(*batch)
    expected = oracle.gradients(kind, model.get_weights(), x, y).sum(axis=0)
    np.testing.assert_allclose(sums.vector, expected, rtol=1e-4, atol=1e-5)
    values = oracle.loss_values(kind, oracle.outputs(model.get_weights(), x), y)
    assert float(sums.loss) == pytest.approx(values.sum(), rel=1e-5)
    assert float(sums.weight) == len(x)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("name", LOSSES)
def test_loss_is_what_keras_evaluates(name, weighted):
    _, model, x, y = case(name)
    weights = np.random.default_rng(5).random(len(x)) if weighted else None
    curvature, batch = curvature_of(model, x, y, weights)
    sums = curvature.loss(*batch)
    expected = model.evaluate(x, y, batch_size=len(x), sample_weight=weights, verbose=0)
    assert float(sums.loss / sums.weight) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tangents_are_finite_differences(name):
    model, x, y = architecture(name)
    mode = "reverse" if name in ("lstm", "gru") else "forward"
    curvature, batch = curvature_of(model, x, y, mode=mode)
    vector = random_vector(curvature)
    tangent = getattr(curvature, f"_{mode}_tangent")
    along = tf.function(lambda *arguments: tangent(*arguments)[2])(*batch, vector)
    theta, step, outputs = curvature.parameters.read(), 1e-3, []
    for sign in (1, -1):
        curvature.parameters.assign(theta + sign * step * vector)
        outputs.append(model(x, training=False).numpy().reshape(-1, CLASSES).astype(float))
    difference = (outputs[0] - outputs[1]) / (2 * step)
    np.testing.assert_allclose(along, difference, rtol=0, atol=1e-4 * np.abs(difference).max())


@pytest.mark.parametrize("name", ["dense", "convolution", "normalised", "lstm", "head"])
def test_products_are_symmetric_and_positive_semidefinite(name):
    model, x, y = architecture(name)
    curvature, batch = curvature_of(model, x, y)
    u, v = (random_vector(curvature, seed) for seed in (1, 2))
    of_u, of_v = (curvature.product(*batch, w).vector for w in (u, v))
    scale = float(tf.norm(u) * tf.norm(of_v))
    assert abs(float(tf.tensordot(u, of_v, 1) - tf.tensordot(v, of_u, 1))) <= 1e-5 * scale
    for seed in range(5):
        w = random_vector(curvature, seed)
        product = curvature.product(*batch, w).vector
        assert float(tf.tensordot(w, product, 1)) >= -1e-5 * float(tf.norm(w) * tf.norm(product))
    assert curvature.mode == ("reverse" if name == "lstm" else "forward")


@pytest.mark.parametrize("name", ["dense", "convolution", "normalised", "head"])
def test_both_ways_give_the_same(name):
    model, x, y = architecture(name)
    products = []
    for mode in ("forward", "reverse"):
        curvature, batch = curvature_of(model, x, y, mode=mode)
        products.append(curvature.product(*batch, random_vector(curvature)).vector)
    np.testing.assert_allclose(*products, rtol=1e-4, atol=1e-5 * np.abs(products[0]).max())


@pytest.mark.parametrize(
    ("smoothing", "dtype", "tolerance"),
    [(0.0, "float32", 1e-4), (0.2, "float32", 1e-4), (0.0, "float64", 1e-11)],
)
def test_products_of_the_head_are_those_of_a_dense_layer(smoothing, dtype, tolerance):
    keras.config.set_dtype_policy(dtype)
    x, y = classes_data()
    head = head_model(smoothing=smoothing)
    dense_loss = losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    dense = dense_model(dense_loss, hidden=(6,))
    kernel, bias, rows, row_bias = head.get_weights()
    dense.set_weights([kernel, bias, rows.T, row_bias])
    parts = [
        np.random.default_rng(i).normal(size=w.shape) for i, w in enumerate(head.get_weights())
    ]
    results = []
    for model in (head, dense):
        if model is dense:
            parts[2], y = parts[2].T, np.eye(CLASSES, dtype=dtype)[y]
        curvature, batch = curvature_of(model, x, y)
        product = curvature.product(*batch, curvature.parameters.join(parts))
        gradient = curvature.gradient(*batch)
        results.append([curvature.parameters.split(sums.vector) for sums in (product, gradient)])
    for of_head, of_dense in zip(*results, strict=True):
        for place, (a, b) in enumerate(zip(of_head, of_dense, strict=True)):
            b = tf.transpose(b) if place == 2 else b
            np.testing.assert_allclose(a, b, rtol=tolerance, atol=tolerance / 10)


def test_head_takes_several_labels_and_weights_of_zero():
    model, x, y = architecture("head", examples=6)
    labels = np.stack([y, np.where(np.arange(6) % 2, (y + 1) % CLASSES, -1)], axis=1)
    labels[0] = -1  # an example without labels, which does not count
    weights = np.array([0, 1, 2, 1, 1, 0.5], "float32")
    curvature, batch = curvature_of(model, x, labels, weights)
    sums = curvature.loss(*batch)
    expected = model.evaluate(x, labels, sample_weight=weights, batch_size=6, verbose=0)
    assert float(sums.loss / sums.weight) == pytest.approx(expected, rel=1e-5)
    matrix = [curvature.product(*batch, v).vector for v in tf.eye(curvature.parameters.size)]
    used = tuple(array[1:] for array in (x, labels, weights))
    curvature, batch = curvature_of(model, *used)
    other = [curvature.product(*batch, v).vector for v in tf.eye(curvature.parameters.size)]
    np.testing.assert_allclose(matrix, other, atol=1e-5)
    assert np.linalg.eigvalsh(np.stack(matrix)).min() > -1e-5


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_ignored_and_weighted_classes_of_the_head_count_as_in_evaluate(reduction):
    model, x, y = architecture("head", examples=6)
    own, weights = np.linspace(0.5, 2, CLASSES), np.array([1, 0.5, 2, 1, 1, 3], "float32")
    y[2], y[4] = -100, -1
    loss = tlo.losses.SoftmaxCrossentropy(reduction=reduction, ignore_class=-100, class_weights=own)
    model.compile(loss=loss)
    curvature, batch = curvature_of(model, x, y, weights)
    sums = curvature.loss(*batch)
    expected = model.evaluate(x, y, sample_weight=weights, batch_size=6, verbose=0)
    assert float(sums.loss / sums.weight) == pytest.approx(expected, rel=1e-5)
    vector = random_vector(curvature)
    product = curvature.product(*batch, vector).vector
    kept = np.array([0, 1, 3, 5])
    model.compile(loss=tlo.losses.SoftmaxCrossentropy())
    curvature, batch = curvature_of(model, x[kept], y[kept], weights[kept] * own[y[kept]])
    np.testing.assert_allclose(
        product, curvature.product(*batch, vector).vector, rtol=1e-4, atol=1e-6
    )


@pytest.mark.parametrize("reduction", ["sum_over_batch_size", "mean_with_sample_weight"])
def test_masks_count_as_in_keras(reduction):
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int32"),
            layers.Embedding(9, 3, mask_zero=True),
            layers.Dense(CLASSES),
        ]
    )
    model.compile(loss=loss)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, (6, 4)), rng.integers(0, CLASSES, (6, 4))
    weights = rng.random((6, 4)).astype("float32")
    x[:, 3] = 0
    curvature, batch = curvature_of(model, x, y, weights)
    sums = curvature.loss(*batch)
    expected = model.evaluate(x, y, sample_weight=weights, batch_size=6, verbose=0)
    assert float(sums.loss / sums.weight) == pytest.approx(expected, rel=1e-5)
    vector = random_vector(curvature)
    product = curvature.product(*batch, vector)
    assert float(product.weight) == pytest.approx(float(sums.weight))
    other = np.where(x == 0, (y + 1) % CLASSES, y)  # labels of masked places are not read
    np.testing.assert_array_equal(
        product.vector, curvature.product(batch[0], tf.constant(other), batch[2], vector).vector
    )
    one = [
        curvature_of(model, x[:, [t]], y[:, [t]], weights[:, [t]]) for t in range(4)
    ]  # place by place
    total = sum(c.product(*b, vector).vector for c, b in one)
    np.testing.assert_allclose(product.vector, total, rtol=1e-4, atol=1e-5)


def test_ignored_classes_count_for_nothing():
    loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=1)
    model = dense_model(loss)
    x, y = classes_data()
    curvature, batch = curvature_of(model, x, y)
    sums = curvature.loss(*batch)
    assert float(sums.weight) == np.sum(y != 1)
    expected = model.evaluate(x, y, batch_size=len(x), verbose=0)
    assert float(sums.loss / sums.weight) == pytest.approx(expected, rel=1e-5)
    expected = oracle.gauss_newton("softmax", model.get_weights(), x, (y != 1).astype(float))
    vector = random_vector(curvature)
    np.testing.assert_allclose(
        curvature.product(*batch, vector).vector, expected @ vector.numpy(), rtol=1e-3, atol=1e-4
    )


def test_a_binary_output_of_width_one_takes_flat_targets():
    model = dense_model("binary_crossentropy", "sigmoid", width=1)
    x, y = classes_data()
    curvature, batch = curvature_of(model, x, (y > 1).astype("float32"))
    sums = curvature.loss(*batch)
    expected = model.evaluate(x, (y > 1).astype("float32"), batch_size=len(x), verbose=0)
    assert float(sums.loss / sums.weight) == pytest.approx(expected, rel=1e-5)


def test_bfloat16_models_have_float32_vectors():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = dense_model(sparse_softmax())
    x, y = classes_data()
    curvature, batch = curvature_of(model, x, y)
    vector = random_vector(curvature)
    product = curvature.product(*batch, vector).vector
    expected = oracle.gauss_newton("softmax", model.get_weights(), x, np.ones(len(x)))
    assert product.dtype == tf.float32
    np.testing.assert_allclose(
        product, expected @ vector.numpy(), atol=0.03 * np.abs(product).max()
    )


def half_case(name, num_classes=600):
    """A model of half precision whose targets only float32 can tell apart, and its data."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, WIDTH)).astype("float32")
    if name == "ids":
        loss = losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
        y, bias = rng.integers(-1, num_classes, 64), "zeros"
    else:
        loss, num_classes = losses.MeanSquaredError(), 1
        y, bias = 1000 + rng.normal(size=(64, 1)), keras.initializers.Constant(1000.0)
    model = keras.Sequential([keras.Input([WIDTH])])
    model.add(layers.Dense(num_classes, kernel_initializer="normal", bias_initializer=bias))
    model.compile("sgd", loss)
    return model, x, y


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "mixed_float16"])
@pytest.mark.parametrize("name", ["ids", "squared error"])
def test_losses_of_half_precision_are_those_of_keras(name, policy):
    keras.config.set_dtype_policy(policy)
    model, x, y = half_case(name)
    curvature, batch = curvature_of(model, x, y)
    sums = curvature.gradient(*batch)
    with tf.GradientTape() as tape:
        loss = model.loss(batch[1], model(batch[0], training=False))
    variables = [variable.value for variable in model.trainable_variables]
    gradient = curvature.parameters.join(tape.gradient(loss, variables))
    weight = float(sums.weight)
    if name == "ids":  # Keras divides by all elements here, and by weighted ones in `evaluate`
        gradient, loss = gradient * len(x) / weight, loss * len(x) / weight
    assert float(sums.loss) / weight == pytest.approx(float(loss), rel=1e-5)
    np.testing.assert_allclose(
        sums.vector / weight, gradient, atol=0.02 * np.abs(gradient).max(), rtol=0.02
    )


def test_nothing_is_traced_twice():
    model = dense_model(sparse_softmax())
    x, y = classes_data()
    curvature, _ = curvature_of(model, x, y)
    examples = Examples(x, y)
    for count in (1, 3, 24):
        batch = examples.take(np.arange(count))
        for _ in range(2):
            curvature.loss(*batch)
            curvature.gradient(*batch)
            curvature.product(*batch, random_vector(curvature, count))
    assert curvature.traces == 3


def test_an_output_that_no_weight_reaches_has_no_curvature():
    model = dense_model("mse", hidden=())
    model.layers[0].kernel.assign(tf.zeros([WIDTH, CLASSES]))
    extra = keras.Sequential([keras.Input((WIDTH,)), layers.Lambda(lambda x: x), layers.Dense(2)])
    extra.compile(loss="mse")
    x = np.zeros((3, WIDTH))
    curvature, batch = curvature_of(extra, x, np.zeros((3, 2)))
    vector = tf.concat([tf.ones([WIDTH * 2]), tf.zeros([2])], axis=0)
    np.testing.assert_array_equal(curvature.product(*batch, vector).vector, 0 * vector)


def test_flat_parameters_read_what_they_assign():
    model = dense_model("mse")
    parameters = FlatParameters(model.trainable_variables)
    vector = tf.random.normal([parameters.size])
    parameters.assign(vector)
    np.testing.assert_array_equal(parameters.read(), vector)
    np.testing.assert_array_equal(
        np.concatenate([w.reshape(-1) for w in model.get_weights()]), vector
    )


def refused(model, message, x=None, y=None):
    examples = Examples(np.zeros((2, WIDTH)) if x is None else x, [0, 1] if y is None else y)
    with pytest.raises(ValueError, match=message):
        Curvature(model, examples.spec).loss(*examples.take(np.arange(2)))


def test_models_that_do_not_fit_are_refused():
    frozen = dense_model("mse")
    frozen.trainable = False
    refused(frozen, "at least one trainable weight; got none")
    refused(keras.Sequential([keras.Input((3,)), layers.Dense(2)]), "must be compiled with a loss")
    constrained = keras.Sequential(
        [keras.Input((WIDTH,)), layers.Dense(2, kernel_constraint="non_neg")]
    )
    constrained.compile(loss="mse")
    refused(constrained, "weights must have no constraint")
    active = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(2, activity_regularizer="l2")])
    active.compile(loss="mse")
    refused(active, "no losses but the one of compile", y=np.zeros((2, 2)))
    inputs = keras.Input((WIDTH,))
    two = keras.Model(inputs, [layers.Dense(2)(inputs), layers.Dense(2)(inputs)])
    two.compile(loss="mse")
    refused(two, "must have one output; got a list")
    two.compile(loss=["mse", "mse"])
    refused(two, "with a single loss; got")
    scaled = dense_model("mse")
    scaled.compile(loss="mse", loss_weights=2.0)
    refused(scaled, "without loss_weights")
    with pytest.raises(ValueError, match="mode must be 'forward', 'reverse' or None; got 'x'"):
        Curvature(dense_model("mse"), Examples(np.zeros((2, 5)), np.zeros((2, 4))).spec, "x")


@pytest.mark.parametrize(
    "loss",
    [
        "mae",
        losses.CategoricalFocalCrossentropy(),
        losses.CosineSimilarity(),
        lambda y, z: keras.ops.mean((y - z) ** 4, axis=-1),
        tlo.losses.ZLoss(),
    ],
    ids=["mae", "focal", "cosine", "own", "z"],
)
def test_losses_not_known_to_be_convex_are_refused(loss):
    refused(dense_model(loss), "must be known to be convex in the model's output")


def test_a_subclass_of_a_convex_loss_is_not_trusted():
    class Clipped(losses.MeanSquaredError):
        def call(self, y_true, y_pred):
            return keras.ops.minimum(super().call(y_true, y_pred), 1)

    refused(dense_model(Clipped()), "must be known to be convex")


def test_losses_whose_terms_do_not_fit_are_refused():
    refused(dense_model(losses.MeanSquaredError(reduction="sum")), "reduction of the loss must be")
    axis = losses.CategoricalCrossentropy(from_logits=True, axis=1)
    refused(dense_model(axis), "axis of the loss must be -1")
    message = "must come straight out of a softmax activation"
    refused(dense_model("sparse_categorical_crossentropy", "relu"), message)
    sampled = keras.Sequential(
        [keras.Input((WIDTH,)), tlo.heads.TFSampledSoftmaxHead(9, num_sampled=3)]
    )
    sampled.compile(loss=tlo.losses.SoftmaxCrossentropy())
    refused(sampled, "behind a DenseHead as the model's last layer, .* got TFSampledSoftmaxHead")
    refused(dense_model(tlo.losses.SoftmaxCrossentropy()), "behind a DenseHead .* got no head")


def test_layers_that_differ_in_training_are_warned_of():
    with pytest.warns(RuntimeWarning, match="BatchNormalization 'batch_norm.*Dropout 'dropout"):
        model, x, y = architecture("convolution")
        curvature_of(model, x, y)
