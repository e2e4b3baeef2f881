# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context

import tfx_largeout as tlo


@pytest.fixture
def model():
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3),
            tlo.heads.DenseHead(11, bias_initializer="random_normal"),
        ]
    )


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(6, 4)).astype("float32")


def test_activations(model, x):
    logits = model.predict(x, verbose=0)
    ids = np.argsort(-logits, axis=-1, kind="stable")[:, :3]
    expected = {
        None: logits,
        "softmax": tf.nn.softmax(logits).numpy(),
        "sigmoid": tf.sigmoid(logits).numpy(),
    }
    for activation, values in expected.items():
        scores, top = tlo.top_k_model(model, 3, activation).predict(x, verbose=0)
        np.testing.assert_array_equal(top, ids)
        np.testing.assert_allclose(
            scores, np.take_along_axis(values, ids, axis=-1), rtol=1e-4, atol=1e-6
        )


def test_inputs_are_not_rounded_by_a_policy_where_the_model_does_not():
    keras.config.set_dtype_policy("mixed_bfloat16")
    layers = [keras.Input([1], dtype="float32"), keras.layers.Embedding(2000, 8)]
    model = keras.Sequential([*layers, keras.layers.Flatten(), tlo.heads.DenseHead(50)])
    ids = np.arange(257, 1200, 7, dtype="float32")[:, None]  # bfloat16 has 8 bits
    logits = model.predict(ids, verbose=0)
    top = tlo.top_k_model(model, 1).predict(ids, verbose=0)[1]
    found = np.take_along_axis(logits, top, axis=1)[:, 0]  # two logits in 16 bits may be equal
    np.testing.assert_array_equal(found, logits.max(axis=1))


def test_xla_is_refused(model):
    compiled = tf.function(tlo.TopK(model.layers[-1], 3), jit_compile=True)
    with pytest.raises(RuntimeError, match=r"can't be compiled with XLA.*Leave jit_compile out"):
        compiled(tf.ones([2, 3]))


def test_sequences():
    hidden = np.random.default_rng(0).normal(size=(2, 5, 3)).astype("float32")
    head = tlo.heads.DenseHead(11)
    scores, ids = tlo.TopK(head, 4)(hidden)
    assert scores.shape == ids.shape == (2, 5, 4)
    np.testing.assert_array_equal(ids[..., 0], np.argmax(head(hidden), axis=-1))


def test_layer_in_a_functional_model_shares_the_weights(model, x):
    hidden = model.layers[0].output
    top = keras.Model(model.inputs, tlo.TopK(model.layers[-1], 2)(hidden))
    model.layers[-1].kernel.assign(model.layers[-1].kernel * -2.0)
    np.testing.assert_array_equal(
        top.predict(x, verbose=0)[1], tlo.top_k_model(model, 2).predict(x, verbose=0)[1]
    )


def test_keras_file_round_trip(model, x, tmp_path):
    top = tlo.top_k_model(model, 3, "softmax")
    expected = top.predict(x, verbose=0)
    top.save(tmp_path / "top.keras")
    loaded = keras.saving.load_model(tmp_path / "top.keras")
    for left, right in zip(loaded.predict(x, verbose=0), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_saved_model_of_tensorflows_own_ops_alone(model, x, tmp_path, monkeypatch):
    top = tlo.top_k_model(model, 3)
    expected = top.predict(x, verbose=0)
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")
    serve = tf.function(top.call, input_signature=[tf.TensorSpec([None, 4], tf.float32)])
    tf.saved_model.save(top, str(tmp_path / "top"), signatures=_named(serve))
    loaded = tf.saved_model.load(str(tmp_path / "top"))
    graph = loaded.signatures["serving_default"].graph.as_graph_def()
    ops = {node.op for node in graph.node}
    ops |= {node.op for function in graph.library.function for node in function.node_def}
    assert not [op for op in ops if op.startswith("Tfx")]
    result = loaded.signatures["serving_default"](tf.constant(x))
    np.testing.assert_array_equal(result["ids"], expected[1])


def _named(serve):
    @tf.function(input_signature=serve.input_signature)
    def named(x):
        scores, ids = serve(x)
        return {"scores": scores, "ids": ids}

    return named


def operations_that_run(function, *arguments):
    """Names of the op types in the graphs as TensorFlow runs them, after its optimizations."""
    context.context().enable_graph_collection()
    function(*arguments)
    metadata = context.context().export_run_metadata()
    context.context().disable_graph_collection()
    graphs = [
        graph for functions in metadata.function_graphs for graph in functions.partition_graphs
    ]
    return {node.op for graph in graphs for node in graph.node}


def test_unused_logits_cost_nothing_not_even_a_read_of_the_kernel():
    model = keras.Sequential([keras.Input((4,)), tlo.heads.DenseHead(11, use_bias=False)])
    x = tf.ones([2, 4])
    assert "ReadVariableOp" in operations_that_run(tf.function(lambda x: model(x)), x)
    top = tlo.top_k_model(model, 3)
    loss = tlo.losses.SoftmaxCrossentropy()
    for function in (
        tf.function(lambda x: top(x)),
        tf.function(lambda x: loss([1, 2], model(x, training=False))),
    ):
        ran = operations_that_run(function, x)
        assert ran & {"TfxResourceStreamedLogits", "ResourceGather"}
        assert "ReadVariableOp" not in ran


@pytest.mark.parametrize("k", [0, -1, 2.0, True, "3"])
def test_k_must_be_a_positive_integer(model, k):
    with pytest.raises(ValueError, match="k must be an integer of at least 1; got"):
        tlo.top_k_model(model, k)
    with pytest.raises(ValueError, match="k must be an integer of at least 1; got"):
        tlo.TopK(model.layers[-1], k)


def test_other_bad_arguments(model, x):
    with pytest.raises(ValueError, match="k must be at most num_classes=11; got 12"):
        tlo.TopK(model.layers[-1], 12)
    with pytest.raises(ValueError, match=r"activation must be .* got 'tanh'"):
        tlo.top_k_model(model, 2, "tanh")
    with pytest.raises(TypeError, match="head must be a Head; got"):
        tlo.TopK(model.layers[0], 2)
    headless = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3)])
    with pytest.raises(TypeError, match="model must end in a head"):
        tlo.top_k_model(headless, 2)(x)


CLASSES = 30


@pytest.fixture
def indexed():
    """A head, and an index over its weights that finds most classes."""
    head = tlo.heads.DenseHead(CLASSES, bias_initializer="random_normal")
    head.build((None, 8))
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 1, 40, max_per_bucket=CLASSES)
    index.rebuild(head.kernel, head.bias)
    return head, index


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_an_index_that_finds_all_classes_gives_the_exact_best(indexed, activation):
    head, index = indexed
    hidden = np.random.default_rng(1).normal(size=(6, 8)).astype("float32")
    found = index.candidates(hidden[:, np.newaxis], CLASSES, tf.constant([0, 0]), per_example=True)
    assert np.all(found >= 0)
    approximate = tlo.TopK(head, 3, activation, index, num_found=CLASSES)(hidden)
    exact = tlo.TopK(head, 3, activation)(hidden)
    np.testing.assert_array_equal(approximate[1], exact[1])
    np.testing.assert_allclose(approximate[0], exact[0], rtol=1e-5)


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_where_nothing_is_found_there_is_nothing(indexed, activation):
    head, index = indexed
    scores, ids = tlo.TopK(head, 3, activation, index)(np.zeros((2, 8), "float32"))
    np.testing.assert_array_equal(ids, np.full((2, 3), -1))
    np.testing.assert_array_equal(scores, np.full((2, 3), 0 if activation else -np.inf))


def test_an_index_must_fit_the_head(indexed):
    head, index = indexed
    hidden = np.ones((2, 8), "float32")
    with pytest.raises(ValueError, match="num_found must be at most num_classes=30; got 31"):
        tlo.TopK(head, 3, index=index, num_found=CLASSES + 1)
    other = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 1, 2)
    with pytest.raises(RuntimeError, match="index must be built before it is asked"):
        tlo.TopK(head, 3, index=other)(hidden)
    other.rebuild(tf.Variable(tf.ones([CLASSES - 1, 8])))
    with pytest.raises(ValueError, match=r"kernel must be \[C, D\] = \[29, 8\], for which the ind"):
        tlo.TopK(head, 3, index=other)(hidden)
    with pytest.raises(TypeError, match="a RowBounds, an InvertedFile or None; got 'head'"):
        tlo.TopK(head, 3, index="head")


@pytest.fixture
def sampled():
    """A model whose head updates an index that its sampler does not use."""
    index = tlo.indexes.HashIndex(
        tlo.indexes.SimHash(), 1, 40, first_period=2, max_per_bucket=CLASSES
    )
    head = tlo.heads.SampledHead(
        CLASSES, tlo.samplers.Uniform(9), tlo.optimizers.RowSGD(1.0), seed=1, index=index
    )
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(8), head])
    model.compile("sgd", tlo.losses.ComplementarySum())
    return model


HIDDEN = np.random.default_rng(1).normal(size=(6, 8)).astype("float32")


def fit(model):
    model.fit(HIDDEN, np.arange(6), epochs=4, shuffle=False, verbose=0)


def test_the_index_of_a_head_is_built_before_its_first_query(sampled):
    head = sampled.layers[-1]
    ids = tlo.TopK(head, 3, index=head.index, num_found=CLASSES)(HIDDEN)[1]
    np.testing.assert_array_equal(ids, tlo.TopK(head, 3)(HIDDEN)[1])


@pytest.mark.parametrize("is_trained", [False, True])
def test_a_loaded_model_has_the_index_of_the_loaded_head(sampled, is_trained, tmp_path):
    head = sampled.layers[-1]
    if is_trained:
        fit(sampled)
    top = tlo.top_k_model(sampled, 3, index=head.index)
    expected = top.predict(HIDDEN, verbose=0)
    top.save(tmp_path / "top.keras")
    loaded = keras.saving.load_model(tmp_path / "top.keras")
    assert loaded.index is loaded.model.layers[-1].index
    assert loaded.index is not head.index
    for left, right in zip(loaded.predict(HIDDEN, verbose=0), expected, strict=True):
        np.testing.assert_array_equal(left, right)
    for each in (sampled, loaded.model):  # The loaded index follows W like the first model's.
        fit(each)
    for left, right in zip(loaded.index.weights, head.index.weights, strict=True):
        np.testing.assert_array_equal(left, right, err_msg=left.path)


def test_a_loaded_layer_has_the_index_of_the_loaded_head(sampled, tmp_path):
    head = sampled.layers[-1]
    fit(sampled)
    inputs = keras.Input((8,))
    hidden = sampled.layers[0](inputs)
    outputs = [head(hidden), tlo.TopK(head, 3, index=head.index, name="top")(hidden)[1]]
    model = keras.Model(inputs, outputs)
    expected = model.predict(HIDDEN, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    top = loaded.get_layer("top")
    assert top.head is loaded.get_layer(head.name)
    assert top.index is top.head.index
    for left, right in zip(loaded.predict(HIDDEN, verbose=0), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_an_index_of_ones_own_is_saved_with_the_layer(indexed, tmp_path):
    head, index = indexed
    inputs = keras.Input((8,))
    model = keras.Model(inputs, tlo.TopK(head, 3, index=index, name="top")(inputs))
    expected = model.predict(HIDDEN, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.get_layer("top").index is not index
    for left, right in zip(loaded.predict(HIDDEN, verbose=0), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_a_head_whose_index_is_missing_is_refused(sampled):
    head = sampled.layers[-1]
    config = tlo.top_k_model(sampled, 3, index=head.index).get_config()
    config["model"]["config"]["layers"][-1]["config"]["index"] = None
    with pytest.raises(
        ValueError, match="index must belong to a head of the model; got the one of"
    ):
        tlo.layers.top_k.TopKModel.from_config(config)
