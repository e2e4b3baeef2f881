# SPDX-License-Identifier: Apache-2.0
"""A disk that is full while a checkpoint is written: training continues, the last one survives."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from tfx_largeout.callbacks import Checkpoint
from tfx_largeout.callbacks.checkpoint_file import CheckpointFile

X, Y = np.random.default_rng(0).normal(size=(2, 24, 100)).astype("float32")
SIZE = 2**17  # bytes; a checkpoint has some 80,000


def data(epoch):
    return tf.data.Dataset.from_tensor_slices((X + epoch, Y)).batch(8)


def model():
    keras.utils.set_random_seed(1)
    made = keras.Sequential([keras.Input((100,)), layers.Dense(100)])
    made.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    return made


def fit(folder, epochs):
    made, checkpoint = model(), Checkpoint(folder)
    made.fit(checkpoint.data(data), epochs=epochs, callbacks=[checkpoint], shuffle=False, verbose=0)
    return made


@pytest.fixture
def small_disk(tmp_path):
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    mounted = subprocess.run(command, capture_output=True, text=True, check=False)
    if mounted.returncode:
        pytest.skip(f"mounting a tmpfs is not permitted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@contextlib.contextmanager
def small_files(size):
    """Limits the size of files of this process."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_full_disk(small_disk):
    with pytest.warns(UserWarning, match=r"No space left on device.*training goes on") as warned:
        trained = fit(small_disk, 3)
    assert sum("No space left" in str(warning.message) for warning in warned) == 2
    (only,) = small_disk.iterdir()
    assert CheckpointFile(only).facts["position"] == [1, 0]
    # With room again, it resumes from there.
    subprocess.run(["mount", "-o", f"remount,size={8 * SIZE}", str(small_disk)], check=True)
    again = fit(small_disk, 3)
    for one, two in zip(trained.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert len(list(small_disk.iterdir())) == 3


def test_a_file_that_can_not_grow(tmp_path):
    fit(tmp_path, 1)
    (first,) = tmp_path.iterdir()
    before = first.read_bytes()
    message = r"File too large.*earlier checkpoints are as they were"
    with small_files(len(before) // 2), pytest.warns(UserWarning, match=message):
        trained = fit(tmp_path, 2)
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
    assert first.read_bytes() == before
    again = fit(tmp_path, 2)
    for one, two in zip(trained.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


def test_a_folder_that_can_not_be_made(tmp_path):
    (tmp_path / "file").write_text("no folder")
    with pytest.warns(UserWarning, match=r"Not a directory.*training goes on"):
        fit(tmp_path / "file" / "checkpoints", 1)
