# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from conformance.heads_table import HEADS
from serving.models import CLASSES, NAMES, WIDTH, X, dense_model, model_of

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import Workers

BAD_ARGUMENTS = [
    ({"k": 0}, ValueError, "k must be an integer of at least 1; got 0"),
    ({"k": 51}, ValueError, "k must be at most num_classes=50; got 51"),
    ({"index": "hash"}, ValueError, "index must be None, 'ivf' or a HashIndex; got 'hash'"),
    ({"activation": "tanh"}, ValueError, "activation must be .* got 'tanh'"),
    ({"rows": "int4"}, ValueError, "rows must be one of .* got 'int4'"),
    ({"rescore": True}, ValueError, "rescore must be False with rows='float32'"),
    ({"rescore": 1, "rows": "int8"}, ValueError, "rescore must be True or False; got 1"),
    ({"num_lists": 3}, ValueError, "num_lists must be None without an index; got 3"),
    ({"num_probed": 3}, ValueError, "num_probed must be None without an index; got 3"),
    ({"num_found": 9}, ValueError, "num_found must be None without a HashIndex; got 9"),
    ({"index": "ivf", "num_lists": 0}, ValueError, "num_lists must be an integer of at least 1"),
    ({"index": "ivf", "num_lists": 51}, ValueError, "num_lists must be at most num_classes=50"),
    ({"index": "ivf", "num_probed": 8}, ValueError, "num_probed must be at most the number of"),
    ({"seed": -1}, ValueError, "seed must be an integer of at least 0; got -1"),
    ({"names": NAMES[1:]}, ValueError, "names must be num_classes=50 strings; got 49"),
    ({"names": [*NAMES[1:], 3]}, TypeError, "names must be strings; got 3 for class 49"),
    ({"names": "x" * 50}, FileNotFoundError, "names must be a list of strings, or the path of a"),
    (
        {"names": [*NAMES[1:], NAMES[3]]},
        ValueError,
        "names must differ; got 'class 3' for classes 2 a",
    ),
    ({"names": dict.fromkeys(NAMES, 0)}, TypeError, "names must be a list.*; got dict"),
    ({"names": set(NAMES)}, TypeError, "names must be a list of strings.*; got set"),
    ({"names": ["", *NAMES[1:]]}, ValueError, "names must not be empty; got '' for class 0"),
    ({"names": ["\ud800", *NAMES[1:]]}, ValueError, "names must be what UTF-8 can encode; got"),
    ({"names": ["a\nb", *NAMES[1:]]}, ValueError, r"names must be of one line each; got 'a\\nb'"),
    (
        {"input_signature": tf.TensorSpec([], tf.float32)},
        ValueError,
        "inputs must have a batch dimension",
    ),
    ({"input_signature": "x"}, TypeError, "input_signature must be made of tf.TensorSpec"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_and_nothing_is_written(arguments, error, message, tmp_path):
    with pytest.raises(error, match=message):
        tlo.export(dense_model(), tmp_path / "model", **arguments)
    assert not list(tmp_path.iterdir())


def test_bad_models_are_refused_and_nothing_is_written(tmp_path):
    unbuilt = keras.Sequential([tlo.heads.DenseHead(CLASSES)])
    headless = keras.Sequential([keras.Input((4,)), keras.layers.Dense(CLASSES)])
    of_python = keras.Input((WIDTH,))
    called = keras.layers.Lambda(
        lambda x: tf.ensure_shape(tf.numpy_function(np.abs, [x], tf.float32), [None, WIDTH]),
        output_shape=(WIDTH,),
    )(of_python)
    infinite = dense_model()
    infinite.layers[-1].bias.assign(np.full(CLASSES, np.inf))
    for model, error, message in (
        ("model", TypeError, "model must be a keras.Model; got 'model'"),
        (unbuilt, ValueError, "model must be built"),
        (headless, TypeError, "model must end in a head"),
        (
            keras.Model(of_python, tlo.heads.DenseHead(CLASSES)(called)),
            ValueError,
            "model must be made of ops that TensorFlow has in every process; got one with PyFunc",
        ),
        (infinite, ValueError, "b of the head must be finite"),
    ):
        with pytest.raises(error, match=message):
            tlo.export(model, tmp_path / "words" / "1")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("arguments", [{"index": "ivf"}, {"rows": "int8"}])
def test_a_tree_has_no_rows(arguments, tmp_path):
    row = next(row for row in HEADS if row.name == "hierarchical_two_level")
    model = model_of(row.make_head(CLASSES))
    with pytest.raises(ValueError, match="index must be None and rows 'float32' for a Hierarch"):
        tlo.export(model, tmp_path / "tree", **arguments)
    assert not list(tmp_path.iterdir())


def test_nothing_is_overwritten(tmp_path):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "note").write_text("mine")
    (tmp_path / "empty").mkdir()
    for name in ("full", "full/note"):
        with pytest.raises(FileExistsError, match="folder must not be there, or be empty; got"):
            tlo.export(dense_model(), tmp_path / name)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["note"]
    tlo.export(dense_model(), tmp_path / "empty")
    tlo.export(dense_model(), tmp_path / "new" / "words" / "1")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "full", "new"]
    for folder in (tmp_path / "empty", tmp_path / "new" / "words" / "1"):
        assert (folder / "saved_model.pb").exists()


def test_several_workers_are_refused(tmp_path, monkeypatch):
    three = Workers(3)
    model = dense_model()
    with monkeypatch.context() as patch:
        patch.setattr("tfx_largeout.serving.export.current", lambda: three)
        with pytest.raises(RuntimeError, match="export must be called in a single process; got 3"):
            tlo.export(model, tmp_path / "model")
    model.layers[-1].workers = three
    with pytest.raises(RuntimeError, match="export must be called in a single process; got 3"):
        tlo.export(model, tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_recall_needs_examples_and_an_index(tmp_path):
    model = dense_model()
    tlo.export(model, tmp_path / "exact")
    with pytest.raises(ValueError, match="num_probed must be None for a model that was exported"):
        tlo.serving.recall(model, tmp_path / "exact", X, 2)
    with pytest.raises(ValueError, match="data must have at least one example; got none"):
        tlo.serving.recall(model, tmp_path / "exact", X[:0])


def two_inputs(*names):
    """A model of inputs in this order, of widths 3 and 5."""
    inputs = [keras.Input((width,), name=name) for width, name in zip((3, 5), names, strict=True)]
    hidden = keras.layers.Concatenate()(inputs)
    return keras.Model(inputs, tlo.heads.DenseHead(CLASSES)(hidden))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("x", "num_probed"), "inputs must have other names than 'num_probed', which"),
        (("x", "left-hand"), "inputs must have names that arguments may have in Python; got 'left"),
        (("x", "class"), "inputs must have names that arguments may have in Python; got 'class'"),
    ],
)
def test_names_of_inputs_that_no_signature_can_have(names, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        tlo.export(two_inputs(*names), tmp_path / "model", index="ivf")
    assert not list(tmp_path.iterdir())


def test_repeated_names_of_inputs(tmp_path):
    signature = [tf.TensorSpec([None, width], tf.float32, "x") for width in (3, 5)]
    with pytest.raises(ValueError, match="inputs must have different names; got"):
        tlo.export(two_inputs("a", "b"), tmp_path / "model", input_signature=signature)


def test_an_error_while_writing_removes_the_folders_that_were_made(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError("no space")

    monkeypatch.setattr("tfx_largeout.serving.export.os.replace", fail)
    with pytest.raises(OSError, match="no space"):
        tlo.export(dense_model(), tmp_path / "models" / "words" / "1")
    assert not list(tmp_path.iterdir())


def test_a_link_stays_and_its_folder_is_written(tmp_path):
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    tlo.export(dense_model(), tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "disk" / "saved_model.pb").exists()


@keras.saving.register_keras_serializable(package="test")
class Compiled(keras.Model):
    """A model whose call is a tf.function."""

    def __init__(self):
        super().__init__()
        self.head = tlo.heads.DenseHead(CLASSES)

    @tf.function(reduce_retracing=True)
    def call(self, inputs):
        return self.head(inputs)


def test_a_model_that_is_refused_gives_logits_as_before(tmp_path):
    model = Compiled()
    model.build((None, WIDTH))
    model.head.build((None, WIDTH))
    signature = tf.TensorSpec([None, WIDTH], tf.float32)
    with pytest.raises(TypeError, match="model must end in a head"):
        tlo.export(model, tmp_path / "model", input_signature=signature)
    assert model(tf.constant(X)).shape == (len(X), CLASSES)


class Doubled(tlo.heads.DenseHead):
    """A head of other logits."""

    def flat_logits(self, hidden, dtype):
        return 2 * super().flat_logits(hidden, dtype)


def test_a_head_with_logits_of_its_own_is_refused(tmp_path):
    with pytest.raises(TypeError, match=r"head must have the logits W h \+ b for export; got one"):
        tlo.export(model_of(Doubled(CLASSES)), tmp_path / "model")
    assert not list(tmp_path.iterdir())


def test_recall_pairs_inputs_by_name(tmp_path):
    model = two_inputs("b", "a")
    tlo.export(model, tmp_path / "model")
    x = {"b": X[:, :3], "a": X[:, 3:]}
    assert tlo.serving.recall(model, tmp_path / "model", x) == 1
    data = tf.data.Dataset.from_tensor_slices(((x["b"], x["a"]), np.zeros(len(X)))).batch(4)
    assert tlo.serving.recall(model, tmp_path / "model", data) == 1
    with pytest.raises(ValueError, match="data must have the inputs"):
        tlo.serving.recall(model, tmp_path / "model", {"b": X[:, :3]})


def test_recall_of_empty_batches_or_another_folder(tmp_path):
    model = dense_model()
    tlo.export(model, tmp_path / "model")
    empty = tf.data.Dataset.from_tensors(X[:0])
    with pytest.raises(ValueError, match="data must have at least one example; got none"):
        tlo.serving.recall(model, tmp_path / "model", empty)
    tf.saved_model.save(tf.Module(), str(tmp_path / "other"))
    with pytest.raises(ValueError, match="folder must be of a model that tlo"):
        tlo.serving.recall(model, tmp_path / "other", X)


@pytest.mark.thorough
def test_the_benchmark_needs_more_examples_than_a_request_has(tmp_path):
    rows = np.zeros((70, 4), np.float32)
    np.savez(tmp_path / "few.npz", w=rows, b=rows[:, 0], h=rows[:64])
    script = Path(__file__).parents[2] / "benchmarks" / "serving.py"
    done = run_child(tmp_path, str(script), "--weights", str(tmp_path / "few.npz"))
    assert done.returncode == 1
    assert "h must have more than 64 rows, the most of a request; got 64" in done.stderr
