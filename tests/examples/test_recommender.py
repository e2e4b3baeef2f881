# SPDX-License-Identifier: Apache-2.0
"""What the recommenders share: options, the data as models get it, names, and served versions."""

from __future__ import annotations

import gzip
import re

import numpy as np
import pytest
import tensorflow as tf


@pytest.fixture
def shared(load_example):
    return load_example("recommender")


def read(shared, folder, *options):
    (folder / "data.txt").write_text("1 5 6 7 5\n2 6 7 5 6\n")
    given = [str(folder / "data.txt"), f"--output={folder / 'out'}", *options]
    return shared.read(shared.options("").parse_args(given))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--queue=-1", "must be at least 0; got -1"),
        ("--queue=1.5", "invalid int value: '1.5'"),
        ("--width=0", "must be at least 1; got 0"),
        ("--length=0", "must be at least 1; got 0"),
        ("--k=0", "must be at least 1; got 0"),
        ("--dropout=1", r"must be in \[0, 1\); got 1"),
        ("--dropout=-0.1", r"must be in \[0, 1\); got -0.1"),
        ("--learning-rate=0", "must be above 0 and finite; got 0"),
        ("--learning-rate=nan", "must be above 0 and finite; got nan"),
        ("--seed=-1", r"must be in \[0, 2\^32\); got -1"),
    ],
)
def test_options_out_of_range_are_refused(shared, tmp_path, capsys, option, message):
    with pytest.raises(SystemExit):
        read(shared, tmp_path, option)
    name = option.partition("=")[0]
    assert re.search(f"argument {name}: {message}", capsys.readouterr().err)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--user=999", "--user must be one of the data; got 999"),
        (f"--user={10**30}", "--user must be one of the data; got 1000"),
        ("--k=4", r"--k must be in \[1, 3\], the items; got 4"),
        ("--names=nowhere.txt", "nowhere.txt: must be text, .* No such file"),
        ("--output=data.txt", "--output must be a folder that can be made; .*data.txt"),
    ],
)
def test_what_would_fail_later_is_refused_at_once(shared, tmp_path, monkeypatch, option, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match=message):
        read(shared, tmp_path, option)


@pytest.mark.parametrize("name", ["names.txt", "names.txt.gz"])
def test_each_class_is_called_by_a_name_of_its_own(shared, tmp_path, name):
    """The export needs distinct names; equal names get their id."""
    lines = "\ufeff# id and name\r\n5\tA  name\r\n\r\n6 A name\r\n99 not there\r\n".encode()
    (tmp_path / name).write_bytes(gzip.compress(lines) if name.endswith("gz") else lines)
    histories, texts = read(shared, tmp_path, f"--names={tmp_path / name}")
    assert histories.ids.tolist() == [0, 6, 5, 7]
    assert texts == ["no item", "A name (6)", "A name (5)", "7"]


def test_a_line_of_names_that_breaks_the_rule_is_named(shared, tmp_path):
    for line, rule in (("seven", "must be an item's id and name"), ("x y", "ids must be integers")):
        (tmp_path / "names.txt").write_text(f"7 a name\n8\tanother\n{line}\n")
        with pytest.raises(SystemExit, match=f"names.txt, line 3: {rule}.*; got"):
            shared.names_of(tmp_path / "names.txt")


def test_long_histories_are_cut_and_zeros_left_out(shared):
    recent = shared.Recent(3)
    histories = tf.constant([[1, 2, 3, 4, 5], [0, 6, 0, 7, 0], [0, 0, 0, 0, 0]], tf.int64)
    expected = [[0, 3, 4, 5], [0, 6, 7, 0], [0, 0, 0, 0]]
    np.testing.assert_array_equal(recent(histories), expected)


def test_batches_have_every_sequence_once_in_an_epoch(shared):
    rows = [np.arange(1, n + 2) for n in np.random.default_rng(0).integers(0, 9, 50)]
    pairs = [(np.append(0, row[:-1]), row) for row in rows]
    for _ in range(2):
        seen = []
        for items, following in shared.batches(pairs, 8, seed=1):
            assert items.shape == following.shape
            for x, y in zip(items.numpy(), following.numpy(), strict=True):
                last = y[y > 0]
                assert x[: len(last)].tolist() == [0, *last[:-1]]
                assert not x[len(last) :].any() and (y[len(last) :] == -1).all()
                seen.append(tuple(last))
        assert sorted(seen) == sorted(map(tuple, rows))


def test_a_model_is_served_beside_those_before_it(shared, tmp_path):
    assert shared.new_version(tmp_path / "served").name == "1"
    for name in ("1", "7", "other"):
        (tmp_path / "served" / name).mkdir()
    assert shared.new_version(tmp_path / "served").name == "8"
