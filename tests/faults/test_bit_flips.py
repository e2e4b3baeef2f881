# SPDX-License-Identifier: Apache-2.0
"""Flipped bits, cut files and stale ones: refused or skipped, and never a silent wrong answer."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
import training_runs

from tfx_largeout.callbacks.checkpoint_file import CheckpointFile, DamagedCheckpoint
from tfx_largeout.callbacks.model_state import ModelState

KINDS = ("sampled", "factored")


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """For each kind the folder of a short run, with two checkpoints."""
    folders = {}
    for kind in KINDS:
        folders[kind] = tmp_path_factory.mktemp(kind)
        fit(kind, folders[kind], epochs=2)
    return folders


def fit(kind, folder, epochs):
    keras.utils.set_random_seed(1)
    model = training_runs.compiled_model(kind)
    checkpoint, called = training_runs.callbacks(folder, "epoch")
    data = checkpoint.data(lambda epoch: training_runs.epoch_of_arrays(epoch).take(3))
    model.fit(data, epochs=epochs, callbacks=called, shuffle=False, verbose=0)
    return model


def newest(folder: Path) -> Path:
    return sorted(folder.glob("*.npz"))[-1]


def flip(path: Path, place: int, bit: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1 << bit
    path.write_bytes(bytes(content))


@pytest.mark.parametrize("kind", KINDS)
def test_each_variable(kind, checkpoints, tmp_path):
    source, rng = newest(checkpoints[kind]), np.random.default_rng(0)
    names = CheckpointFile(source).names
    wanted = {
        "sampled": ["SampledHead.kernel", "RowAdam.age", "HashIndex.entries", "HashIndex.starts"],
        "factored": ["FactoredHead.v", "FactoredHead.row_slot", "FactoredHead.slot_rows"],
    }
    assert all(any(part in name for name in names) for part in wanted[kind])
    with zipfile.ZipFile(source) as archive:
        entries = {entry.filename: entry for entry in archive.infolist()}
    for name in names:
        entry = entries[f"{name}.npy"]
        start = entry.header_offset + 30 + len(entry.filename.encode()) + 20  # of the zip64 field
        for _ in range(3):
            path = tmp_path / source.name
            shutil.copy(source, path)
            flip(path, start + int(rng.integers(entry.file_size)), int(rng.integers(8)))
            with pytest.raises(DamagedCheckpoint):
                CheckpointFile(path)


@pytest.mark.parametrize("kind", KINDS)
def test_each_part_of_the_file(kind, checkpoints, tmp_path):
    source, rng = newest(checkpoints[kind]), np.random.default_rng(1)
    size, path = source.stat().st_size, tmp_path / source.name
    whole, refused = CheckpointFile(source), 0
    # Anywhere, and in the directory of the archive at its end in particular.
    places = [*rng.integers(0, size, 60), *rng.integers(size - 3000, size, 140)]
    for place in places:
        shutil.copy(source, path)
        flip(path, int(place), int(rng.integers(8)))
        try:
            found = CheckpointFile(path)
        except (DamagedCheckpoint, ValueError):
            refused += 1
            continue
        # What is left are bits that mean nothing, such as the time of an entry.
        assert found.facts == whole.facts and found.names == whole.names
        for name in whole.names:
            assert found.array(name).tobytes() == whole.array(name).tobytes()
    assert refused > 100


def test_a_file_that_is_cut_off(checkpoints, tmp_path):
    source, rng = newest(checkpoints["sampled"]), np.random.default_rng(2)
    path, content = tmp_path / source.name, source.read_bytes()
    for size in [0, 1, len(content) - 1, *rng.integers(2, len(content) - 1, 30)]:
        path.write_bytes(content[: int(size)])
        with pytest.raises(DamagedCheckpoint):
            CheckpointFile(path)


def test_a_damaged_newest_one_is_skipped(checkpoints, tmp_path):
    kind = "sampled"
    whole, folder = fit(kind, tmp_path / "whole", epochs=2), tmp_path / "run"
    shutil.copytree(checkpoints[kind], folder)
    path = newest(folder)
    flip(path, path.stat().st_size // 2, 3)
    (folder / "epoch-00003-batch-00000000.npz.tmp").write_bytes(b"of a process that was killed")
    with pytest.warns(UserWarning, match=f"{path.name} is damaged .*goes on from epoch-00001"):
        model = fit(kind, folder, epochs=2)
    pairs = zip(ModelState(whole).arrays(), ModelState(model).arrays(), strict=True)
    assert all(one().tobytes() == two().tobytes() for (_, one), (_, two) in pairs)
    assert {found.name for found in folder.iterdir()} == {
        "epoch-00001-batch-00000000.npz",
        "epoch-00002-batch-00000000.npz",
        "epoch-00002-batch-00000000.npz.damaged",
    }


def test_training_does_not_begin_anew_where_none_is_whole(checkpoints, tmp_path):
    folder = tmp_path / "run"
    shutil.copytree(checkpoints["factored"], folder)
    for path in folder.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-100])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"must be whole; got epoch-00002.*epoch-00001"):
            fit("factored", folder, epochs=2)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


# Keras's and TensorFlow's own files


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
    """The files of `BackupAndRestore` and `save_weights`: a flip is loaded without a word."""
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
