# SPDX-License-Identifier: Apache-2.0
"""Keras's metrics in `compile`: correct with every head, from the exact pass."""

from __future__ import annotations

import warnings
from inspect import signature

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS, first_of_a_class, kind_of
from oracles import softmax as oracle
from variants import cases_of, thorough

import tfx_largeout as tlo

C, D, B = 50, 8, 64
ROWS = {row.name: row for row in HEADS}
every_class = cases_of("row", list(filter(first_of_a_class, HEADS)))
graph_and_eager = pytest.mark.parametrize("run_eagerly", [False, *thorough(True)])
NO_IGNORE_CLASS = (
    "ignore_class" not in signature(keras.metrics.SparseCategoricalCrossentropy).parameters
)
NAMES = ["accuracy", "sparse_categorical_accuracy", "top_3", "crossentropy", "top_k_function"]


def keras_metrics():
    return [
        "accuracy",
        "sparse_categorical_accuracy",
        keras.metrics.SparseTopKCategoricalAccuracy(3, name="top_3"),
        keras.metrics.SparseCategoricalCrossentropy(from_logits=True, name="crossentropy"),
        keras.metrics.MeanMetricWrapper(
            keras.metrics.sparse_top_k_categorical_accuracy, name="top_k_function"
        ),
    ]


def expected(scores, labels, weights=None):
    """The metrics of logits [N, C] and labels [N], -1 for none, in NumPy."""
    weights = (np.ones(len(labels)) if weights is None else np.float64(weights)) * (labels >= 0)
    rows = np.arange(len(labels))
    rank = (scores > scores[rows, labels][:, np.newaxis]).sum(axis=1)
    loss = -oracle.log_softmax(np.float64(scores))[rows, labels]
    values = [rank < 1, rank < 1, rank < 3, loss, rank < 5]
    return [np.average(value, weights=weights) for value in values]


def data(seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(B, D)).astype("float32"), rng.integers(0, C, B)


def model_of(row, **arguments):
    inputs = keras.Input((D,))
    model = keras.Model(inputs, row.make_head(C)(keras.layers.Dense(D, name="trunk")(inputs)))
    model.compile(row.make_optimizer(), loss=row.make_loss(), **arguments)
    return model


def scores_of(row, model, x):
    hidden = model.get_layer("trunk")(x).numpy()
    return row.logits(hidden, *row.weights(model.layers[-1]))


def values_of(logs):
    return [logs[name] for name in NAMES]


@graph_and_eager
@every_class
def test_evaluate_and_fit_give_what_all_logits_give(row, run_eagerly):
    model = model_of(row, metrics=keras_metrics(), run_eagerly=run_eagerly)
    (x, labels), wrong = data(), lambda: warnings.catch_warnings(action="error")
    before = expected(scores_of(row, model, x), labels)
    with wrong():
        evaluated = model.evaluate(x, labels, verbose=0, batch_size=24, return_dict=True)
        np.testing.assert_allclose(values_of(evaluated), before, rtol=1e-4, atol=1e-6)
        # For a step: by the weights before it.
        trained = model.fit(x, labels, batch_size=B, verbose=0).history
    np.testing.assert_allclose(np.squeeze(values_of(trained)), before, rtol=1e-4, atol=1e-6)
    after = expected(scores_of(row, model, x), labels)
    evaluated = model.evaluate(x, labels, verbose=0, return_dict=True)
    np.testing.assert_allclose(values_of(evaluated), after, rtol=1e-4, atol=1e-6)
    assert abs(after[3] - before[3]) > 1e-3


@graph_and_eager
@every_class
def test_padded_labels_and_weights(row, run_eagerly):
    model = model_of(
        row, metrics=keras_metrics(), weighted_metrics=["accuracy"], run_eagerly=run_eagerly
    )
    x, labels = data()
    padded = np.full([B, 4], -1)
    padded[np.arange(B), np.arange(B) % 4] = labels
    padded[:5] = -1  # no label: these count for nothing
    weights = np.linspace(0, 2, B).astype("float32")
    weights[:5] = 0  # as the loss wants it
    scores, labels = scores_of(row, model, x), np.where(np.arange(B) < 5, -1, labels)
    for logs in (
        model.evaluate(x, padded, sample_weight=weights, verbose=0, return_dict=True),
        model.train_on_batch(x, padded, sample_weight=weights, return_dict=True),
    ):
        np.testing.assert_allclose(values_of(logs), expected(scores, labels), rtol=1e-4, atol=1e-6)
        weighted = expected(scores, labels, weights)[0]
        np.testing.assert_allclose(logs["weighted_accuracy"], weighted, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("metric", ["accuracy", "acc", "top_k_categorical_accuracy"])
@every_class
def test_several_labels_are_refused(row, metric):
    model = model_of(row, metrics=[metric])
    x, labels = data()
    several = np.stack([labels, (labels + 1) % C], axis=1)
    message = f"(?s)metric .*{metric}.*: each example must have at most one label.*PrecisionAtK"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.evaluate(x, several, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        model.fit(x, several, verbose=0)
    several[:, 1] = -1
    assert 0 <= model.evaluate(x, several, verbose=0)[1] <= 1


@graph_and_eager
@pytest.mark.parametrize("dtype", ["float32", *thorough("int64")])
def test_one_hot_labels_of_a_loss_of_keras(dtype, run_eagerly):
    inputs, (x, labels) = keras.Input((D,)), data()
    head = tlo.heads.DenseHead(C)
    model = keras.Model(inputs, head(inputs))
    plain = keras.Sequential([keras.Input((D,)), head.to_dense()])
    one_hot = np.eye(C, dtype=dtype)[labels]
    for each in (model, plain):
        loss = keras.losses.CategoricalCrossentropy(from_logits=True)
        metrics = ["accuracy", "top_k_categorical_accuracy"]
        each.compile("sgd", loss, metrics=metrics, run_eagerly=run_eagerly)
    for _ in range(2):
        got, wanted = (each.train_on_batch(x, one_hot) for each in (model, plain))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)
        got, wanted = (each.evaluate(x, one_hot, verbose=0) for each in (model, plain))
        np.testing.assert_allclose(got, wanted, rtol=1e-5)


def test_masked_positions_of_a_sequence_are_left_out():
    rng = np.random.default_rng(3)
    words = rng.integers(1, 20, [6, 5])
    words[0, 2:], words[4, 1:] = 0, 0
    labels = rng.integers(0, C, [6, 5])
    inputs = keras.Input([5], dtype="int64")
    hidden = keras.layers.Embedding(20, D, "normal", mask_zero=True, name="words")(inputs)
    model = keras.Model(inputs, tlo.heads.DenseHead(C)(hidden))
    model.compile("sgd", loss=tlo.losses.SoftmaxCrossentropy(), metrics=keras_metrics())
    kernel, bias = model.layers[-1].materialize()
    table = keras.ops.convert_to_numpy(model.get_layer("words").embeddings)
    scores = oracle.logits(table[words.ravel()], kernel, bias)
    wanted = expected(scores, labels.ravel(), words.ravel() > 0)
    for run in (model.evaluate, lambda *a, **kw: model.train_on_batch(*a, return_dict=True)):
        logs = run(words, labels, verbose=0, return_dict=True)
        np.testing.assert_allclose(values_of(logs), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.each_of("row", kind_of)
@every_class
def test_no_step_computes_all_logits(row, monkeypatch):
    computed = []

    def noted(self, hidden, dtype):
        logits = original(self, hidden, dtype)
        ask = lambda x: computed.append(len(x)) or x  # noqa: E731
        return tf.ensure_shape(tf.numpy_function(ask, [logits], logits.dtype, False), logits.shape)

    metrics = [*keras_metrics(), tlo.metrics.PrecisionAtK(1, during_training=True)]
    model = model_of(row, metrics=metrics, weighted_metrics=["accuracy", tlo.metrics.ExactLoss()])
    kind = type(model.layers[-1])
    original = kind.flat_logits
    monkeypatch.setattr(kind, "flat_logits", noted)
    x, labels = data()
    model.fit(x, labels, validation_data=(x, labels), batch_size=32, verbose=0)
    assert computed == []
    model.predict(x, verbose=0)
    assert computed == [32, 32]


@pytest.mark.parametrize("during_training", [True, False])
@graph_and_eager
@every_class
def test_own_metrics_of_a_step_are_those_before_it(row, run_eagerly, during_training):
    metrics = [tlo.metrics.PrecisionAtK(1, during_training), tlo.metrics.ExactLoss(during_training)]
    model = model_of(row, metrics=metrics, run_eagerly=run_eagerly)
    x, labels = data()
    wanted = np.array(expected(scores_of(row, model, x), labels))[[0, 3]]
    logs = model.train_on_batch(x, labels, return_dict=True)
    assert ("exact_loss" in logs) is during_training
    if during_training:
        got = [logs["precision_at_1"], logs["exact_loss"]]
        np.testing.assert_allclose(got, wanted, rtol=1e-4, atol=1e-6)


def test_a_loss_of_keras_and_any_of_its_metrics_go_on_as_in_keras():
    inputs, (x, labels) = keras.Input((D,)), data()
    head = tlo.heads.DenseHead(C)
    model = keras.Model(inputs, head(inputs))
    plain = keras.Sequential([keras.Input((D,)), head.to_dense()])
    for each in (model, plain):
        metrics = ["accuracy", "sparse_top_k_categorical_accuracy"]
        own = [tlo.metrics.ExactLoss(True)] if each is model else []
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        each.compile("sgd", loss=loss, metrics=metrics + own)
    for step in ("evaluate", "train_on_batch", "evaluate"):
        kwargs = {"verbose": 0} if step == "evaluate" else {}
        got, wanted = (
            getattr(each, step)(x, labels, return_dict=True, **kwargs) for each in (model, plain)
        )
        np.testing.assert_allclose(got.pop("exact_loss"), wanted["loss"], rtol=1e-5)
        assert got.keys() == wanted.keys()
        np.testing.assert_allclose(list(got.values()), list(wanted.values()), rtol=1e-5)


class OnlyShapes(keras.metrics.Metric):
    """A custom metric, which reads the logits."""

    def __init__(self):
        super().__init__(name="recall_of_mine")
        self.total = self.add_variable((), "zeros")

    def update_state(self, y_true, y_pred, sample_weight=None):
        self.total.assign_add(tf.reduce_sum(y_pred))

    def result(self):
        return self.total


@pytest.mark.parametrize(
    ("metric", "name", "own"),
    [
        ("mse", "mse", "PrecisionAtK or RecallAtK or NDCG"),
        (OnlyShapes, "recall_of_mine", "RecallAtK which|RecallAtK in"),
        (
            lambda: keras.metrics.CategoricalCrossentropy(from_logits=True, label_smoothing=0.1),
            "categorical_crossentropy",
            "ExactLoss",
        ),
    ],
    ids=["mse", "own", "smoothed"],
)
def test_other_metrics_are_warned_of_once_by_name(metric, name, own):
    row = ROWS["sampled"]
    model = model_of(row, metrics=[metric if isinstance(metric, str) else metric()])
    x, labels = data()
    ids = labels[:, np.newaxis] if name != "categorical_crossentropy" else labels
    with pytest.warns(
        RuntimeWarning, match=f"metric '{name}' reads all 50 logits.*({own})"
    ) as seen:
        try:
            model.evaluate(x, ids, verbose=0)
        except ValueError:
            assert name == "categorical_crossentropy"  # Keras's own words about shapes
        else:
            model.fit(x, ids, verbose=0)
            scores = model.predict(x, verbose=0)
            if name == "recall_of_mine":
                got = model.evaluate(x, ids, verbose=0)[1]
                np.testing.assert_allclose(got, scores.sum(), rtol=1e-3)
    assert len([w for w in seen if "reads all" in str(w.message)]) == 1


def test_a_crossentropy_that_takes_logits_for_probabilities_is_refused():
    row = ROWS["sampled"]
    model = model_of(row, metrics=["sparse_categorical_crossentropy"])
    with pytest.raises(ValueError, match=r"must have from_logits=True.*ExactLoss"):
        model.evaluate(*data(), verbose=0)


@pytest.mark.skipif(NO_IGNORE_CLASS, reason="this Keras's metric has no ignore_class")
@pytest.mark.parametrize("ignored", [-1, 7])
def test_ignore_class(ignored):
    row = ROWS["dense"]
    metric = keras.metrics.SparseCategoricalCrossentropy(
        from_logits=True, ignore_class=ignored, name="loss_of_others"
    )
    model = model_of(row, metrics=[metric])
    x, labels = data()
    labels[:20] = 7
    scores = scores_of(row, model, x)
    kept = np.where(labels == ignored, -1, labels)
    got = model.evaluate(x, labels, verbose=0)[1]
    np.testing.assert_allclose(got, expected(scores, kept)[3], rtol=1e-5)


@pytest.mark.parametrize(
    ("dtype", "shape", "run_eagerly"),
    [("int64", (B,), False), ("float64", (B, 1), False), ("int32", (B,), True)],
)
def test_beside_a_keras_loss_training_and_evaluation_count_the_same(dtype, shape, run_eagerly):
    row = ROWS["dense"]
    model, (x, labels), weights = model_of(row), data(), np.linspace(0, 2, B)
    labels[:20] = -1
    wanted = expected(scores_of(row, model, x), labels, weights)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=-1)
    arguments = {"weighted_metrics": keras_metrics(), "run_eagerly": run_eagerly}
    model.compile(keras.optimizers.SGD(0.0), loss, **arguments)
    given = labels.astype(dtype).reshape(shape)
    trained = model.train_on_batch(x, given, sample_weight=weights, return_dict=True)
    np.testing.assert_allclose(values_of(trained), wanted, rtol=1e-5)
    labels = labels.reshape(shape)
    evaluated = model.evaluate(x, labels, B, 0, weights, return_dict=True)
    np.testing.assert_allclose(values_of(evaluated), wanted, rtol=1e-5)


@pytest.mark.skipif(NO_IGNORE_CLASS, reason="this Keras's metric has no ignore_class")
@pytest.mark.all_cases
@pytest.mark.parametrize(("ignored", "dtype"), [(-1, "int64"), (255, "uint8")])
def test_beside_a_keras_loss_what_both_ignore_may_be_any_number(ignored, dtype):
    row = ROWS["dense"]
    model, (x, labels) = model_of(row), data()
    wanted = expected(scores_of(row, model, x[20:]), labels[20:])[3]
    x[:20], labels[:20] = np.nan, ignored
    options = {"from_logits": True, "ignore_class": ignored}
    loss = keras.losses.SparseCategoricalCrossentropy(**options)
    metric = keras.metrics.SparseCategoricalCrossentropy(**options, name="ce")
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=[metric])
    trained = model.train_on_batch(x, labels.astype(dtype), return_dict=True)
    np.testing.assert_allclose(trained["ce"], wanted, rtol=1e-5)


class Scaled(keras.losses.Loss):
    """A loss around one of Keras."""

    def __init__(self, **options):
        super().__init__()
        self.options, self.ignore_class = options, options["ignore_class"]

    def call(self, y_true, y_pred):
        return keras.losses.sparse_categorical_crossentropy(y_true, 2 * y_pred, **self.options)


IGNORING = {
    "loss": keras.losses.SparseCategoricalCrossentropy,
    "dict": lambda **kw: {"head": keras.losses.SparseCategoricalCrossentropy(**kw)},
    "list": lambda **kw: [keras.losses.SparseCategoricalCrossentropy(**kw)],
    "own": Scaled,
}


@graph_and_eager
@pytest.mark.parametrize("form", IGNORING)
@pytest.mark.parametrize("ignored", [-100, 0])
def test_metrics_ignore_the_class_that_a_keras_loss_ignores(ignored, form, run_eagerly):
    (x, labels), weights = data(), np.linspace(0, 2, B)
    labels[:20] = ignored
    given = (x, labels, weights)
    kept = np.where(labels == ignored, -1, labels)
    inputs = keras.Input((D,))
    model = keras.Model(inputs, tlo.heads.DenseHead(C, name="head")(inputs))
    wanted = expected(model.predict(x, verbose=0), kept, weights)
    loss = IGNORING[form](from_logits=True, ignore_class=ignored)
    own = [tlo.metrics.PrecisionAtK(1, True), tlo.metrics.ExactLoss(True)]
    metrics = {"weighted_metrics": [*keras_metrics(), *own], "run_eagerly": run_eagerly}
    model.compile(keras.optimizers.SGD(0.0), loss, **metrics)
    of_fit = {"batch_size": B, "validation_data": given, "verbose": 0}
    history = model.fit(x, labels, sample_weight=weights, **of_fit).history
    evaluated = model.evaluate(x, labels, B, 0, weights, return_dict=True)
    for logs, prefix in ((history, ""), (history, "val_"), (evaluated, "")):
        names = [*NAMES, "precision_at_1", "exact_loss"]
        got = np.squeeze([logs[prefix + name] for name in names])
        np.testing.assert_allclose(got, [*wanted, wanted[0], wanted[3]], rtol=1e-5)


@pytest.mark.parametrize("losses", [list, lambda losses: dict(zip("ba", losses, strict=True))])
def test_each_output_has_metrics_that_ignore_the_class_of_its_own_loss(losses):
    x, labels = data()
    labels[:20] = 0
    inputs = keras.Input((D,))
    model = keras.Model(inputs, [tlo.heads.DenseHead(C, name=name)(inputs) for name in "ba"])
    scores = model.predict(x, verbose=0)
    ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    loss = losses([ignoring, tlo.losses.SoftmaxCrossentropy()])
    model.compile(keras.optimizers.SGD(0.0), loss, metrics=[["accuracy"]] * 2)
    for step in (model.train_on_batch, model.test_on_batch):
        logs = step(x, [labels, labels], return_dict=True)
        wanted = expected(scores[0][20:], labels[20:])[0], expected(scores[1], labels)[0]
        np.testing.assert_allclose([logs["b_accuracy"], logs["a_accuracy"]], wanted, rtol=1e-5)


def test_other_outputs_of_the_model_keep_their_metrics():
    inputs, (x, labels) = keras.Input((D,)), data()
    number = keras.layers.Dense(1, name="number")(inputs)
    model = keras.Model(inputs, [tlo.heads.DenseHead(C, name="head")(inputs), number])
    losses = {"head": tlo.losses.SoftmaxCrossentropy(), "number": "mse"}
    model.compile("sgd", losses, metrics={"head": "accuracy", "number": ["mae", "accuracy"]})
    targets = np.float32(x[:, :1] > 0)
    wanted = np.abs(model.predict(x, verbose=0)[1] - targets).mean()
    with warnings.catch_warnings(action="error"):
        logs = model.evaluate(x, [labels, targets], verbose=0, return_dict=True)
    np.testing.assert_allclose(logs["number_mae"], wanted, rtol=1e-5)
    kernel, bias = model.get_layer("head").materialize()
    accuracy = expected(oracle.logits(x, kernel, bias), labels)[0]
    np.testing.assert_allclose(logs["head_accuracy"], accuracy, rtol=1e-5)


def test_callbacks_files_and_the_metric_itself(tmp_path):
    row = ROWS["sampled"]
    metric = keras.metrics.SparseCategoricalAccuracy(name="right")
    model = model_of(row, metrics=[metric, "accuracy"])
    x, labels = data()
    stop = keras.callbacks.EarlyStopping("val_accuracy", patience=9)  # it finds out: upwards
    model.fit(x, labels, validation_data=(x, labels), callbacks=[stop], verbose=0)
    assert metric in model.metrics[1].metrics
    logs = model.evaluate(x, labels, verbose=0, return_dict=True)
    assert float(metric.result()) == pytest.approx(logs["right"])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.evaluate(x, labels, verbose=0, return_dict=True) == pytest.approx(logs)
    metric.reset_state()
    metric.update_state([1, 2], [[0.1, 0.9, 0], [0.5, 0.3, 0.2]])  # probabilities of no head
    assert float(metric.result()) == 0.5


@pytest.mark.parametrize("many", [True, False])
def test_a_pass_over_all_classes_in_each_step_is_warned_of_once(many):
    classes = 10_000 if many else 9_999
    sampler, rows = tlo.samplers.Uniform(5), tlo.optimizers.RowSGD(0.1)
    heads = {
        "sampled": tlo.heads.SampledHead(classes, sampler, rows),
        "exact": tlo.heads.ExactSoftmaxHead(classes, tlo.optimizers.RowSGD(0.1)),
    }
    own = {"sampled": tlo.losses.ComplementarySum(), "exact": tlo.losses.SoftmaxCrossentropy()}
    x, y = np.ones([4, 2], "float32"), np.arange(4)
    for name, head in heads.items():
        model = keras.Sequential([keras.Input([2]), head])
        metrics = ["accuracy", tlo.metrics.PrecisionAtK(1)]
        model.compile("sgd", own[name], metrics=metrics)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", RuntimeWarning)
            model.evaluate(x, y, verbose=0)
            assert not caught
            model.fit(x, y, epochs=2, verbose=0)
            model.fit(x, y[:, None], verbose=0)  # of another rank
        told = [str(each.message) for each in caught]
        assert len(told) == (many and name == "sampled")
        assert all("metric 'accuracy' reads all 10,000 classes in each" in each for each in told)
