# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gc
import re
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf
from compare.own_models import CLASSES, WIDTH, X, Y, make_model

import tfx_largeout as tlo
from tfx_largeout.compare import compare_heads as module
from tfx_largeout.compare.own_data import own_data

pytestmark = pytest.mark.usefixtures("no_picture")
SPARSE = keras.losses.SparseCategoricalCrossentropy
SHORT = {"epochs": 1, "evaluations": 1}


def test_the_default_heads_train_and_leave_the_model_alone(tmp_path, monkeypatch):
    built = []
    with_head = module._with_head

    def kept(*arguments):
        model = with_head(*arguments)
        built.append(weakref.ref(model.layers[-1]))
        return model

    monkeypatch.setattr(module, "_with_head", kept)
    model = make_model(run_eagerly=False)
    before = [weight.copy() for weight in model.get_weights()]
    comparison = tlo.compare_heads(model, (X, Y), (X, Y), output=tmp_path / "run", **SHORT)
    names = ["dense", "SampledHead", "ExactSoftmaxHead", "TFSampledSoftmaxHead"]
    assert [(row.head, row.status) for row in comparison.rows] == [(n, "done") for n in names]
    assert comparison.rows[1].speed_up is not None
    for weight, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, old)
    assert model.optimizer.iterations == 0
    gc.collect()
    assert [head() for head in built] == [None] * 4, "what was compared stays in memory"


def test_matrices_of_scipy(tmp_path):
    sparse = pytest.importorskip("scipy.sparse")
    rows = np.arange(len(Y))
    x = sparse.csr_matrix(np.maximum(X, 0))
    y = sparse.csr_matrix((np.ones(len(Y)), (rows, Y)), [len(Y), CLASSES])
    inputs = keras.Input([WIDTH], sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES)(tlo.layers.SparseDense(4)(inputs)))
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)

    def head(num_classes):
        return tlo.heads.DenseHead(num_classes), tlo.losses.SoftmaxCrossentropy()

    results = []
    for number, labels in enumerate((y, Y)):
        keras.utils.set_random_seed(0)
        data = (x, labels)
        found = tlo.compare_heads(
            model, data, data, {"h": head}, output=tmp_path / str(number), **SHORT
        )
        (row,) = found.rows
        assert row.status == "done"
        results.append([row.exact_loss, row.precision_at_5])
    np.testing.assert_allclose(*results, rtol=1e-4)


def test_a_copy_has_the_trunk_and_an_optimizer_of_its_own():
    inputs = keras.Input([WIDTH])
    shared = keras.layers.Dense(WIDTH)
    inner = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(CLASSES, name="out")])
    model = keras.Model(inputs, keras.layers.Softmax()(inner(shared(shared(inputs)) + 1.0)))
    model.compile(keras.optimizers.SGD(0.25, momentum=0.5), "sparse_categorical_crossentropy")
    model.run_eagerly = True
    model.fit(X, Y, verbose=0)

    def make(seed):
        return tlo.heads.DenseHead(CLASSES, name="new"), tlo.losses.SoftmaxCrossentropy()

    copy = module._with_head(model, make, 0)
    old, new = (m.layers[1] for m in (model, copy))
    assert old is shared and new is not shared and new.name == shared.name
    np.testing.assert_array_equal(*(layer.get_weights()[0] for layer in (old, new)))
    assert (copy.optimizer.get_config(), int(copy.optimizer.iterations)) == (
        model.optimizer.get_config(),
        0,
    )
    copy.fit(X, Y, verbose=0)
    assert model.get_layer(inner.name).layers[-1].name == "out"
    dense = module._with_head(model, None, 0)
    np.testing.assert_array_equal(dense.layers[1].get_weights()[0], old.get_weights()[0])
    assert not np.allclose(dense.get_weights()[-2], model.get_weights()[-2])
    assert dense.predict(X, verbose=0).sum() == pytest.approx(len(X), rel=1e-4)


def test_heads_by_name_and_by_function(tmp_path):
    """The function of one returns something else: the others are trained."""
    heads = {
        "mine": lambda num_classes: tlo.heads.DenseHead(num_classes),
        "with_loss": lambda num_classes: (
            tlo.heads.HierarchicalSoftmaxHead(num_classes, tlo.optimizers.RowAdam(0.1)),
            tlo.losses.NegativeLogLikelihood(),
        ),
        "of_table": "factored_zloss",
        "as_it_is": "dense",
        "by_default": "SampledHead",
        "wrong": lambda num_classes: num_classes,
        "smaller": lambda num_classes: tlo.heads.DenseHead(num_classes - 1),
    }
    comparison = tlo.compare_heads(
        make_model(), (X, Y), (X, Y), heads, batch_size=96, output=tmp_path, **SHORT
    )
    *good, wrong, smaller = comparison.rows
    assert [row.status for row in good] == ["done"] * 5
    assert "'wrong' must return (head, loss), or a head; got 40" in wrong.error
    assert "as many classes as the Dense layer that it replaces, 40; got num" in smaller.error
    assert wrong.precision_at_1 is None  # of an untrained model
    options = {result.head: result.options for result in comparison.results}
    assert options["of_table"]["head_optimizer"] == "RowSGD"
    assert options["by_default"]["num_sampled"] == 40


@pytest.mark.parametrize("part", ["train", "validation"])
@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (
            np.full(len(Y), 40),
            r"labels: each id must be at least 0 and less than 40.*got id \[40\]",
        ),
        (np.eye(40)[Y], r"labels must be class ids; got 40 columns of zeros and ones: np\.argmax"),
    ],
)
def test_labels_that_are_no_ids_are_refused_at_once(part, labels, message, tmp_path):
    data = {"train": (X, Y), "validation": (X, Y), part: (X, labels)}
    with pytest.raises(ValueError, match=f"{part}: {message}"):
        tlo.compare_heads(make_model(), **data, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("ignored", [0, -100])
def test_all_heads_ignore_the_class_that_the_loss_ignores(ignored, tmp_path):
    model = make_model(loss=SPARSE(ignore_class=ignored))
    data = X, np.where(Y % 3 == 0, ignored, Y)
    heads = ["dense", "SampledHead", "ExactSoftmaxHead", "TFSampledSoftmaxHead", "tf_nce"]
    heads = {**{name: name for name in heads}, "own": tlo.heads.DenseHead}
    seen = {}

    def kept(models, train, validation, settings, output, overwrite):
        seen.update({name: build(0) for name, build in models.items()})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "compare_built", kept)
        tlo.compare_heads(model, data, data, heads, output=tmp_path / "run", **SHORT)
    assert {name: each.loss.ignore_class for name, each in seen.items()} == dict.fromkeys(
        heads, ignored
    )
    bias = seen["SampledHead"].layers[-1].bias.numpy()
    assert bias[0] == bias.min()

    def other(num_classes):
        return tlo.heads.DenseHead(num_classes), tlo.losses.SoftmaxCrossentropy(ignore_class=5)

    found = tlo.compare_heads(model, data, data, {"o": other}, output=tmp_path / "o", **SHORT)
    message = f"have the ignore_class of the model's loss, .*, {ignored}; got 5"
    assert re.search(message, found.rows[0].error)


def test_default_heads_begin_at_the_frequencies_of_the_classes():
    counts = np.bincount(Y, minlength=40)
    for name, make in module._default_makers(make_model(), 40, counts).items():
        if make is not None:
            head = make(0)[0]
            head.build((None, WIDTH))
            bias = keras.ops.convert_to_numpy(head.bias)
            assert np.corrcoef(np.exp(bias), counts)[0, 1] > 0.99, name


@pytest.mark.parametrize(
    ("heads", "error", "message"),
    [
        (
            ["softmax"],
            ValueError,
            r"one of \['dense', .*must be one of full_softmax, .*; got 'softm",
        ),
        ([], ValueError, "heads must have at least one"),
        ("dense", TypeError, "heads must be a dict, or a list of names; got 'dense'"),
        ({"a": tlo.heads.DenseHead(40)}, TypeError, "a head serves one model alone"),
        ({"": "dense"}, ValueError, "names of heads must be text"),
    ],
)
def test_wrong_heads_are_refused(heads, error, message, tmp_path):
    with pytest.raises(error, match=message):
        tlo.compare_heads(make_model(), (X, Y), (X, Y), heads, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_model_without_a_dense_layer_at_its_end_is_refused(tmp_path):
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(3), keras.layers.ReLU()])
    with pytest.raises(ValueError, match="model must be compiled"):
        tlo.compare_heads(model, (X, Y), (X, Y))
    model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"model must end in a keras\.layers\.Dense"):
        tlo.compare_heads(model, (X, Y), (X, Y))


@pytest.mark.parametrize(
    ("optimizer", "kind", "rate"),
    [
        (keras.optimizers.SGD(0.5), tlo.optimizers.RowSGD, 0.5),
        (keras.optimizers.Adagrad(0.25), tlo.optimizers.RowAdagrad, 0.25),
        (keras.optimizers.AdamW(0.125), tlo.optimizers.RowAdam, 0.125),
    ],
)
def test_the_rows_of_default_heads_have_an_optimizer_like_the_models(optimizer, kind, rate):
    own = module._row_optimizer(optimizer)
    assert type(own) is kind
    assert float(own.get_config()["learning_rate"]) == rate


@pytest.mark.parametrize(
    ("labels", "counts"),
    [
        ([[0, 3, -1, -1], [2, -1, -1, -1]], [1, 0, 1, 1]),  # as many columns as classes
        ([[0, 1, 0, 0], [0, 1, 0, 0]], [0, 2, 0, 0]),
        ([3, 3, 0, 1], [1, 1, 0, 2]),
    ],
)
def test_labels_are_counted_as_what_they_are(labels, counts):
    data = own_data((X, np.array(labels)), (X, Y), None)[0]
    np.testing.assert_array_equal(data.label_counts(4), counts)


def test_the_model_as_it_is_may_have_other_labels(tmp_path):
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(40, "softmax")])
    model.compile("sgd", "categorical_crossentropy", run_eagerly=True)
    data = (X, np.eye(40)[Y])
    done = tlo.compare_heads(model, data, data, ["dense"], output=tmp_path / "run", **SHORT)
    assert done.rows[0].status == "done"
    for given in (data, tf.data.Dataset.from_tensor_slices(data).batch(8)):
        with pytest.raises(ValueError, match=r"train: labels must be class ids; got 40 columns"):
            tlo.compare_heads(model, given, (X, Y), ["SampledHead"], output=tmp_path / "no")
