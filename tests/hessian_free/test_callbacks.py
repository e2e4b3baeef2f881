# SPDX-License-Identifier: Apache-2.0
"""Keras's callbacks with Trainer."""

from __future__ import annotations

import csv

import keras
import numpy as np
import pytest
import tensorflow as tf
from hessian_free.models import classes_data, dense_model, sparse_softmax
from keras import callbacks

from tfx_largeout.hessian_free import Trainer

X, Y = classes_data(60)


def fitted(called, epochs=4):
    model = dense_model(sparse_softmax())
    model.compile(loss=sparse_softmax(), metrics=["accuracy"])
    validation_data = (X[:20], Y[:20])
    history = Trainer().fit(
        model, X, Y, epochs=epochs, callbacks=called, validation_data=validation_data, verbose=0
    )
    return model, history


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Folder, calls of hooks, model and history of a fit with several callbacks."""
    keras.utils.set_random_seed(7)
    folder, calls = tmp_path_factory.mktemp("run"), []

    class Spy(callbacks.Callback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                return lambda *arguments, **named: calls.append(name)
            return super().__getattribute__(name)

    called = [
        Spy(),
        callbacks.TensorBoard(folder, histogram_freq=1),
        callbacks.CSVLogger(folder / "log.csv"),
        callbacks.TerminateOnNaN(),
        callbacks.ModelCheckpoint(
            folder / "best.keras", "line_search_loss", mode="min", save_best_only=True
        ),
    ]
    return folder, calls, *fitted(called)


def test_hooks_are_called_once_an_iteration(run):
    _, calls, _, history = run
    epoch = ["on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"]
    test = ["on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"]
    assert calls == ["on_train_begin", *(epoch + test + ["on_epoch_end"]) * 4, "on_train_end"]
    assert isinstance(history, callbacks.History)
    assert history.epoch == [0, 1, 2, 3]
    assert history.params["epochs"] == 4


def test_tensorboard(run):
    tags = {}
    for path in run[0].glob("*/events.out.*"):
        for event in tf.compat.v1.train.summary_iterator(str(path)):
            for value in event.summary.value:
                tags.setdefault((path.parent.name, value.tag), []).append(event.step)
    for name in ("loss", "damping", "rho", "cg_iterations", "data_points", "cg_seconds"):
        assert tags["train", f"epoch_{name}"] == [0, 1, 2, 3]
    assert tags["validation", "epoch_loss"] == [0, 1, 2, 3]


def test_early_stopping_restores_the_best_weights():
    stop = callbacks.EarlyStopping("val_loss", patience=1, restore_best_weights=True, mode="max")
    model, history = fitted([stop], epochs=20)
    assert len(history.epoch) < 20
    best = max(history.history["val_loss"])
    assert model.evaluate(X[:20], Y[:20], verbose=0)[0] == pytest.approx(best, rel=1e-5)


def test_checkpoints_load_and_go_on(run):
    folder, _, model, history = run
    loaded = keras.models.load_model(folder / "best.keras")
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), 1e-5)
    again = Trainer().fit(loaded, X, Y, verbose=0).history
    assert again["line_search_loss"][0] <= history.history["line_search_loss"][-1]


def test_a_lower_learning_rate_shortens_the_steps():
    schedule = callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2 ** (epoch == 1))
    reduce = callbacks.ReduceLROnPlateau(
        "val_loss", factor=0.25, patience=1, min_delta=1e9, min_lr=0
    )
    _, history = fitted([schedule, reduce])
    sizes, shares = history.history["step_size"], np.array([1, 1 / 2, 1 / 8, 1 / 32])
    assert sizes[0] == 1 and np.all(sizes <= shares * (1 + 1e-6))
    np.testing.assert_allclose(history.history["learning_rate"], 0.001 * shares, rtol=1e-5)


def test_csv_logger_and_terminate_on_nan(run):
    rows = list(csv.DictReader((run[0] / "log.csv").open()))
    assert [row["epoch"] for row in rows] == ["0", "1", "2", "3"]
    assert float(rows[0]["damping"]) == 1


def test_backups_are_found_again(tmp_path):
    class Interrupt(callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 2:
                raise KeyboardInterrupt

    def backup():
        return callbacks.BackupAndRestore(tmp_path / "backup", delete_checkpoint=False)

    with pytest.raises(KeyboardInterrupt):
        fitted([backup(), Interrupt()])
    _, history = fitted([backup()])
    assert history.epoch == [2, 3]


def test_stopping_in_the_middle_leaves_the_last_weights():
    class Broken(Exception):
        pass

    model = dense_model(sparse_softmax())
    trainer = Trainer(damping=1e-6)
    before = model.get_weights()
    calls = []

    class Failing(callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            calls.append(model.get_weights())

    def make(curvature, examples, batch_size):
        worker = Trainer()._make_worker(curvature, examples, batch_size)
        plain = worker.loss

        def loss(numbers):
            if len(examples) == 6 and calls:
                raise Broken
            return plain(numbers)

        worker.loss = loss
        return worker

    trainer = Trainer(make_worker=make)
    with pytest.raises(Broken):
        trainer.fit(model, X, Y, epochs=3, callbacks=[Failing()], verbose=0)
    assert len(calls) == 1
    for a, b, c in zip(before, calls[0], model.get_weights(), strict=True):
        assert np.any(a != b)
        np.testing.assert_array_equal(b, c)


def test_progress_is_shown(capsys):
    model = dense_model(sparse_softmax())
    Trainer().fit(model, X, Y, epochs=2, verbose=2)
    shown = capsys.readouterr().out
    assert "Epoch 2/2" in shown and "damping" in shown and "cg_iterations" in shown
