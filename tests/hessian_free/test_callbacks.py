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


def fitted(called, epochs=4, validation=True, **arguments):
    model = dense_model(sparse_softmax())
    model.compile(loss=sparse_softmax(), metrics=["accuracy"])
    validation_data = (X[:20], Y[:20]) if validation else None
    history = Trainer().fit(
        model, X, Y, epochs=epochs, callbacks=called, validation_data=validation_data,
        verbose=0, **arguments,
    )  # fmt: skip
    return model, history


def test_hooks_are_called_once_an_iteration():
    calls = []

    class Spy(callbacks.Callback):
        def __getattribute__(self, name):
            if name.startswith("on_"):
                return lambda *arguments, **named: calls.append(name)
            return super().__getattribute__(name)

    _, history = fitted([Spy()], epochs=2)
    epoch = ["on_epoch_begin", "on_train_batch_begin", "on_train_batch_end"]
    test = ["on_test_begin", "on_test_batch_begin", "on_test_batch_end", "on_test_end"]
    assert calls == ["on_train_begin", *(epoch + test + ["on_epoch_end"]) * 2, "on_train_end"]
    assert isinstance(history, callbacks.History)
    assert history.epoch == [0, 1]
    assert history.params["epochs"] == 2


def test_tensorboard(tmp_path):
    fitted([callbacks.TensorBoard(tmp_path, histogram_freq=1)])
    tags = {}
    for path in tmp_path.glob("*/events.out.*"):
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


def test_checkpoints_load_and_go_on(tmp_path):
    path = tmp_path / "best.keras"
    checkpoint = callbacks.ModelCheckpoint(
        path, "line_search_loss", mode="min", save_best_only=True
    )
    model, history = fitted([checkpoint])
    loaded = keras.models.load_model(path)
    np.testing.assert_allclose(loaded.predict(X, verbose=0), model.predict(X, verbose=0), 1e-5)
    again = Trainer().fit(loaded, X, Y, verbose=0).history
    assert again["line_search_loss"][0] <= history.history["line_search_loss"][-1]


def test_reducing_the_learning_rate_shortens_the_steps():
    reduce = callbacks.ReduceLROnPlateau(
        "val_loss", factor=0.25, patience=1, min_delta=1e9, min_lr=0
    )
    _, history = fitted([reduce], epochs=4)
    sizes = history.history["step_size"]
    assert sizes[:2] == [1, 1]
    assert sizes[2] <= 0.25 and sizes[3] <= 0.25**2
    np.testing.assert_allclose(
        history.history["learning_rate"], 0.001 * 0.25 ** np.array([0, 0, 1, 2]), rtol=1e-5
    )


def test_a_schedule_of_learning_rates_does_too():
    schedule = callbacks.LearningRateScheduler(lambda epoch, rate: 0.001 / (1 + epoch))
    _, history = fitted([schedule], epochs=3)
    sizes = np.array(history.history["step_size"])
    np.testing.assert_array_less(sizes, np.array([1, 0.5, 1 / 3]) + 1e-6)
    np.testing.assert_allclose(sizes[0], 1)


def test_csv_logger_and_terminate_on_nan(tmp_path):
    path = tmp_path / "log.csv"
    fitted([callbacks.CSVLogger(path), callbacks.TerminateOnNaN()], validation=False)
    rows = list(csv.DictReader(path.open()))
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
