# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from conformance.heads_table import HEADS, first_of_a_class
from serving.models import (
    CLASSES,
    NAMES,
    WIDTH,
    K,
    X,
    assert_same,
    clustered_model,
    dense_model,
    exported,
    loaded,
    model_of,
    sparse_model,
    text_model,
)

import tfx_largeout as tlo

ROWS = list(filter(first_of_a_class, HEADS))


def trained(row):
    model = model_of(row.make_head(CLASSES))
    model.compile(row.make_optimizer(), row.make_loss(), run_eagerly=True)
    model.fit(X, np.arange(len(X)), batch_size=12, verbose=0)
    return model


# Loads models in a process that has neither this package nor custom ops, and runs them.
SERVER = """
import importlib.abc, json, os, sys
os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

class Blocker(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] == "tfx_largeout":
            raise ImportError("blocked: " + name)

sys.meta_path.insert(0, Blocker())
try:
    import tfx_largeout
except ImportError as error:
    assert "blocked" in str(error)
else:
    raise AssertionError("the package is there")
import numpy as np
import tensorflow as tf

def refuse(path):
    raise AssertionError("a library of ops was loaded: " + path)

tf.load_op_library = refuse
for name, signature in json.loads(sys.argv[1]):
    given = np.load(name + ".npz")
    loaded = tf.saved_model.load(name)
    result = loaded.signatures[signature](**{key: tf.constant(given[key]) for key in given})
    arrays = {key: value.numpy() for key, value in result.items()}
    if "names" in arrays:
        arrays["names"] = arrays["names"].astype("S")
    np.savez(name + ".answers.npz", **arrays)
assert not [name for name in sys.modules if name.startswith("tfx_largeout")]
print("served")
"""


def serve(folder, signatures):
    """Runs exported models in a process without the package; returns their answers."""
    program = folder / "server.py"
    program.write_text(SERVER)
    jobs = [[str(folder / name), signature] for name, signature in signatures.items()]
    done = run_child(folder, "-I", str(program), json.dumps(jobs))
    assert done.returncode == 0 and done.stdout.split()[-1] == "served", done.stderr[-2000:]
    return {name: np.load(folder / f"{name}.answers.npz") for name in signatures}


def test_every_head_gives_its_best_classes_where_the_package_is_not_installed(tmp_path):
    models = {row.name: trained(row) for row in ROWS}
    for name, model in models.items():
        tlo.export(model, tmp_path / name, K, activation="softmax")
        np.savez(tmp_path / f"{name}.npz", inputs=X)
    results = serve(tmp_path, dict.fromkeys(models, "serving_default"))
    assert len(results) >= 7
    for name, model in models.items():
        assert_same(results[name], tlo.top_k_model(model, K, "softmax")(X))
        sums = tf.reduce_logsumexp(model(X), axis=1)
        np.testing.assert_allclose(results[name]["log_partition"], sums, atol=1e-5)


@pytest.mark.thorough
def test_inputs_names_lists_and_tables_where_the_package_is_not_installed(tmp_path):
    sparse, text, listed = sparse_model(), text_model(), dense_model()
    x = tf.sparse.from_dense(np.maximum(np.random.default_rng(1).normal(size=(6, 40)), 0))
    x = tf.cast(x, tf.float32)
    words = tf.constant(["one two two", "three", "", "four"])
    tlo.export(sparse, tmp_path / "sparse", K)
    np.savez(
        tmp_path / "sparse.npz",
        inputs_indices=x.indices,
        inputs_values=x.values,
        inputs_dense_shape=x.dense_shape,
    )
    tlo.export(text, tmp_path / "text", K, names=NAMES)
    np.savez(tmp_path / "text.npz", inputs=words.numpy().astype("S"))
    tlo.export(listed, tmp_path / "listed", K, index="ivf", rows="int8", rescore=True)
    np.savez(tmp_path / "listed.npz", inputs=X, num_probed=np.int32(7))
    hashed = dense_model()
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 3, 8, similarity="inner_product")
    index.rebuild(hashed.layers[-1].kernel, hashed.layers[-1].bias)
    tlo.export(hashed, tmp_path / "hashed", K, index=index, activation="softmax")
    np.savez(tmp_path / "hashed.npz", inputs=X)
    signatures = dict.fromkeys(["sparse", "text", "hashed"], "serving_default")
    results = serve(tmp_path, {**signatures, "listed": "with_num_probed"})
    assert_same(results["sparse"], tlo.top_k_model(sparse, K)(x))
    assert_same(results["text"], tlo.top_k_model(text, K)(words))
    assert_same(results["listed"], tlo.top_k_model(listed, K)(X))
    assert_same(results["hashed"], tlo.top_k_model(hashed, K, "softmax", index)(X))
    np.testing.assert_array_equal(
        results["text"]["names"], np.array(NAMES)[results["text"]["ids"]].astype("S")
    )


@pytest.mark.parametrize("form", ["lists", pytest.param("tables", marks=pytest.mark.thorough)])
def test_a_session_runs_it_as_servers_in_cpp_do(form, tmp_path):
    model = dense_model()
    index = tlo.indexes.HashIndex(tlo.indexes.DWTAHash(2), 2, 7)
    index.rebuild(model.layers[-1].kernel, model.layers[-1].bias)
    given_index = "ivf" if form == "lists" else index
    tlo.export(model, tmp_path / "model", K, index=given_index, names=NAMES)
    expected = tlo.top_k_model(model, K, index=None if form == "lists" else index)(X)
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        meta = tf.compat.v1.saved_model.loader.load(session, ["serve"], str(tmp_path / "model"))
        signature = meta.signature_def["with_num_probed"]
        tensors = {name: info.name for name, info in signature.outputs.items()}
        given = {"inputs": X, "num_probed": 7}
        feed = {signature.inputs[name].name: value for name, value in given.items()}
        result = session.run(tensors, feed)
    assert_same(result, expected)
    np.testing.assert_array_equal(
        result["names"].astype("S"), np.array(NAMES)[result["ids"]].astype("S")
    )


def test_ties_go_to_the_lower_id_within_and_across_blocks(tmp_path, monkeypatch):
    model = model_of(tlo.heads.DenseHead(3000, use_bias=False), width=2)
    rows = np.random.default_rng(0).integers(-1, 2, size=(3000, 2)).astype("float32")
    model.layers[-1].kernel.assign(rows)  # logits of whole numbers below, so that ties are exact
    model.layers[0].kernel.assign(np.round(X[:WIDTH, :2]) * 0)
    model.layers[0].bias.assign([20.0, 20.0])  # tanh is 1
    logits = model.predict(X, verbose=0)
    assert len(np.unique(logits)) == 5
    expected = np.argsort(-logits, axis=1, kind="stable")[:, :700]
    for elements, stored in ((2**22, 2**18), (12 * 128, 2**18), (2**22, 1300), (12 * 128, 1300)):
        monkeypatch.setattr("tfx_largeout.serving.stored_rows._BLOCK_ELEMENTS", elements)
        monkeypatch.setattr("tfx_largeout.serving.stored_rows._MOST_CLASSES", stored)
        result = exported(model, tmp_path / f"{elements} {stored}", k=700)
        np.testing.assert_array_equal(result["ids"], expected)


@pytest.mark.parametrize("rows", ["float32", "int8"])
def test_blocks_of_stored_classes_give_what_one_does(rows, tmp_path, monkeypatch):
    model = dense_model(200)
    whole = exported(model, tmp_path / "whole", activation="softmax", rows=rows)
    for most in (70, 199):  # three blocks of 67, with one class missing in the last, and two of 100
        monkeypatch.setattr("tfx_largeout.serving.stored_rows._MOST_CLASSES", most)
        parts = exported(model, tmp_path / str(most), activation="softmax", rows=rows)
        np.testing.assert_array_equal(parts["ids"], whole["ids"])
        for name in ("scores", "log_partition"):
            np.testing.assert_allclose(parts[name], whole[name], rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ["float32", "int8"])
def test_lite_rt_runs_the_exact_form(rows, tmp_path, monkeypatch):
    monkeypatch.setattr("tfx_largeout.serving.stored_rows._MOST_CLASSES", 70)
    expected = exported(dense_model(200), tmp_path / "model", rows=rows)
    converter = tf.lite.TFLiteConverter.from_saved_model(
        str(tmp_path / "model"), signature_keys=["serving_default"]
    )
    with pytest.warns(UserWarning, match="tf.lite.Interpreter is deprecated"):
        interpreter = tf.lite.Interpreter(model_content=converter.convert())
    result = interpreter.get_signature_runner("serving_default")(inputs=X)
    np.testing.assert_array_equal(result["ids"], expected["ids"])
    np.testing.assert_allclose(result["scores"], expected["scores"], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("index", [None, "ivf"])
@pytest.mark.parametrize(
    ("activation", "k"), [(None, 1), ("softmax", 100), ("sigmoid", 200)], ids=str
)
def test_any_batch_size_and_activation(activation, k, index, tmp_path, monkeypatch):
    # Several blocks; the last one is short.
    monkeypatch.setattr("tfx_largeout.serving.stored_rows._BLOCK_ELEMENTS", 64)
    model = dense_model(200)
    arguments = {} if index is None else {"index": index, "num_probed": 14}
    tlo.export(model, tmp_path / "model", k, activation=activation, **arguments)
    serving = loaded(tmp_path / "model")
    for batch in (0, 1, 33):
        x = np.random.default_rng(batch).normal(size=(batch, WIDTH)).astype("float32")
        assert_same(serving(inputs=x), tlo.top_k_model(model, k, activation)(x))


def test_sequences_and_several_inputs(tmp_path):
    left, right = keras.Input((None, 3), name="left"), keras.Input((None, 5), name="right")
    hidden = keras.layers.Concatenate()([left, right])
    model = keras.Model({"l": left, "r": right}, tlo.heads.DenseHead(CLASSES)(hidden))
    x = {"left": X[:, :3].reshape(4, 3, 3), "right": X[:, 3:].reshape(4, 3, 5)}
    tlo.export(model, tmp_path / "two", K, activation="softmax", names=NAMES)
    result = loaded(tmp_path / "two")(**{name: tf.constant(x[name]) for name in x})
    assert result["names"].shape == (4, 3, K)
    assert result["log_partition"].shape == (4, 3)
    expected = tlo.top_k_model(model, K, "softmax")({"l": x["left"], "r": x["right"]})
    assert_same(result, expected)
    data = {"l": x["left"], "r": x["right"]}
    assert tlo.serving.recall(model, tmp_path / "two", data) == 1


def test_a_subclassed_model_needs_a_signature(tmp_path):
    @keras.saving.register_keras_serializable(package="test")
    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.trunk, self.head = keras.layers.Dense(WIDTH), tlo.heads.DenseHead(CLASSES)

        def call(self, inputs):
            return self.head(self.trunk(inputs["x"]))

    model = Own()
    with pytest.raises(ValueError, match="model must be built"):
        tlo.export(model, tmp_path / "own")
    expected = tlo.top_k_model(model, K)({"x": X})
    with pytest.raises(ValueError, match="input_signature must be given"):
        tlo.export(model, tmp_path / "own")
    signature = {"x": tf.TensorSpec([None, WIDTH], tf.float32)}
    assert_same(exported(model, tmp_path / "own", input_signature=signature), expected)


@pytest.mark.parametrize("policy", ["mixed_bfloat16", "bfloat16", "float64"])
def test_policies(policy, tmp_path):
    inputs = keras.Input((WIDTH,))
    head = tlo.heads.DenseHead(CLASSES, bias_initializer="random_normal", dtype=policy)
    model = keras.Model(inputs, head(keras.layers.Dense(WIDTH, dtype=policy)(inputs)))
    assert_same(exported(model, tmp_path / "of_policy"), tlo.top_k_model(model, K)(X))


@pytest.mark.parametrize(("rows", "error"), [("bfloat16", 2e-2), ("int8", 2e-2)])
@pytest.mark.parametrize("index", [None, "ivf"])
def test_rounded_rows(rows, error, index, tmp_path):
    model = dense_model(400, kernel_initializer="random_normal")
    model.layers[-1].kernel.assign(model.layers[-1].kernel.numpy() * np.arange(400)[:, np.newaxis])
    arguments = {} if index is None else {"index": index, "num_probed": 20}
    result = exported(model, tmp_path / "rounded", rows=rows, **arguments)
    logits = model.predict(X, verbose=0)
    own = np.take_along_axis(logits, result["ids"], axis=1)
    np.testing.assert_allclose(result["scores"], own, rtol=error, atol=0.05)
    assert np.abs(result["scores"] - own).max() > 1e-4  # they are rounded
    assert tlo.serving.recall(model, tmp_path / "rounded", X) > 0.8
    again = exported(model, tmp_path / "again", rows=rows, rescore=True, **arguments)
    assert_same(again, tlo.top_k_model(model, K)(X), atol=1e-4)


def size_of(folder):
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_rounded_rows_are_a_half_and_a_quarter_of_the_size(tmp_path):
    model = dense_model(20_000, width=64)
    sizes = {}
    for rows in ("float32", "bfloat16", "int8"):
        tlo.export(model, tmp_path / rows, rows=rows)
        sizes[rows] = size_of(tmp_path / rows)
    assert sizes["float32"] / sizes["bfloat16"] == pytest.approx(2, rel=0.2)
    assert sizes["float32"] / sizes["int8"] == pytest.approx(4, rel=0.2)


def test_only_w_and_b_of_a_head_are_written(tmp_path):
    head = tlo.heads.SampledHead(2000, tlo.samplers.Uniform(9), tlo.optimizers.RowAdam())
    model = model_of(head, width=32)
    tlo.export(model, tmp_path / "sampled")
    assert size_of(tmp_path / "sampled") < 2000 * 33 * 4 + 2**17


@pytest.mark.parametrize("make", [dense_model, sparse_model])
def test_variables_of_the_layers_below_are_written_once(make, tmp_path):
    model = make()
    tlo.export(model, tmp_path / "model")
    written = tf.train.list_variables(str(tmp_path / "model" / "variables" / "variables"))
    sizes = sorted(math.prod(shape) for name, shape in written if name.endswith("VARIABLE_VALUE"))
    assert sizes == sorted(math.prod(weight.shape) for weight in model.weights)


def test_recall_of_lists_grows_to_one(tmp_path):
    model = clustered_model()
    tlo.export(model, tmp_path / "ivf", K, index="ivf", num_lists=30, num_probed=2)
    x = np.random.default_rng(3).normal(size=(300, WIDTH)).astype("float32")
    recalls = [tlo.serving.recall(model, tmp_path / "ivf", x, n) for n in (1, 4, 12, 30)]
    assert recalls == sorted(recalls) and recalls[-1] == 1
    assert 0.1 < recalls[0] < 0.9 and recalls[2] > 0.9
    assert recalls[0] < tlo.serving.recall(model, tmp_path / "ivf", x) < recalls[2]
    data = tf.data.Dataset.from_tensor_slices((x, np.zeros(300))).batch(100)
    assert tlo.serving.recall(model, tmp_path / "ivf", data, 4) == pytest.approx(recalls[1])
    few = loaded(tmp_path / "ivf", "with_num_probed")(inputs=X, num_probed=tf.constant(1))
    logits = model.predict(X, verbose=0)
    ids = few["ids"].numpy()
    own = np.where(ids < 0, -np.inf, np.take_along_axis(logits, ids, axis=1))
    np.testing.assert_allclose(few["scores"], own, atol=1e-5)  # found classes have their logits


def test_lists_of_rows_that_are_all_alike(tmp_path):
    model = dense_model(100, kernel_initializer="zeros")
    result = exported(model, tmp_path / "alike", index="ivf", num_probed=10)
    assert_same(result, tlo.top_k_model(model, K)(X))


def test_the_same_seed_gives_the_same_lists(tmp_path):
    model = clustered_model()
    answers = [
        exported(model, tmp_path / str(turn), index="ivf", num_probed=1, seed=seed)
        for turn, seed in enumerate((1, 1, 2))
    ]
    np.testing.assert_array_equal(answers[0]["ids"], answers[1]["ids"])
    assert np.any(answers[0]["ids"] != answers[2]["ids"])


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_where_lists_have_fewer_than_k_nothing_follows(activation, tmp_path):
    model = dense_model()
    arguments = {"index": "ivf", "num_lists": 10, "num_probed": 1, "activation": activation}
    result = exported(model, tmp_path / "few", k=20, names=NAMES, **arguments)
    missing = result["ids"] < 0
    found = (~missing).sum(axis=1)
    assert found.min() >= 1 and found.max() <= 7
    assert np.all(missing == (np.arange(20) >= found[:, np.newaxis]))
    assert np.all(result["scores"][missing] == (-np.inf if activation is None else 0))
    assert np.all(result["names"][missing] == b"")
    if activation == "softmax":
        np.testing.assert_allclose(result["scores"].sum(axis=1), 1, rtol=1e-5)


def test_a_request_for_no_list_or_too_many_is_refused(tmp_path):
    tlo.export(dense_model(), tmp_path / "ivf", index="ivf")
    probe = loaded(tmp_path / "ivf", "with_num_probed")
    for number in (0, 8):
        with pytest.raises(tf.errors.InvalidArgumentError, match="num_probed must be at least 1"):
            probe(inputs=tf.constant(X), num_probed=tf.constant(number))


def test_a_sparse_request_of_another_width_is_refused(tmp_path):
    tlo.export(sparse_model(), tmp_path / "sparse", K)
    serving = loaded(tmp_path / "sparse")
    with pytest.raises(tf.errors.InvalidArgumentError, match="inputs_dense_shape must be"):
        serving(
            inputs_indices=tf.constant([[0, 1]], tf.int64),
            inputs_values=tf.constant([1.0]),
            inputs_dense_shape=tf.constant([1, 41], tf.int64),
        )


@pytest.mark.thorough
def test_a_model_goes_on_training_and_its_export_stays(tmp_path):
    model = trained(next(row for row in ROWS if row.name == "sampled"))
    tlo.export(model, tmp_path / "before", K)
    before = tlo.top_k_model(model, K)(X)
    model.fit(X, np.arange(len(X)), verbose=0)
    assert_same(
        {k: v.numpy() for k, v in loaded(tmp_path / "before")(inputs=tf.constant(X)).items()},
        before,
    )
    assert_same(exported(model, tmp_path / "after"), tlo.top_k_model(model, K)(X))


def test_recall_leaves_out_what_a_mask_does(tmp_path):
    keras.utils.set_random_seed(1)
    inputs = keras.Input([None], dtype="int32")
    hidden = keras.layers.Embedding(50, 16, mask_zero=True, embeddings_initializer="normal")(inputs)
    head = tlo.heads.DenseHead(400, kernel_initializer="normal")
    model = keras.Model(inputs, head(hidden))
    tlo.export(model, tmp_path / "ivf", k=10, index="ivf", num_lists=20, num_probed=4)
    x = np.random.default_rng(0).integers(1, 50, (16, 5))
    recalls = [
        tlo.serving.recall(model, tmp_path / "ivf", np.pad(x, [[0, 0], [0, n]])) for n in (0, 40)
    ]
    assert recalls[0] == recalls[1] < 0.9
    with pytest.raises(ValueError, match="at least one example"):
        tlo.serving.recall(model, tmp_path / "ivf", np.zeros([3, 4], "int32"))
