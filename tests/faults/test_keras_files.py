# SPDX-License-Identifier: Apache-2.0
"""The statements of docs/guides/save_and_resume.md about Keras's and TensorFlow's files."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf


def flip(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


def saved(suffix: str, folder: Path) -> tuple[keras.Model, Path]:
    model = keras.Sequential([keras.Input((40,)), keras.layers.Dense(50, use_bias=False)])
    path = folder / f"file{suffix}"
    if suffix == ".index":
        path = Path(tf.train.Checkpoint(model=model).write(str(folder / "file")))
        return model, path.with_name(path.name + ".data-00000-of-00001")
    model.save(path) if suffix == ".keras" else model.save_weights(path)
    return model, path


def place_of(kernel: np.ndarray, path: Path) -> int:
    return path.read_bytes().index(kernel.tobytes())


def test_keras_archives_notice_a_flip(tmp_path):
    model, path = saved(".keras", tmp_path)
    flip(path, place_of(model.get_weights()[0], path) + 1001, 2)
    with pytest.raises(Exception, match=r"CRC|truncated|HDF5|zip"):
        keras.saving.load_model(path)


def test_tensorflow_checkpoints_notice_a_flip(tmp_path):
    model, path = saved(".index", tmp_path)
    flip(path, place_of(model.get_weights()[0], path) + 1001, 2)
    with pytest.raises(tf.errors.DataLossError, match=r"[Cc]hecksum"):
        tf.train.Checkpoint(model=model).read(str(tmp_path / "file")).assert_consumed()


def test_hdf5_weights_do_not(tmp_path):
    """The files of `BackupAndRestore` and `save_weights`: a flipped bit is loaded silently."""
    model, path = saved(".weights.h5", tmp_path)
    before = model.get_weights()[0]
    flip(path, place_of(before, path) + 1003, 2)
    model.load_weights(path)
    assert np.count_nonzero(model.get_weights()[0] != before) == 1


def test_keras_does_not_restore_the_seeds_of_layers(tmp_path):
    """A dropout layer that has drawn 3 times is back at 0 after `load_weights`."""
    dropout = keras.layers.Dropout(0.5, seed=1)
    model = keras.Sequential([keras.Input((4,)), dropout, keras.layers.Dense(2)])
    for _ in range(3):
        model(np.ones((1, 4), "float32"), training=True)
    assert dropout.seed_generator.state.numpy().tolist() == [1, 3]
    model.save(tmp_path / "model.keras")
    model.save_weights(tmp_path / "model.weights.h5")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.layers[0].seed_generator.state.numpy().tolist() == [1, 0]
    other = keras.models.clone_model(model)
    other.load_weights(tmp_path / "model.weights.h5")
    assert other.layers[0].seed_generator.state.numpy().tolist() == [1, 0]


def test_keras_goes_on_at_the_first_batch_of_an_epoch(tmp_path):
    """`BackupAndRestore` saves weights in the middle of an epoch, and trains its batches again."""
    x = np.ones((8, 1), "float32")

    class Killed(Exception):
        pass

    def run(after):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1, use_bias=False)])
        model.compile("sgd", "mse")
        steps = []

        def count(batch, logs):
            steps.append(batch)
            if len(steps) == after:
                raise Killed

        called = [
            keras.callbacks.BackupAndRestore(tmp_path, save_freq=1),
            keras.callbacks.LambdaCallback(on_train_batch_end=count),
        ]
        try:
            model.fit(x, x, batch_size=2, shuffle=False, verbose=0, callbacks=called)
        except Killed:
            assert int(model.optimizer.iterations) == after
        return steps, int(model.optimizer.iterations)

    run(after=3)
    steps, iterations = run(after=None)
    assert steps == [0, 1, 2, 3], "an epoch of 4 batches, 3 of which had been trained"
    assert iterations > 4
