# SPDX-License-Identifier: Apache-2.0
"""Arrays in memory-mapped files: the same as in memory, and made once."""

from __future__ import annotations

import os
from pathlib import Path

import child
import numpy as np
import pytest
import tensorflow as tf
from datasets.test_xc_format import rows_of
from oracles import xc_files

from tfx_largeout.datasets import (
    SparseExamples,
    line_blocks,
    read_svmlight,
    read_xc,
    readers,
    tf_idf,
)
from tfx_largeout.datasets.sparse_rows import ARRAYS


def same(ours: SparseExamples, theirs: SparseExamples) -> bool:
    assert (ours.num_features, ours.num_labels) == (theirs.num_features, theirs.num_labels)
    for name in ARRAYS:
        np.testing.assert_array_equal(getattr(ours, name), getattr(theirs, name))
        assert getattr(ours, name).dtype == ARRAYS[name]
    return True


@pytest.fixture
def path(tmp_path) -> Path:
    rows = xc_files.draw(np.random.default_rng(0), 100, 500, 300)
    return xc_files.write(tmp_path / "data.xz", rows, 500, 300)


@pytest.fixture
def read_once(monkeypatch):
    """Counts how often a file is opened for its lines."""
    opened = []

    def count(path, *arguments):
        opened.append(os.path.basename(path))
        return line_blocks.line_blocks(path, *arguments)

    monkeypatch.setattr("tfx_largeout.datasets.xc_format.line_blocks", count)
    monkeypatch.setattr(readers, "line_blocks", count)
    return opened


@pytest.mark.parametrize("choice", ["keep", "drop"])
@pytest.mark.parametrize("block_bytes", [100, 1 << 20])
def test_the_same_values(tmp_path, monkeypatch, path, read_once, choice, block_bytes):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    in_memory = read_xc(path, rows_without_labels=choice)
    for _ in range(2):
        mapped = read_xc(path, rows_without_labels=choice, cache=tmp_path / "new" / "cache")
        assert isinstance(mapped.feature_ids, np.memmap)
        assert same(mapped, in_memory)
    assert read_once == ["data.xz"] * 2
    assert same(mapped.take(np.arange(50)), in_memory.take(np.arange(50)))
    assert same(*(tf_idf(examples)[0] for examples in (mapped, in_memory)))
    assert same(mapped.with_labels(), in_memory.with_labels())


@pytest.mark.parametrize("shuffle", [False, True])
@pytest.mark.parametrize("drop_remainder", [False, True])
def test_the_same_batches(tmp_path, path, shuffle, drop_remainder):
    in_memory, mapped = read_xc(path), read_xc(path, cache=tmp_path / "cache")
    weighted = tf_idf(mapped)[0]  # some arrays in files, some not
    options = {"shuffle": shuffle, "seed": 4, "drop_remainder": drop_remainder}
    for ours, theirs in ((mapped, in_memory), (weighted, tf_idf(in_memory)[0])):
        ours, theirs = (examples.dataset(32, **options) for examples in (ours, theirs))
        assert ours.element_spec == theirs.element_spec
        assert len(ours) == len(theirs)
        for _ in range(2):
            for (x, y), (wanted_x, wanted_y) in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(x.indices, wanted_x.indices)
                np.testing.assert_array_equal(x.values, wanted_x.values)
                assert y.to_list() == wanted_y.to_list()
                assert x.dense_shape.numpy().tolist() == wanted_x.dense_shape.numpy().tolist()


def test_files_of_two_parts_and_of_svmlight(tmp_path, read_once):
    x, y, svm = (tmp_path / name for name in ("x.txt", "y.txt", "data.svm"))
    x.write_text("3 5\n4:1 2:0.5\n\n1:1\n")
    y.write_text("3 7\n6:1\n0:1 3:1\n\n")
    assert same(read_xc(x, y, cache=tmp_path), read_xc(x, y))
    svm.write_text("6 5:1 3:0.5\n0,3\n 2:1\n")
    for options in ({"zero_based": False}, {"num_features": 5}, {"zero_based": True}):
        in_memory = read_svmlight(svm, **options)
        for _ in range(2):
            assert same(read_svmlight(svm, **options, cache=tmp_path), in_memory)
    assert read_once.count("data.svm") == 6


def test_made_anew_where_the_file_is_another_or_the_cache_is_damaged(tmp_path, path, read_once):
    cache = tmp_path / "cache"
    read_xc(path, cache=cache)
    xc_files.write(path, [([1], {3: 2.0})], 500, 300)
    changed = read_xc(path, cache=cache)
    assert rows_of(changed) == [([1], {3: 2.0})]
    assert len(read_once) == 2
    (folder,) = cache.iterdir()
    for name in ("about.json", "feature_ids.npy", "label_splits.npy"):
        file = folder / name
        file.write_bytes(file.read_bytes()[:-2])
        assert same(read_xc(path, cache=cache), changed)
    file.unlink()
    assert same(read_xc(path, cache=cache), changed)
    assert len(read_once) == 6
    assert [child.name for child in cache.iterdir()] == [folder.name]


@pytest.mark.parametrize("fault", ["garbage", "empty", "dtype", "longer", "splits"])
def test_made_anew_where_an_array_is_another(fault, tmp_path, path, read_once):
    examples = read_xc(path)
    made = {name: getattr(examples, name) for name in ARRAYS}
    read_xc(path, cache=tmp_path / "cache")
    (folder,) = (tmp_path / "cache").iterdir()
    name = "label_splits" if fault == "splits" else "feature_ids"
    if fault in ("garbage", "empty"):
        (folder / f"{name}.npy").write_bytes(os.urandom(3000) if fault == "garbage" else b"")
    else:
        wrong = {
            "dtype": made[name].astype(np.int64),
            "longer": np.append(made[name], made[name][:1]),
            "splits": made[name] + np.eye(len(made[name]), dtype=int)[-1],
        }
        np.save(folder / f"{name}.npy", wrong[fault])
    again = read_xc(path, cache=tmp_path / "cache")
    for key, array in made.items():
        np.testing.assert_array_equal(getattr(again, key), array)
    assert len(read_once) == 3


def test_a_malformed_file_leaves_nothing(tmp_path):
    path, cache = tmp_path / "data.txt", tmp_path / "cache"
    path.write_text("2 5 5\n1 1:1\n1 1:x\n")
    for _ in range(2):
        with pytest.raises(ValueError, match=r"data\.txt:3: .* got 'x'"):
            read_xc(path, cache=cache)
    assert list(cache.iterdir()) == []
    with pytest.raises(FileNotFoundError):
        read_xc(tmp_path / "nothing.txt", cache=cache)
    with pytest.raises(OSError, match=r"data\.txt"):
        path.write_text("1 5 5\n1 1:1\n")
        read_xc(path, cache=path)


def test_no_examples(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("0 3 4\n")
    mapped = read_xc(path, cache=tmp_path / "cache")
    assert len(mapped) == 0
    assert list(mapped.dataset(8)) == []
    path.write_text("3 3 4\n \n \n \n")
    (batch,) = read_xc(path, cache=tmp_path / "cache").dataset(8)
    assert batch[1].to_list() == [[], [], []]
    assert tf.sparse.to_dense(batch[0]).shape == (3, 3)


READ = """
import resource, sys
from tfx_largeout.datasets import read_xc
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
examples = read_xc(sys.argv[1], cache=None)
for _ in examples.dataset(64).take(3): pass
before = peak()
examples = read_xc(sys.argv[2], cache=sys.argv[3])
read = peak() - before
total = sum(float(x.values[0]) for x, _ in examples.dataset(512, shuffle=True))
print(read, peak() - before, len(examples), total)
"""


@pytest.mark.thorough
def test_memory_does_not_grow_with_the_file(tmp_path):
    row = "7,9 " + " ".join(f"{i}:0.5" for i in range(100)) + "\n"
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    small.write_text("4000 100 10\n" + row * 4000)
    large.write_text("300000 100 10\n" + row * 300_000)  # 200 MB, and 260 of arrays
    words = child.run_program(tmp_path, READ, str(small), str(large), str(tmp_path / "cache"))
    read, all_of_it, number, total = map(float, words)
    assert (number, total) == (300_000, 0.5 * 586)
    assert read < 60 * 1024
    assert all_of_it < 120 * 1024
