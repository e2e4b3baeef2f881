# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from oracles import xc_files

from tfx_largeout.datasets import SparseExamples, line_blocks, read_xc, xc_format
from tfx_largeout.datasets.wordnet_reverse_dictionary.wordnet_reverse_dictionary import DATA_FOLDER


def rows_of(examples: SparseExamples) -> list[xc_files.Row]:
    rows = []
    for i in range(examples.num_examples):
        features = slice(*examples.feature_splits[i : i + 2])
        labels = slice(*examples.label_splits[i : i + 2])
        rows.append(
            (
                examples.label_ids[labels].tolist(),
                dict(
                    zip(
                        examples.feature_ids[features].tolist(),
                        examples.feature_values[features].tolist(),
                        strict=True,
                    )
                ),
            )
        )
    return rows


def as_read(rows: list[xc_files.Row]) -> list[xc_files.Row]:
    """Rows as the reader gives them: float32 values, features sorted."""
    return [
        (labels, {i: float(np.float32(v)) for i, v in sorted(features.items())})
        for labels, features in rows
    ]


@pytest.fixture
def only_fast(monkeypatch):
    def refuse(*args):
        raise AssertionError("the file was parsed line by line")

    monkeypatch.setattr(xc_format, "parse_slowly", refuse)


def read_with_both_parsers(path: Path, monkeypatch) -> list[xc_files.Row]:
    """The rows, read by array operations and line by line, which must agree."""
    fast = rows_of(read_xc(path))
    with monkeypatch.context() as patch:
        patch.setattr(xc_format, "parse_fast", lambda block, header: None)
        assert rows_of(read_xc(path)) == fast
    return fast


@pytest.mark.parametrize("suffix", [".txt", ".gz", ".xz", ".bz2"])
@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
def test_random_files_round_trip(tmp_path, monkeypatch, only_fast, suffix, block_bytes):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    for seed in range(20):
        rng = np.random.default_rng(seed)
        num_rows, num_features, num_labels = rng.integers([0, 1, 1], [60, 100_000, 2_000_000])
        rows = xc_files.draw(rng, num_rows, num_features, num_labels)
        path = xc_files.write(tmp_path / f"data{suffix}", rows, num_features, num_labels)

        examples = read_xc(path)

        assert rows_of(examples) == as_read(rows)
        assert (examples.num_features, examples.num_labels) == (num_features, num_labels)


def test_rows_without_labels_or_features(tmp_path, monkeypatch):
    path = tmp_path / "data.txt"
    path.write_text("5 10 10\n 3:1\n4,5\n \n3:2 4:1\n1 2:1\n")

    assert read_with_both_parsers(path, monkeypatch) == [
        ([], {3: 1.0}),
        ([4, 5], {}),
        ([], {}),
        ([], {3: 2.0, 4: 1.0}),
        ([1], {2: 1.0}),
    ]


def test_a_choice_of_what_becomes_of_rows_without_labels(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("5 10 10\n4,5\n 3:1\n \n0 3:2 4:1\n1 2:1\n")
    everything, labelled = read_xc(path), read_xc(path, rows_without_labels="drop")
    assert rows_of(labelled) == [rows_of(everything)[i] for i in (0, 3, 4)]
    assert len(read_xc(path, rows_without_labels="keep")) == len(everything) == 5
    message = r"data.txt:3: an example must have a label .* got none \('keep' reads .* 'drop' "
    with pytest.raises(ValueError, match=message):
        read_xc(path, rows_without_labels="error")
    with pytest.raises(ValueError, match="must be one of 'keep', 'drop', 'error'; got 'skip'"):
        read_xc(path, rows_without_labels="skip")
    path.write_text("1 10 10\n4,5\n")
    assert len(read_xc(path, rows_without_labels="error")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "2 10 10\n1,2 3:1 4:0.5\n7 9:-1\n",
        "2 10 10\n1,2 3:1 4:0.5\n7 9:-1",
        "2 10 10\r\n1,2 3:1 4:0.5\r\n7 9:-1\r\n",
        "2 10 10\r\n1,2 3:1 4:0.5\r\n7 9:-1",
        "  2  10\t10 \n1,2 \t 3:1   4:0.5 \n7 9:-1\t\n",
        "2 10 10\n1,2 4:.5 3:1.\n7 9:-1e0\n",
        "2 10 10\n01,2 3:+1 4:5E-1\n7 009:-1.000\n\n \n\r\n",
    ],
)
def test_spellings_of_the_same_file(tmp_path, monkeypatch, text):
    path = tmp_path / "data.txt"
    path.write_bytes(text.encode())

    assert read_with_both_parsers(path, monkeypatch) == [
        ([1, 2], {3: 1.0, 4: 0.5}),
        ([7], {9: -1.0}),
    ]


@pytest.mark.parametrize(  # and `REFUSED` in test_hostile_files.py
    ("text", "line", "message"),
    [
        ("2 10 10 10\n", 1, "the header must be three integers"),
        ("1.0 10 10\n1 2:3\n", 1, "the header must be three integers"),
        ("1,2 3:1\n", 1, "the header must be three integers"),
        (
            "1 3000000000 10\n",
            1,
            "the number of features must be at most 2147483647; got 3000000000",
        ),
        ("1 10 2147483648\n", 1, "the number of labels must be at most 2147483647; got 2147483648"),
        ("1 10 " + "9" * 5000 + "\n", 1, "the header must be three integers of at most 18 digits"),
        ("1 10 10\n" + "9" * 5000 + " 2:3\n", 2, r"a label must be an integer in \[0, 10\)"),
        ("2 10 10\n\n1 2:3\n", 2, "a line must hold an example; got a blank line"),
        ("2 10 10\n1 2:3\n10 2:3\n", 3, r"a label must be an integer in \[0, 10\); got '10'"),
        ("1 10 10\nx 2:3\n", 2, r"a label must be an integer in \[0, 10\); got 'x'"),
        ("1 10 10\n1,,2 2:3\n", 2, r"a label must be an integer in \[0, 10\); got ''"),
        ("1 10 10\n1, 2:3\n", 2, r"a label must be an integer in \[0, 10\); got ''"),
        ("1 10 10\n1, 3 2:3\n", 2, "a label must be an integer"),
        ("1 10 10\n 1,3 2:3\n", 2, "a feature must be written id:value; got '1,3'"),
        ("1 10 10\n1 2\n", 2, "a feature must be written id:value; got '2'"),
        ("1 10 10\n1 10:3\n", 2, r"a feature must be an integer in \[0, 10\); got '10'"),
        ("1 10 10\n1 2.0:3\n", 2, r"a feature must be an integer in \[0, 10\); got '2.0'"),
        ("1 10 10\n1 :3\n", 2, r"a feature must be an integer in \[0, 10\); got ''"),
        ("1 10 10\n1,2:3\n", 2, r"a feature must be an integer in \[0, 10\); got '1,2'"),
        ("1 10 10\n1 2: 3:1\n", 2, "the value of feature 2 must be a finite float32 number"),
        ("1 10 10\n1 2:x\n", 2, "the value of feature 2 must be .* got 'x'"),
        ("1 10 10\n1 2:1,2\n", 2, "the value of feature 2 must be .* got '1,2'"),
        ("1 10 10\n1 2:1.2.3\n", 2, "the value of feature 2 must be .* got '1.2.3'"),
        ("1 10 10\n1 2:1e\n", 2, "the value of feature 2 must be .* got '1e'"),
        ("1 10 10\n1 2:1_0\n", 2, "the value of feature 2 must be .* got '1_0'"),
        ("1 10 10\n1 2:" + "9" * 100 + "\n", 2, "got '9999.*9'..."),
        ("1 10 10\n1\x0b2:3\n", 2, "a feature must be an integer"),
    ],
)
def test_malformed_file_is_refused_with_line_and_rule(tmp_path, monkeypatch, text, line, message):
    path = tmp_path / "data.txt"
    path.write_bytes(text.encode())

    message = message.replace("'9999.*9'...", r"'9{57}\.\.\.'")
    with pytest.raises(ValueError, match=rf"data\.txt:{line}: .*{message}"):
        read_xc(path)
    monkeypatch.setattr(xc_format, "parse_fast", lambda block, header: None)
    with pytest.raises(ValueError, match=rf"data\.txt:{line}: .*{message}"):
        read_xc(path)


def test_line_number_is_right_after_many_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", 64)
    lines = ["1000 10 10"] + ["1 2:3"] * 1000
    lines[777] = "1 2:x"
    path = tmp_path / "data.txt"
    path.write_text("\n".join(lines))

    with pytest.raises(ValueError, match=r"data\.txt:778: .* got 'x'"):
        read_xc(path)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_xc(tmp_path / "nothing.txt")


def test_no_examples(tmp_path):
    path = tmp_path / "data.txt"
    path.write_text("0 3 4")

    examples = read_xc(path)

    assert examples.num_examples == 0
    np.testing.assert_array_equal(examples.label_counts(), [0, 0, 0, 0])


def test_progress(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", 64)
    path = tmp_path / "data.txt"
    path.write_text("100 10 10\n" + "1 2:3\n" * 100)
    reports = []

    read_xc(path, progress=lambda done, total: reports.append((done, total)))
    assert reports == sorted(reports)
    assert len(reports) > 5
    assert reports[-1] == (100, 100)
    assert capsys.readouterr().err == ""

    read_xc(path, progress=True)
    assert capsys.readouterr().err.endswith("\rreading data.txt: 100 of 100 examples\n")


def test_wordnet_file_as_a_plain_loop_reads_it(only_fast):
    path = DATA_FOLDER / "hyper" / "test.txt.xz"

    assert rows_of(read_xc(path)) == as_read(xc_files.read(path))
