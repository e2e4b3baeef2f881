# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from tfx_largeout.datasets import find_split

OTHERS = ("readme.txt", "test_partial.txt", "train.txt.bak", "strain.txt", "test.csv")


@pytest.mark.parametrize(
    ("split", "name"),
    [
        ("train", "train.txt"),
        ("train", "Train.txt.gz"),
        ("train", "eurlex_train.txt"),
        ("test", "Test.txt.xz"),
        ("test", "amazon-test.txt"),
    ],
)
def test_finds_the_file_of_a_split(tmp_path, split, name):
    for file in (name, *OTHERS):
        (tmp_path / file).touch()
    assert find_split(tmp_path, split) == tmp_path / name


def test_refuses_what_is_missing_or_ambiguous(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"must hold one test\.txt, .*; got none"):
        find_split(tmp_path, "test")
    (tmp_path / "test.txt").touch()
    (tmp_path / "a_test.txt").touch()
    with pytest.raises(ValueError, match=r"got a_test\.txt, test\.txt"):
        find_split(tmp_path, "test")
