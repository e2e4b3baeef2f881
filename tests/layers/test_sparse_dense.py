# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import sparse_dense as oracle

from tfx_largeout.datasets import SparseExamples
from tfx_largeout.layers import SparseDense

B, V, D = 7, 23, 5


def draw_input(rng: np.random.Generator, dtype=np.float32) -> np.ndarray:
    """Some features occur in several examples; examples 2 and the last have none."""
    x = rng.normal(size=(B, V)) * (rng.random((B, V)) < 0.3)
    x[[2, -1]] = 0
    return x.astype(dtype)


def run(layer: keras.layers.Layer, x, output_gradient):
    with tf.GradientTape() as tape:
        outputs = layer(x)
        loss = tf.reduce_sum(tf.cast(outputs, tf.float64) * output_gradient)
    return outputs, tape.gradient(loss, layer.trainable_variables)


def twins(policy="float32", **arguments) -> tuple[SparseDense, keras.layers.Dense]:
    """The layer and Keras's own with the same weights."""
    layers = [cls(D, dtype=policy, **arguments) for cls in (SparseDense, keras.layers.Dense)]
    for layer in layers:
        layer.build((None, V))
    rng = np.random.default_rng(1)
    weights = [rng.normal(size=w.shape) for w in layers[0].weights]
    for layer in layers:
        layer.set_weights(weights)
    return layers[0], layers[1]


@pytest.mark.parametrize("graph", [False, True])
@pytest.mark.parametrize("policy", ["float32", "float64"])
def test_values_and_gradients_against_the_oracle(policy, graph):
    rng = np.random.default_rng(0)
    x, g = draw_input(rng, policy), rng.normal(size=(B, D))
    layer, _ = twins(policy)
    step = tf.function(run) if graph else run

    outputs, (kernel_gradient, bias_gradient) = step(layer, tf.sparse.from_dense(x), g)

    expected = oracle.linear(x, layer.kernel, layer.bias, g)
    tolerance = {"rtol": 1e-5, "atol": 1e-6} if policy == "float32" else {"rtol": 1e-12}
    np.testing.assert_allclose(outputs, expected.outputs, **tolerance)
    kernel_gradient = tf.convert_to_tensor(kernel_gradient)
    np.testing.assert_allclose(kernel_gradient, expected.kernel_gradient, **tolerance)
    np.testing.assert_allclose(bias_gradient, expected.bias_gradient, **tolerance)
    assert outputs.dtype == policy


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_error_is_not_above_that_of_dense(policy):
    rng = np.random.default_rng(0)
    x, g = draw_input(rng), rng.normal(size=(B, D))
    layer, dense = twins(policy)
    expected = oracle.linear(x, layer.kernel, layer.bias, g)

    def errors(outputs, gradients):
        tensors = [outputs, *map(tf.convert_to_tensor, gradients)]
        return [
            np.abs(tf.cast(tensor, tf.float64) - value).max()
            for tensor, value in zip(tensors, expected, strict=True)
        ]

    sparse_errors = errors(*run(layer, tf.sparse.from_dense(x), g))
    dense_errors = errors(*run(dense, x, g))

    one_rounding = 2.0**-24 if policy == "float32" else 2.0**-9
    for mine, theirs, value in zip(sparse_errors, dense_errors, expected, strict=True):
        assert mine <= theirs + 2 * one_rounding * np.abs(value).max()


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16", "mixed_float16"])
def test_dtypes_are_those_of_dense(policy):
    x = draw_input(np.random.default_rng(0))
    layer, dense = twins(policy)

    outputs, gradients = run(layer, tf.sparse.from_dense(x), 1.0)
    dense_outputs, dense_gradients = run(dense, x, 1.0)

    assert outputs.dtype == dense_outputs.dtype == layer(x).dtype
    assert [g.dtype for g in gradients] == [g.dtype for g in dense_gradients]
    assert [w.dtype for w in layer.weights] == [w.dtype for w in dense.weights]


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64, tf.float64, tf.bfloat16])
def test_counts_and_other_dtypes_as_input(dtype):
    x = np.abs(draw_input(np.random.default_rng(0))).round()
    layer, dense = twins()

    outputs = layer(tf.cast(tf.sparse.from_dense(x), dtype))

    np.testing.assert_allclose(outputs, dense(x), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ["relu", "softmax", None])
@pytest.mark.parametrize("use_bias", [True, False])
def test_activation_and_bias(activation, use_bias):
    x = draw_input(np.random.default_rng(0))
    layer, dense = twins(activation=activation, use_bias=use_bias)

    np.testing.assert_allclose(layer(tf.sparse.from_dense(x)), dense(x), rtol=1e-5, atol=1e-6)
    assert len(layer.weights) == 1 + use_bias


def test_example_without_nonzeros_gives_the_bias():
    layer, _ = twins(activation="tanh")

    outputs = layer(tf.sparse.from_dense(tf.zeros([3, V])))

    np.testing.assert_allclose(outputs, [np.tanh(layer.bias)] * 3, rtol=1e-6)


def test_no_examples():
    layer, _ = twins()
    empty = tf.SparseTensor(tf.zeros([0, 2], tf.int64), tf.zeros([0]), [0, V])

    outputs, gradients = run(layer, empty, 1.0)

    assert outputs.shape == (0, D)
    assert gradients[0].values.shape == (0, D)


def test_entries_in_any_order_and_repeated():
    layer, _ = twins()
    ordered = draw_input(np.random.default_rng(0))
    indices = np.argwhere(ordered)
    shuffled = np.random.default_rng(1).permutation(np.concatenate([indices, indices[:4]]))
    expected = ordered.copy()
    for i, j in indices[:4]:
        expected[i, j] *= 2
    x = tf.SparseTensor(shuffled, ordered[tuple(shuffled.T)], [B, V])
    g = np.random.default_rng(2).normal(size=(B, D))

    outputs, (kernel_gradient, _) = run(layer, x, g)

    wanted = oracle.linear(expected, layer.kernel, layer.bias, g)
    np.testing.assert_allclose(outputs, wanted.outputs, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        tf.convert_to_tensor(kernel_gradient), wanted.kernel_gradient, rtol=1e-5, atol=1e-6
    )


def test_gradient_has_one_slice_a_feature_of_the_batch():
    x = draw_input(np.random.default_rng(0))
    layer, _ = twins()

    _, (gradient, _) = run(layer, tf.sparse.from_dense(x), 1.0)

    assert isinstance(gradient, tf.IndexedSlices)
    np.testing.assert_array_equal(np.sort(gradient.indices), np.flatnonzero(x.any(axis=0)))


def test_gradient_reaches_the_values_of_the_input():
    x = tf.sparse.from_dense(draw_input(np.random.default_rng(0)))
    layer, _ = twins()
    with tf.GradientTape() as tape:
        tape.watch(x.values)
        loss = tf.reduce_sum(layer(x))

    expected = tf.gather(tf.reduce_sum(layer.kernel.value, axis=1), x.indices[:, 1])
    np.testing.assert_allclose(tape.gradient(loss, x.values), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_whole_kernel_is_never_read(policy):
    """Neither forward nor gradient has an op that gives, casts or fills `[V, D]`."""
    layer, _ = twins(policy)
    x = tf.sparse.from_dense(draw_input(np.random.default_rng(0)))

    graph = tf.function(lambda x: run(layer, x, 1.0)).get_concrete_function(x).graph

    assert "ResourceGather" in {op.type for op in graph.get_operations()}
    shapes = [t.shape for op in graph.get_operations() for t in op.outputs]
    assert tf.TensorShape([V, D]) not in [shape for shape in shapes if shape.rank == 2]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adagrad", "rmsprop"])
def test_optimizers_go_the_way_they_go_with_dense(optimizer):
    rng = np.random.default_rng(0)
    layers = twins()
    optimizers = [keras.optimizers.get(optimizer) for _ in layers]
    for _ in range(4):
        x, g = draw_input(rng), rng.normal(size=(B, D))
        for layer, steps, data in zip(
            layers, optimizers, (tf.sparse.from_dense(x), x), strict=True
        ):
            steps.apply(run(layer, data, g)[1], layer.trainable_variables)

    np.testing.assert_allclose(layers[0].kernel, layers[1].kernel, rtol=1e-4, atol=1e-6)


def test_dense_input_falls_back_to_a_matrix_product():
    layer, dense = twins(activation="relu")
    x = np.random.default_rng(0).normal(size=(2, 3, V)).astype(np.float32)

    np.testing.assert_allclose(layer(x), dense(x), rtol=1e-5, atol=1e-6)


def build_model(form: str) -> keras.Model:
    if form == "functional":
        inputs = keras.Input([V], sparse=True)
        return keras.Model(inputs, keras.layers.Dense(3)(SparseDense(D, "relu")(inputs)))
    if form == "sequential":
        return keras.Sequential([SparseDense(D, "relu"), keras.layers.Dense(3)])
    return Subclassed()


@keras.saving.register_keras_serializable(package="tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.hidden = SparseDense(D, "relu")
        self.output_layer = keras.layers.Dense(3)

    def call(self, inputs):
        return self.output_layer(self.hidden(inputs))


def examples() -> SparseExamples:
    rng = np.random.default_rng(0)
    x = np.concatenate([draw_input(rng) for _ in range(6)])
    rows, ids = np.nonzero(x)
    return SparseExamples(
        feature_splits=np.searchsorted(rows, np.arange(len(x) + 1)),
        feature_ids=ids,
        feature_values=x[rows, ids],
        label_splits=np.arange(len(x) + 1),
        label_ids=rng.integers(0, 3, len(x)),
        num_features=V,
        num_labels=3,
    )


@pytest.mark.parametrize(
    ("form", "arguments"),
    [
        ("functional", {}),
        pytest.param("functional", {"run_eagerly": True}, marks=pytest.mark.thorough),
        ("functional", {"steps_per_execution": 2}),
        pytest.param("sequential", {}, marks=pytest.mark.thorough),
        ("subclassed", {}),
    ],
)
def test_fit_evaluate_predict_as_with_dense(form, arguments, tmp_path):
    """Training on sparse batches ends where training Dense on the dense batches ends."""
    batches = examples().dataset(8).map(lambda x, y: (x, y.values))
    dense_batches = batches.map(lambda x, y: (tf.sparse.to_dense(x), y))
    model = build_model(form)
    model(next(iter(batches))[0])
    reference = keras.Sequential([keras.layers.Dense(D, "relu"), keras.layers.Dense(3)])
    reference.build((None, V))
    reference.set_weights(model.get_weights())

    for trained, data in ((model, batches), (reference, dense_batches)):
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        trained.compile("adam", loss=loss, **arguments)
        trained.fit(data, epochs=3, shuffle=False, verbose=0)

    for mine, theirs in zip(model.get_weights(), reference.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(
        model.evaluate(batches, verbose=0), reference.evaluate(dense_batches, verbose=0), rtol=1e-4
    )
    predicted = model.predict(batches.map(lambda x, y: x), verbose=0)
    np.testing.assert_allclose(
        predicted, reference.predict(dense_batches, verbose=0), rtol=1e-3, atol=1e-4
    )

    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.predict(batches.map(lambda x, y: x), verbose=0), predicted)
    loaded.fit(batches, shuffle=False, verbose=0)


@pytest.mark.parametrize("form", ["layer", "functional"])
def test_mixed_precision_keeps_the_input_values(form):
    """257 is not a bfloat16 number; 257 - 256 = 1 comes out only if it was not rounded."""
    keras.config.set_dtype_policy("mixed_bfloat16")
    x = tf.SparseTensor([[0, 0], [0, 1]], [257.0, -256.0], [1, V])
    model = SparseDense(1, kernel_initializer="ones")
    if form == "functional":
        inputs = keras.Input([V], sparse=True, dtype="float32")
        model = keras.Model(inputs, model(inputs))

    outputs = model(x)

    assert outputs.dtype == "bfloat16"
    assert outputs.numpy().item() == 1.0


def test_regularizers_and_constraints():
    layer, _ = twins(
        kernel_regularizer="l2",
        bias_regularizer="l1",
        activity_regularizer="l2",
        kernel_constraint="non_neg",
        bias_constraint="non_neg",
    )
    layer(tf.sparse.from_dense(draw_input(np.random.default_rng(0))))

    assert len(layer.losses) == 3
    keras.optimizers.SGD(0.1).apply([tf.zeros(w.shape) for w in layer.weights], layer.weights)
    assert all(np.min(w) >= 0 for w in layer.weights)


def test_config_round_trip():
    layer = SparseDense(
        3,
        activation="gelu",
        use_bias=False,
        kernel_initializer=keras.initializers.HeNormal(seed=1),
        bias_initializer="ones",
        kernel_regularizer=keras.regularizers.L2(0.1),
        bias_regularizer="l1",
        activity_regularizer="l2",
        kernel_constraint="unit_norm",
        bias_constraint="non_neg",
        name="trunk",
        dtype="mixed_bfloat16",
    )

    copy = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))

    assert isinstance(copy, SparseDense)
    assert copy.get_config() == layer.get_config()


def test_output_shape_and_spec():
    layer = SparseDense(3, dtype="mixed_bfloat16")

    assert layer.compute_output_shape((None, 4, V)) == (None, 4, 3)
    outputs = layer(keras.Input([V], sparse=True))
    assert (outputs.shape, outputs.dtype, outputs.sparse) == ((None, 3), "bfloat16", False)


@pytest.mark.parametrize("units", [0, -1, 2.0, None, True])
def test_bad_units(units):
    with pytest.raises(ValueError, match=f"units must be an integer of at least 1; got {units}"):
        SparseDense(units)


def test_numpy_units_are_an_integer():
    assert type(SparseDense(np.int64(3)).get_config()["units"]) is int


def test_unknown_width():
    with pytest.raises(ValueError, match=r"known width V; got the shape \(None, None\)"):
        SparseDense(3)(keras.Input([None], sparse=True))


@pytest.mark.parametrize("sparse", [True, False])
def test_another_width_than_built_for(sparse):
    layer, _ = twins()
    x = tf.ones([2, V + 1])

    with pytest.raises(ValueError, match=f"expected axis -1 of input shape to have value {V}"):
        layer(tf.sparse.from_dense(x) if sparse else x)


def test_sparse_input_of_higher_rank():
    layer, _ = twins()

    with pytest.raises(ValueError, match=r"a sparse input must be a matrix; got .* \(2, 3, 23\)"):
        layer(tf.sparse.from_dense(tf.ones([2, 3, V])))


def test_a_sparse_input_of_another_width_is_refused_when_the_graph_runs():
    layer, _ = twins()

    @tf.function(input_signature=[tf.SparseTensorSpec([None, None], tf.float32)])
    def call(x):
        return layer(x)

    x = draw_input(np.random.default_rng(0))
    np.testing.assert_array_equal(call(tf.sparse.from_dense(x)), layer(tf.sparse.from_dense(x)))
    for other in (x[:, 1:], np.pad(x, [(0, 0), (0, 1)])):
        message = rf"must have {V} columns, .*\[{other.shape[1]}\]"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call(tf.sparse.from_dense(other))
