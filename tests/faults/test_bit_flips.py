# SPDX-License-Identifier: Apache-2.0
"""Flipped bits, truncated and stale files: an error or skipped, but never a silent wrong result."""

from __future__ import annotations

import functools
import shutil
import zipfile
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from faults import training_runs
from variants import thorough

from tfx_largeout.callbacks.checkpoint_file import CheckpointFile, DamagedCheckpoint
from tfx_largeout.callbacks.checkpoint_folder import CheckpointFolder
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.indexes import HashIndex, SimHash

KINDS = ["factored", *thorough("sampled")]


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """Returns for a kind the folder of a short run, with two checkpoints."""

    @functools.cache
    def folder_of(kind):
        folder = tmp_path_factory.mktemp(kind)
        fit(kind, folder, epochs=2)
        return folder

    return folder_of


def fit(kind, folder, epochs):
    keras.utils.set_random_seed(1)
    model = training_runs.compiled_model(kind)
    model.run_eagerly = True
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
    source, rng = newest(checkpoints(kind)), np.random.default_rng(0)
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
    source, rng = newest(checkpoints(kind)), np.random.default_rng(1)
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
        # The remaining bits have no meaning, such as the time of an entry.
        assert found.facts == whole.facts and found.names == whole.names
        for name in whole.names:
            assert found.array(name).tobytes() == whole.array(name).tobytes()
    assert refused > 100


def test_a_file_that_is_cut_off(checkpoints, tmp_path):
    source, rng = newest(checkpoints("factored")), np.random.default_rng(2)
    path, content = tmp_path / source.name, source.read_bytes()
    for size in [0, 1, len(content) - 1, *rng.integers(2, len(content) - 1, 30)]:
        path.write_bytes(content[: int(size)])
        with pytest.raises(DamagedCheckpoint):
            CheckpointFile(path)


@pytest.mark.thorough
def test_a_damaged_newest_one_is_skipped(checkpoints, tmp_path):
    kind = "sampled"
    whole, folder = fit(kind, tmp_path / "whole", epochs=2), tmp_path / "run"
    shutil.copytree(checkpoints(kind), folder)
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
    shutil.copytree(checkpoints("factored"), folder)
    for path in folder.glob("*.npz"):
        path.write_bytes(path.read_bytes()[:-100])
    before = {path: path.read_bytes() for path in folder.iterdir()}
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"must be whole; got epoch-00002.*epoch-00001"):
            fit("factored", folder, epochs=2)
        assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_what_is_no_checkpoint(tmp_path):
    path = tmp_path / "epoch-00001-batch-00000000.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("checkpoint.json", "[]")
    with pytest.raises(DamagedCheckpoint):
        CheckpointFile(path)
    path.rename(tmp_path / "epoch-00001-batch-00000000 (copy).npz")
    assert CheckpointFolder(tmp_path, keep=3).newest() is None


# In memory


@pytest.mark.parametrize("name", ["entries", "starts", *thorough("touched_at")])
def test_an_index_in_memory_is_refused_or_mended(name):
    """Ids stay in range or an op raises an error for the tables; a rebuild repairs them."""
    rng, classes = np.random.default_rng(4), 200
    kernel = tf.Variable(rng.normal(size=(classes, 8)).astype("float32"))
    index = HashIndex(SimHash(), hashes_per_table=4, num_tables=3, first_period=3)
    index.rebuild(kernel)
    tables = {key: getattr(index, key).numpy() for key in ("entries", "starts")}
    queries = tf.constant(rng.normal(size=(6, 1, 8)).astype("float32"))
    variable, refused = getattr(index, name), 0
    for number in range(15):
        damaged = variable.numpy().copy()
        damaged.view(np.uint8).reshape(-1)[rng.integers(damaged.nbytes)] ^= 1 << rng.integers(8)
        variable.assign(damaged)
        try:
            ids = index.candidates(queries, 30, tf.constant([number, 0]), per_example=True).numpy()
            assert np.all((ids >= -1) & (ids < classes))
            for _ in range(3):  # a round
                index.update(kernel, None, tf.constant([1, 2], tf.int64))
        except tf.errors.InvalidArgumentError:
            refused += 1
        index.rebuild(kernel)
        for key, value in tables.items():
            np.testing.assert_array_equal(getattr(index, key).numpy(), value)
    assert name == "touched_at" or refused > 1


# Where memory or the disk fails half way


def test_a_checkpoint_that_can_not_be_read_to_its_end(checkpoints, tmp_path, monkeypatch):
    """An array in the middle can't be read: the model is unchanged, and training does not begin."""
    folder = tmp_path / "run"
    shutil.copytree(checkpoints("factored"), folder)
    keras.utils.set_random_seed(1)  # also for the data
    model = training_runs.compiled_model("factored")
    checkpoint, called = training_runs.callbacks(folder, "epoch")
    data = checkpoint.data(lambda epoch: training_runs.epoch_of_arrays(epoch).take(3))
    read, states = CheckpointFile.array, []
    names = CheckpointFile(newest(folder)).names
    refused = next(name for name in names if name.endswith("FactoredHead.v"))
    assert names.index(refused) > 1

    def array(self, name):
        if name == refused:
            raise MemoryError("Unable to allocate 9 GiB")
        states.append([get().copy() for _, get in ModelState(model).arrays()])
        return read(self, name)

    monkeypatch.setattr(CheckpointFile, "array", array)
    message = rf"{newest(folder).name}: .*FactoredHead.v \[\d.* could not be restored "
    message += r"\(MemoryError: Unable to allocate 9 GiB\); all variables are as they were"
    with pytest.raises(RuntimeError, match=message):
        model.fit(data, epochs=3, callbacks=called, shuffle=False, verbose=0)
    after = [get() for _, get in ModelState(model).arrays()]
    first, last = states[0], states[-1]
    assert any((one != two).any() for one, two in zip(first, last, strict=True))  # it had begun
    for one, two in zip(first, after, strict=True):
        np.testing.assert_array_equal(one, two)
