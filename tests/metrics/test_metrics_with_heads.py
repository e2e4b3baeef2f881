# SPDX-License-Identifier: Apache-2.0
"""Metrics on the output of a head, alone and in fit, evaluate and saved models."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from metrics.metrics_table import CASE_OF_EACH_CLASS, NUM_CLASSES, random_batch

from tfx_largeout import metrics
from tfx_largeout.heads import DenseHead
from tfx_largeout.heads.base import HeadOutput
from tfx_largeout.losses import SoftmaxCrossentropy
from tfx_largeout.ops import class_rows
from tfx_largeout.statistics import SoftmaxStatistics

WIDTH = 6
BATCH = 8
eager_and_graph = pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])


@pytest.fixture
def passes(monkeypatch):
    """Counts exact passes: those made or, in a graph, those traced."""
    count = []

    def counted(*args, **kwargs):
        count.append(1)
        return streamed_logits(*args, **kwargs)

    streamed_logits = class_rows.streamed_logits
    monkeypatch.setattr(class_rows, "streamed_logits", counted)
    return count


def make_metrics(**kwargs) -> list[keras.metrics.Metric]:
    return [case.make(**kwargs) for case in CASE_OF_EACH_CLASS]


def make_model(metrics=None, head=None, **compile_arguments) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((WIDTH,)),
            keras.layers.Dense(WIDTH, activation="tanh"),
            head or DenseHead(NUM_CLASSES, kernel_initializer="random_normal"),
        ]
    )
    model.compile("sgd", loss=SoftmaxCrossentropy(), metrics=metrics, **compile_arguments)
    return model


def make_data(num_examples: int = 3 * BATCH):
    x = np.random.default_rng(1).normal(size=(num_examples, WIDTH)).astype("float32")
    _, labels = random_batch(2, num_examples)  # some rows are empty
    return x, labels


def assert_all_as_defined(results, scores, labels, weights=None, prefix=""):
    for case in CASE_OF_EACH_CLASS:
        expected = case.expected(np.asarray(scores, np.float64), labels, weights)
        np.testing.assert_allclose(
            float(results[prefix + case.name]), expected, rtol=1e-5, err_msg=case.name
        )


def test_a_called_head(passes):
    x, labels = make_data()
    y_pred = DenseHead(NUM_CLASSES)(x)
    y_true = tf.constant(labels)  # one tensor; an array may change between two metrics
    results = {metric.name: metric(y_true, y_pred) for metric in make_metrics()}
    assert_all_as_defined(results, y_pred.numpy(), labels)
    assert len(passes) == 1


@eager_and_graph
def test_evaluate_makes_one_pass_a_batch(run_eagerly, passes):
    x, labels = make_data()
    model = make_model(make_metrics(), run_eagerly=run_eagerly)
    results = model.evaluate(x, labels, batch_size=BATCH, verbose=0, return_dict=True)
    assert len(passes) == (3 if run_eagerly else 1)
    assert_all_as_defined(results, model.predict(x, verbose=0), labels)


@eager_and_graph
def test_fit_makes_no_pass_and_validates(run_eagerly, passes):
    x, labels = make_data()
    model = make_model(make_metrics(), run_eagerly=run_eagerly)
    history = model.fit(x, labels, batch_size=BATCH, epochs=2, verbose=0).history
    assert len(passes) == 0
    for case in CASE_OF_EACH_CLASS:
        assert case.name not in history
    history = model.fit(x, labels, batch_size=BATCH, verbose=0, validation_data=(x, labels)).history
    last = {name: values[-1] for name, values in history.items()}
    assert_all_as_defined(last, model.predict(x, verbose=0), labels, prefix="val_")


class OwnSteps(keras.Model):
    """A subclassed model with a custom metric and training step."""

    def __init__(self):
        super().__init__()
        self.head = DenseHead(NUM_CLASSES)
        self.own_metric = metrics.RecallAtK(2, name="own")

    def call(self, x):
        return self.head(x)

    def compute_metrics(self, x, y, y_pred, sample_weight=None):
        self.own_metric.update_state(y, y_pred)
        return super().compute_metrics(x, y, y_pred, sample_weight)

    def train_step(self, data):
        x, y, _ = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            y_pred = self(x)
            loss = self.compute_loss(x, y, y_pred)
        weights = self.trainable_variables
        self.optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))
        return self.compute_metrics(x, y, y_pred)


@eager_and_graph
def test_own_steps_and_own_metrics_log_nothing_that_was_not_counted(run_eagerly):
    x, labels = make_data()
    model = OwnSteps()
    lists = {"metrics": [metrics.PrecisionAtK(1)], "weighted_metrics": make_metrics()}
    model.compile("sgd", SoftmaxCrossentropy(), run_eagerly=run_eagerly, **lists)
    history = model.fit(
        x, labels, batch_size=BATCH, epochs=2, verbose=0, validation_data=(x, labels)
    ).history
    assert {name for name in history if not name.startswith("val_")} == {"loss"}
    assert {"val_precision_at_1", "val_own"} < set(history)
    assert np.isfinite(list(history.values())).all()
    if keras.__version__ >= "3.15":  # before, it asks each metric
        assert list(model.train_on_batch(x, labels, return_dict=True)) == ["loss"]


@eager_and_graph
def test_after_training_an_evaluation_in_which_nothing_counts_is_nan(run_eagerly):
    x, labels = make_data()
    model = make_model(weighted_metrics=[metrics.PrecisionAtK(1)], run_eagerly=run_eagerly)
    nothing = {"sample_weight": np.zeros(len(x)), "return_dict": True, "verbose": 0}
    before = model.evaluate(x, labels, **nothing)
    model.fit(x, labels, batch_size=BATCH, verbose=0)
    after = model.evaluate(x, labels, **nothing)
    assert list(before) == list(after) and np.isnan(after["precision_at_1"])
    assert list(model.fit(x, labels, batch_size=BATCH, verbose=0).history) == ["loss"]


def test_callbacks_and_the_progress_bar_see_no_nan(tmp_path, capsys):
    x, labels = make_data()
    model = make_model([metrics.PrecisionAtK(1)], weighted_metrics=[metrics.PrecisionAtK(1)])
    monitor = {"monitor": "val_precision_at_1", "save_best_only": True, "mode": "max"}
    callbacks = [
        keras.callbacks.ModelCheckpoint(tmp_path / "best.keras", **monitor),
        keras.callbacks.EarlyStopping("val_precision_at_1", patience=5),
        keras.callbacks.CSVLogger(tmp_path / "log.csv"),
        keras.callbacks.TensorBoard(tmp_path / "board"),
    ]
    data = (x, labels)
    model.fit(*data, BATCH, 3, verbose=1, callbacks=callbacks, validation_data=data)
    bar = capsys.readouterr().out
    assert "val_precision_at_1: 0." in bar and "nan" not in bar
    assert (tmp_path / "best.keras").exists()
    names = ["val_loss", "val_precision_at_1", "val_weighted_precision_at_1"]
    rows = (tmp_path / "log.csv").read_text().split()
    assert rows[0].split(",") == ["epoch", "loss", *names]
    assert np.isfinite([[float(value) for value in row.split(",")] for row in rows[1:]]).all()
    tags = {folder: _tags(tmp_path / "board" / folder) for folder in ("train", "validation")}
    assert "epoch_precision_at_1" in tags["validation"]
    assert "epoch_loss" in tags["train"] and not {x for x in tags["train"] if "precision" in x}


def _tags(folder):
    (file,) = folder.glob("events*")
    events = tf.compat.v1.train.summary_iterator(str(file))
    return {value.tag for event in events for value in event.summary.value}


def test_the_train_graph_asks_for_nothing_exact(monkeypatch):
    asked = []
    given = HeadOutput.statistics

    def record(output, kind, *arguments):
        asked.append(kind)
        return given(output, kind, *arguments)

    monkeypatch.setattr(HeadOutput, "statistics", record)
    x, labels = make_data()
    make_model(make_metrics()).fit(x, labels, batch_size=BATCH, verbose=0)
    assert set(asked) == {SoftmaxStatistics}


@eager_and_graph
def test_during_training_shares_one_pass(run_eagerly, passes):
    x, labels = make_data()
    model = make_model(make_metrics(during_training=True), run_eagerly=run_eagerly)
    model.optimizer.learning_rate = 0.0
    history = model.fit(x, labels, batch_size=BATCH, verbose=0).history
    assert len(passes) == (3 if run_eagerly else 1)
    last = {name: values[-1] for name, values in history.items()}
    assert_all_as_defined(last, model.predict(x, verbose=0), labels)


@eager_and_graph
def test_weighted_metrics_leave_rows_out(run_eagerly):
    x, labels = make_data()
    weights = np.where(np.arange(len(x)) % 3 == 0, 0.0, 2.0)
    model = make_model(weighted_metrics=make_metrics(), run_eagerly=run_eagerly)
    results = model.evaluate(x, labels, BATCH, 0, weights, return_dict=True)
    assert_all_as_defined(results, model.predict(x, verbose=0), labels, weights)


@eager_and_graph
@pytest.mark.parametrize("ignored", [-100, 3, NUM_CLASSES])
def test_metrics_ignore_the_class_that_the_loss_ignores(run_eagerly, ignored, passes):
    x, labels = make_data()
    given = np.where(labels == -1, ignored, labels)
    left = np.where(labels == ignored, -1, labels)
    model = make_model()
    loss = SoftmaxCrossentropy(ignore_class=ignored)
    model.compile("sgd", loss=loss, metrics=make_metrics(), run_eagerly=run_eagerly)
    results = model.evaluate(x, given, BATCH, 0, return_dict=True)
    assert len(passes) == (3 if run_eagerly else 1)
    assert_all_as_defined(results, model.predict(x, verbose=0), left)
    model.fit(x, given, batch_size=BATCH, verbose=0)


@pytest.mark.parametrize("strip", [lambda logits: logits, tf.identity], ids=["head", "logits"])
def test_a_metric_ignores_a_class_of_its_own(strip):
    x, labels = make_data()
    y_pred = DenseHead(NUM_CLASSES)(x)
    SoftmaxCrossentropy(ignore_class=5)(labels, y_pred)
    left = np.where(labels == 3, -1, labels)
    for case in CASE_OF_EACH_CLASS:
        metric = case.make(ignore_class=3)
        metric = type(metric).from_config(metric.get_config())
        expected = case.expected(np.float64(y_pred), left)
        np.testing.assert_allclose(metric(labels, strip(y_pred)), expected, rtol=1e-5)


def test_label_forms_in_evaluate():
    x, labels = make_data()
    rows = [[int(c) for c in row if c >= 0] for row in labels]
    ragged = tf.ragged.constant(rows, dtype=tf.int64)
    model = make_model(make_metrics())
    scores = model.predict(x, verbose=0)
    for form in (ragged, ragged.to_sparse()):
        data = tf.data.Dataset.from_tensor_slices((x, form)).batch(BATCH)
        assert_all_as_defined(model.evaluate(data, verbose=0, return_dict=True), scores, labels)


@pytest.mark.parametrize("num_columns", [None, 4], ids=["one-label", "several"])
def test_masked_sequences(num_columns):
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 4, (6, 5))  # token 0 is masked
    tokens[:, 0] = 1
    shape = tokens.shape if num_columns is None else (*tokens.shape, num_columns)
    labels = rng.integers(0, NUM_CLASSES, shape)
    inputs = keras.Input((None,), dtype="int32")
    hidden = keras.layers.Embedding(4, WIDTH, mask_zero=True)(inputs)
    model = keras.Model(inputs, DenseHead(NUM_CLASSES)(hidden))
    model.compile("sgd", loss=SoftmaxCrossentropy(), metrics=make_metrics())
    results = model.evaluate(tokens, labels, verbose=0, return_dict=True)
    scores = model.predict(tokens, verbose=0).reshape(-1, NUM_CLASSES)
    assert_all_as_defined(
        results, scores, labels.reshape(len(scores), -1), (tokens != 0).ravel().astype(float)
    )


def test_saved_models_keep_their_metrics(tmp_path):
    x, labels = make_data()
    model = make_model(make_metrics(), weighted_metrics=[metrics.RecallAtK(2)])
    expected = model.evaluate(x, labels, verbose=0, return_dict=True)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    got = again.evaluate(x, labels, verbose=0, return_dict=True)
    assert got == expected
    assert "recall_at_2" in got


@pytest.mark.parametrize("case", CASE_OF_EACH_CLASS, ids=lambda case: case.name)
def test_callbacks_know_which_way_is_better(case):
    x, labels = make_data()
    stop = keras.callbacks.EarlyStopping(f"val_{case.name}", restore_best_weights=True)
    model = make_model([case.make()])
    model.fit(x, labels, verbose=0, validation_data=(x, labels), callbacks=[stop])
    better = keras.ops.less if case.name in ("exact_loss", "perplexity") else keras.ops.greater
    assert stop.monitor_op == better


def test_bfloat16():
    x, labels = make_data()
    labels = labels[:, 1]
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = make_model(make_metrics())
    results = model.evaluate(x, labels, verbose=0, return_dict=True)
    assert all(np.isfinite(value) for value in results.values())
    np.testing.assert_allclose(results["exact_loss"], results["loss"], rtol=1e-5)


def test_ids_past_float32():
    num_classes = 2**24 + 4
    head = DenseHead(num_classes, use_bias=False, kernel_initializer="zeros")
    head.build((None, 1))
    head.kernel.value.scatter_nd_update([[2**24 + 1]], [[1.0]])
    output = tf.zeros([1, 1])  # the logits would take 67 MB; the head output is enough
    labels = np.array([[2**24 + 1]])
    output._tfx_largeout_head_output = HeadOutput(head, tf.ones([1, 1]), training=False)
    assert float(metrics.PrecisionAtK(1)(labels, output)) == 1.0
    assert float(metrics.PrecisionAtK(1)(labels - 1, output)) == 0.0


def test_label_counts_of_another_length():
    x, labels = make_data()
    metric = metrics.PSPrecisionAtK(1, [1, 2], 10)
    with pytest.raises(ValueError, match=r"label_counts must .* \(13\); got 2"):
        metric.update_state(labels, DenseHead(NUM_CLASSES)(x))


def test_of_sparse_targets_those_above_0_are_labels():
    x, labels = make_data()
    model = make_model()
    targets = np.zeros([len(x), NUM_CLASSES], "float32")
    for row, ids in zip(targets, labels, strict=True):
        row[:] = -0.5 * (np.arange(NUM_CLASSES) % 3 == 0)
        row[ids[ids >= 0]] = 0.25
    indices = np.argwhere((targets != 0) | (np.arange(NUM_CLASSES) % 5 == 1))  # 0 is there as well
    sparse = tf.SparseTensor(indices, targets[tuple(indices.T)], targets.shape)
    logits = model(x)
    for plain in (False, True):
        for metric in make_metrics():
            metric.update_state(sparse, tf.convert_to_tensor(logits) + 0 if plain else logits)
            expected = metric.result()
            metric.reset_state()
            metric.update_state(labels, logits)
            np.testing.assert_allclose(metric.result(), expected, rtol=1e-6)
