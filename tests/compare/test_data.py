# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest

from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.settings import DataSettings


@pytest.mark.parametrize(
    ("train", "test"),
    [
        ("train.txt", "test.txt"),
        ("Train.txt.gz", "Test.txt.xz"),
        ("eurlex_train.txt", "eurlex_test.txt"),
    ],
)
def test_finds_the_files_of_a_folder(tmp_path, train, test):
    for name in (train, test, "readme.txt", "test_partial.txt", "train.txt.bak", "strain.txt"):
        (tmp_path / name).touch()
    assert find_files(str(tmp_path)) == (str(tmp_path / train), str(tmp_path / test))


def test_refuses_what_is_missing_or_ambiguous(tmp_path):
    with pytest.raises(ValueError, match=r"a folder; got '.*nowhere'"):
        find_files(str(tmp_path / "nowhere"))
    (tmp_path / "train.txt").touch()
    with pytest.raises(ValueError, match=r"one test\.txt.* with none"):
        find_files(str(tmp_path))
    (tmp_path / "test.txt").touch()
    (tmp_path / "a_test.txt").touch()
    with pytest.raises(ValueError, match=r"with a_test\.txt, test\.txt"):
        find_files(str(tmp_path))


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


def test_refuses_files_that_do_not_fit_together(tmp_path):
    (tmp_path / "train.txt").write_text("1 3 5\n0 0:1\n")
    (tmp_path / "test.txt").write_text("1 3 6\n0 0:1\n")
    with pytest.raises(ValueError, match="the same num_labels; got 5 and 6"):
        load(settings(tmp_path))
    (tmp_path / "test.txt").write_text("0 3 5\n")
    with pytest.raises(ValueError, match="training and test examples; got 1 and 0"):
        load(settings(tmp_path))
