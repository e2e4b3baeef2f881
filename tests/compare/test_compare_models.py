# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from compare.own_models import EXAMPLES, X, Y, make_model

import tfx_largeout as tlo
from tfx_largeout.compare.own_data import OwnData, own_data

pytestmark = pytest.mark.usefixtures("no_picture")
SPARSE = keras.losses.SparseCategoricalCrossentropy
IGNORES_3 = SPARSE(ignore_class=3)
SHORT = {"epochs": 2, "evaluations": 2}


def test_models_are_compared_and_keep_what_they_learned(tmp_path, capsys):
    """One cannot be built: the others are trained."""
    plain = make_model(metrics=["accuracy"], run_eagerly=False, steps_per_execution=2)
    head = tlo.replace_output(make_model(), tlo.heads.DenseHead(40))
    head.compile("adam", loss=tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)

    def broken():
        raise ValueError("no such data")

    models = {"plain": plain, "broken": broken, "head": head}
    comparison = tlo.compare_models(models, (X, Y), (X, Y), output=tmp_path / "run", **SHORT)
    first, second, third = comparison.rows
    assert [row.status for row in comparison.rows] == ["done", "failed", "done"]
    assert second.error == "ValueError: no such data"
    assert first.steps == third.steps == 6
    after = plain.evaluate(X, Y, verbose=0, return_dict=True)
    assert after["loss"] == pytest.approx(first.exact_loss, rel=1e-4)
    assert after["accuracy"] == pytest.approx(first.precision_at_1)
    assert after["loss"] < comparison.curves["plain"][0][0].exact_loss
    assert [point.step for point in comparison.curves["plain"][0]] == [0, 4, 6]
    text = str(comparison)
    assert text in capsys.readouterr().out and "broken failed: ValueError: no such data" in text
    assert "<td>plain</td>" in comparison._repr_html_()
    assert "no such data" in (comparison.folder / "logs" / "broken.log").read_text()
    names = {str(file.relative_to(comparison.folder)) for file in comparison.folder.rglob("*")}
    expected = ["summary.csv", "curves.csv", "comparison.html", "results.json"]
    assert names > {*expected, "tensorboard/plain", "tensorboard/head"}
    report = json.loads((comparison.folder / "results.json").read_text())
    assert report["heads"][0]["batch_size"] == 32 and report["training"]["epochs"] == 2
    assert report["heads"][0]["options"]["optimizer"] == "Adam"


def test_the_budget_may_be_seconds(tmp_path):
    comparison = tlo.compare_models(
        {"a": make_model()}, (X, Y), (X, Y), seconds=0.1, evaluations=1, output=tmp_path / "run"
    )
    assert 0.1 <= comparison.rows[0].seconds < 60


def test_functions_build_a_model_for_each_seed_and_all_get_the_same_order(tmp_path):
    def after_other_draws():
        keras.Sequential([keras.Input([9]), keras.layers.Dropout(0.5), keras.layers.Dense(9)])
        model = make_model()
        model.set_weights([np.full_like(weight, 0.1) for weight in model.get_weights()])
        return model

    def at_once():
        model = make_model()
        model.set_weights([np.full_like(weight, 0.1) for weight in model.get_weights()])
        return model

    models = {"a": at_once, "b": after_other_draws}
    comparison = tlo.compare_models(
        models, (X, Y), (X[:32], Y[:32]), epochs=1, evaluations=1, seeds=2, output=tmp_path / "run"
    )
    (a, other), (b, _) = comparison.curves["a"], comparison.curves["b"]
    assert [p.train_loss for p in a[1:]] == pytest.approx([p.train_loss for p in b[1:]], rel=1e-5)
    assert a[1].exact_loss != pytest.approx(other[1].exact_loss, rel=1e-5)
    assert [row.seeds for row in comparison.rows] == [2, 2]
    assert comparison.rows[0].exact_loss_spread > 0
    assert (comparison.folder / "tensorboard" / "a-seed1").is_dir()


def test_ctrl_c_keeps_what_is_done(tmp_path, capsys):
    def pressed():
        raise KeyboardInterrupt

    models = {"a": make_model(), "b": pressed, "c": make_model()}
    comparison = tlo.compare_models(models, (X, Y), (X, Y), output=tmp_path / "run", **SHORT)
    assert [row.status for row in comparison.rows] == ["done", "interrupted"]
    assert "Interrupted. Not trained: c." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"models": {}}, TypeError, "models must be a dict with at least one model"),
        ({"models": {"a": 3}}, TypeError, "functions that build one; got 3 as 'a'"),
        ({"models": {"a/b": make_model}}, ValueError, "text without a slash; got 'a/b'"),
        ({"models": {"a": keras.Sequential()}}, ValueError, "must be compiled; got 'a'"),
        ({"models": {"a": make_model()}, "seeds": 2}, ValueError, "where there are several seeds"),
        (
            {"models": {"a": make_model(), "b": make_model(loss=IGNORES_3)}},
            ValueError,
            "losses that ignore the same class.*got ignore_class=3 in 'b' and None in 'a'",
        ),
        ({"seconds": 1, "epochs": 1}, ValueError, "seconds must be None beside epochs"),
        ({"epochs": 0}, ValueError, "epochs must be a finite number above 0; got 0"),
        ({"evaluations": 0}, ValueError, "evaluations must be an integer of at least 1; got 0"),
        ({"train": X}, TypeError, r"train must be a tuple \(x, y\).*got .* in ndarray"),
        ({"train": (X,)}, ValueError, r"train must be \(x, y\) or .*; got 1 parts"),
        ({"train": (X[:0], Y[:0])}, ValueError, "train must have at least one batch"),
        ({"train": iter([])}, TypeError, "another iterable with a length; got list_iterator"),
        (
            {"validation": tf.data.Dataset.range(3).repeat()},
            ValueError,
            "validation must be finite",
        ),
        ({"overwrite": "False"}, ValueError, "overwrite must be True or False; got 'False'"),
        ({"output": Path(__file__).parent}, ValueError, "unless overwrite=True is given; got"),
        ({"output": __file__}, ValueError, "output must be a folder; got the file"),
    ],
)
def test_a_wrong_argument_is_refused_before_any_training(arguments, error, message, tmp_path):
    given = {"models": {"a": make_model}, "train": (X, Y), "validation": (X, Y), **arguments}
    given.setdefault("output", tmp_path / "run")
    with pytest.raises(error, match=message):
        tlo.compare_models(**given)
    assert not (tmp_path / "run").exists()


def test_models_that_functions_build_must_ignore_the_same_class(tmp_path):
    models = {
        "a": lambda: make_model(loss=[SPARSE(ignore_class=-100)]),
        "b": lambda: make_model(loss=IGNORES_3),
        "c": make_model,
    }
    found = tlo.compare_models(models, (X, Y), (X, Y), output=tmp_path / "run", **SHORT)
    assert [row.status for row in found.rows] == ["done", "failed", "done"]
    assert "ignore_class=3 in 'b' and None in 'a'" in found.rows[1].error
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert results["heads"][0]["options"]["loss"] == "sparse_categorical_crossentropy"


def test_models_that_share_weights_are_refused(tmp_path):
    model = make_model()
    other = keras.Sequential([keras.Input([6]), model.layers[0], keras.layers.Dense(40)])
    other.compile("sgd", loss="mse")
    with pytest.raises(ValueError, match=r"must not share weights, .* in 'a' and in 'b'"):
        tlo.compare_models({"a": model, "b": other}, (X, Y), (X, Y), output=tmp_path / "run")


class Batches(keras.utils.PyDataset):
    num_batches = 3

    def __getitem__(self, number):
        rows = slice(32 * number, 32 * (number + 1))
        return X[rows], Y[rows]


def of_unknown_length():
    def generate():
        yield from zip(X, Y, strict=True)

    kinds = tf.TensorSpec([6], tf.float32), tf.TensorSpec([], tf.int64)
    return tf.data.Dataset.from_generator(generate, output_signature=kinds).batch(32)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "data",
    [
        (X, Y),
        (X, Y, np.ones(EXAMPLES)),
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(32),
        of_unknown_length(),
        Batches(),
    ],
    ids=["arrays", "weights", "dataset", "unknown", "py_dataset"],
)
def test_what_is_known_of_data(data):
    own = OwnData("train", data, None)
    assert (own.batches, own.batch_size) == (3, 32)
    np.testing.assert_array_equal(own.label_counts(40), np.bincount(Y, minlength=40))
    model = make_model()
    model.fit(**own.fit_arguments, verbose=0)
    assert model.optimizer.iterations == 3


@pytest.mark.all_cases
@pytest.mark.parametrize(
    "labels",
    [
        np.array([[0, 2], [2, -1]]),
        tf.ragged.constant([[0, 2], [2]]),
        np.array([[1.0, 0, 1], [0, 0, 1]]),
        np.array([[0], [2]]),
        tf.sparse.from_dense([[1.0, 0, 1], [0, 0, 1]]),
    ],
    ids=["padded", "ragged", "many_hot", "column", "sparse"],
)
def test_labels_are_counted_in_each_form(labels):
    counts = OwnData("train", (X[:2], labels), None).label_counts(3)
    is_column = isinstance(labels, np.ndarray) and len(labels[0]) == 1
    assert counts.tolist() == [1, 0, 1 if is_column else 2]


def test_matrices_of_scipy():
    sparse = pytest.importorskip("scipy.sparse")
    y = sparse.csr_array(np.array([[1.0, 0, 1], [0, 0, 1], [0, 0, 0]]))
    own = OwnData("train", (sparse.csr_array(X[:3]), y), None)
    own.check_ids(3)
    assert (own.batches, own.batch_size) == (1, 3)
    assert own.label_counts(3).tolist() == [1, 0, 2]
    columns = OwnData("train", (sparse.csc_array(X[:3]), y.tocsc()), None)
    assert [columns.arguments[name].format for name in "xy"] == ["csr", "csr"]  # Keras can't slice
    assert columns.label_counts(3).tolist() == [1, 0, 2]


def test_a_batch_size_is_for_arrays_alone():
    with pytest.raises(ValueError, match="batch_size must be None where train comes in batches"):
        own_data(Batches(), Batches(), 7)
    assert [data.batches for data in own_data(Batches(), (X, Y), 7)] == [3, 14]
    with pytest.raises(ValueError, match="batch_size must be an integer of at least 1; got 0"):
        own_data((X, Y), (X, Y), 0)
