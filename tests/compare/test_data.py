# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.settings import DataSettings


def test_finds_the_files_of_a_folder(tmp_path):
    for name in ("eurlex_train.txt", "Test.txt.xz"):
        (tmp_path / name).touch()
    assert find_files(str(tmp_path)) == (
        [str(tmp_path / "eurlex_train.txt")],
        [str(tmp_path / "Test.txt.xz")],
    )


def test_reads_a_folder_with_files_of_features_and_of_labels(tmp_path):
    for split in ("trn", "tst"):
        (tmp_path / f"{split}_X_Xf.txt").write_text("3 2\n0:1\n1:2\n0:3\n")
        (tmp_path / f"{split}_X_Y.txt").write_text("3 4\n3:1\n0:1 2:1\n1:1\n")
    events = []
    train, test = load(settings(tmp_path), lambda **told: events.extend(told.values()))
    for examples in (train, test):
        assert examples.label_ids.tolist() == [3, 0, 2, 1]
        assert examples.feature_ids.tolist() == [0, 1, 0]
    assert events[0] == "reading trn_X_Xf.txt and trn_X_Y.txt"
    (tmp_path / "train.txt").touch()
    with pytest.raises(ValueError, match="must hold one file of train, or one of its features"):
        find_files(str(tmp_path))
    (tmp_path / "tst_X_Y.txt").unlink()
    (tmp_path / "train.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"must hold one test_X_Y\.txt or \.npz; got none"):
        find_files(str(tmp_path))


def test_refuses_a_folder_that_is_missing(tmp_path):
    with pytest.raises(ValueError, match=r"a folder; got '.*nowhere'"):
        find_files(str(tmp_path / "nowhere"))


def settings(folder, features="counts"):
    train, test = find_files(str(folder))
    return DataSettings(None, train, test, features)


def test_features_are_weighted_or_left_alone(tiny_data):
    counts, _ = load(settings(tiny_data))
    assert set(counts.feature_values) == {1.0, 2.0}
    weighted, _ = load(settings(tiny_data, "tf_idf"))
    lengths = np.add.reduceat(weighted.feature_values**2, weighted.feature_splits[:-1])
    np.testing.assert_allclose(lengths, 1, rtol=1e-5)


def test_the_shipped_data():
    train, test = load(DataSettings("lemma"))
    assert (train.num_labels, test.num_labels) == (137311, 137311)


def write(folder, train, test):
    (folder / "train.txt").write_text(train)
    (folder / "test.txt").write_text(test)
    return settings(folder)


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ("1 3 5\n0 0:1\n", "1 3 6\n0 0:1\n", "the same num_labels; got 5 and 6"),
        ("1 3 5\n0 0:1\n", "1 4 5\n0 0:1\n", "the same num_features; got 3 and 4"),
        ("3 3 5\n" + "0 0:1\n" * 3, "0 3 5\n", "at least 1 test examples with labels; got 0"),
        ("3 3 5\n" + "0 0:1\n" * 3, "1 3 5\n 0:1\n", "at least 1 test examples .*; got 0"),
        ("3 3 5\n0 0:1\n 0:1\n1 0:1\n", "1 3 5\n0 0:1\n", "3 training examples .*; got 2"),
        ("3 3 1\n" + "0 0:1\n" * 3, "1 3 1\n0 0:1\n", "at least 2 classes; got 1"),
    ],
)
def test_refuses_files_that_no_head_can_use(tmp_path, train, test, message):
    with pytest.raises(ValueError, match=message):
        load(write(tmp_path, train, test))


def test_examples_without_labels_are_left_out_and_counted(tmp_path):
    rows = "0 0:1\n 1:5\n3 2:1\n4 1:1\n"
    events = []
    files = write(tmp_path, "4 3 5\n" + rows, "2 3 5\n 0:1\n1 1:2\n")
    train, test = load(files, lambda **told: events.extend(told.items()))
    assert train.label_ids.tolist() == [0, 3, 4]
    assert train.feature_ids.tolist() == [0, 2, 1]
    assert (test.label_ids.tolist(), test.feature_ids.tolist()) == ([1], [1])
    assert events == [
        ("stage", "reading train.txt"),
        ("stage", "reading train.txt: 4 of 4 examples"),
        ("stage", "reading test.txt"),
        ("stage", "reading test.txt: 2 of 2 examples"),
        ("note", "1 of 4 training examples have no labels: left out."),
        ("note", "1 of 2 test examples have no labels: left out."),
    ]
