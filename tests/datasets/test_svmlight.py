# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip

import numpy as np
import pytest
from datasets.test_xc_format import as_read, rows_of
from oracles import xc_files

from tfx_largeout.datasets import line_blocks, read_svmlight, xc_format

TEXT = b"""\
# what made it
1,2 1:0.5 4:1 # a comment
 3:2
3
#
0 1:1 2:-1\t
"""
ROWS = [([1, 2], {1: 0.5, 4: 1.0}), ([], {3: 2.0}), ([3], {}), ([0], {1: 1.0, 2: -1.0})]


def one_less(rows, features=1, labels=0):
    return [
        ([i - labels for i in ids], {i - features: v for i, v in entries.items()})
        for ids, entries in rows
    ]


@pytest.mark.parametrize("end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_reads(tmp_path, monkeypatch, end, block_bytes):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "data.svm"
    for content in (TEXT, b"\xef\xbb\xbf" + TEXT, gzip.compress(TEXT), TEXT + b"\n\n", TEXT[:-2]):
        path.write_bytes(content.replace(b"\n", end) if content[:1] != b"\x1f" else content)
        examples = read_svmlight(path, zero_based=True)
        assert rows_of(examples) == ROWS
        assert (examples.num_features, examples.num_labels) == (5, 4)
        examples = read_svmlight(path, zero_based=False, num_features=9, num_labels=8)
        assert rows_of(examples) == one_less(ROWS)
        assert (examples.num_features, examples.num_labels) == (9, 8)


def test_both_parsers_agree_with_a_plain_loop(tmp_path, monkeypatch):
    for seed in range(5):
        rng = np.random.default_rng(seed)
        rows = xc_files.draw(rng, 40, 1000, 500)
        path = tmp_path / "data.svm"
        path.write_text("\n".join(xc_files.lines(rows, 1000, 500)[1:]) + "\n")
        assert rows_of(read_svmlight(path, zero_based=True)) == as_read(rows)
        with monkeypatch.context() as patch:
            patch.setattr(xc_format, "parse_fast", lambda block, grammar: None)
            assert rows_of(read_svmlight(path, zero_based=True)) == as_read(rows)


def test_where_ids_begin(tmp_path):
    path = tmp_path / "data.svm"
    path.write_text("1 0:1 3:1\n")  # 0 occurs
    assert rows_of(read_svmlight(path)) == [([1], {0: 1.0, 3: 1.0})]
    assert read_svmlight(path).num_features == 4
    path.write_text("1 2:1 5:1\n")  # the last of five occurs
    assert rows_of(read_svmlight(path, num_features=5)) == [([1], {1: 1.0, 4: 1.0})]
    assert rows_of(read_svmlight(path, zero_based=False)) == [([1], {1: 1.0, 4: 1.0})]
    for options in ({}, {"num_features": 6}):  # both may be
        with pytest.raises(ValueError, match=r"data\.svm: zero_based must be .* ids from 2 to 5"):
            read_svmlight(path, **options)
    path.write_text("1\n2\n")
    assert read_svmlight(path).num_features == 0
    path.write_text("1,3 1:1\n")
    found = read_svmlight(path, zero_based=False, zero_based_labels=False)
    assert (rows_of(found), found.num_labels) == ([([0, 2], {0: 1.0})], 3)


REFUSED = {
    "both first and last id": (b"0 0:1\n1 5:1\n", {"num_features": 5}, r":2: .*\[0, 5\); got '5'"),
    "beyond both": (b"0 1:1\n1 6:1\n", {"num_features": 5}, r":2: a feature must be .* got '6'"),
    "0 of ids from 1": (b"0 0:1\n", {"zero_based": False}, r":1: .*\[1, 2147483648\); got '0'"),
    "label 0 of ids from 1": (b"0 0:1\n", {"zero_based_labels": False}, r":1: .* got '0'"),
    "label too great": (b"3 0:1\n4 0:1\n", {"num_labels": 4}, r":2: a label must .*; got '4'"),
    "label of a class and none": (b"+1 0:1\n", {}, r":1: a label must be an integer"),
    "label -1": (b"-1 0:1\n", {}, r":1: a label must be an integer"),
    "label 1.5": (b"1.5 0:1\n", {}, r":1: a label must be an integer"),
    "label twice": (b"1,1 0:1\n", {}, r":1: a label must not occur twice in a line; got 1 again"),
    "empty": (b"", {}, ":1: a file must have at least one example; got none"),
    "comments alone": (b"# a\n# b\n", {}, ":1: a file must have at least one example; got none"),
    "query": (b"1 qid:3 0:1\n", {}, r":1: a feature must be an integer .*; got 'qid'"),
    "feature twice": (b"1 0:1\n1 2:1 2:1\n", {"zero_based": True}, r":2: a feature .*; got 2"),
    "nan": (b"# c\n1 0:nan\n", {}, r":2: the value of feature 0 must be a finite"),
    "nan of ids from 1": (b"1 7:nan\n", {"zero_based": False}, ":1: the value of feature 7 must"),
    "blank line": (b"1 0:1\n\n1 0:1\n", {}, r":2: a line must hold an example; got a blank"),
    "blank line first": (b"\n1 0:1\n", {}, r":1: a line must hold an example; got a blank"),
    "blank lines": (b"1 0:1\n#\n\n\n1 0:1\n", {}, r":3: a line must hold an example"),
    "id without a value": (b"1 0\n", {}, r":1: a feature must be written id:value; got '0'"),
    "cut short": (gzip.compress(TEXT)[:-9], {}, r":\d+: a compressed file must be whole"),
    "no label": (b"1 0:1\n 0:1\n", {"rows_without_labels": "error"}, r":2: an example must have"),
    "a word": (b"", {"zero_based": "auto"}, "zero_based must be True or False; got 'auto'"),
    "a number for a boolean": (b"", {"zero_based": 0}, "zero_based must be True or .*; got 0"),
    "labels from None": (
        b"",
        {"zero_based_labels": None},
        "zero_based_labels must be .*; got None",
    ),
    "a number": (b"", {"num_features": 1.5}, "num_features must be an integer of .*; got 1.5"),
}


@pytest.mark.parametrize("name", list(REFUSED))
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_refused(tmp_path, monkeypatch, name, block_bytes):
    content, options, message = REFUSED[name]
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "data.svm"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=message):
        read_svmlight(path, **options)


def test_progress_counts_bytes(tmp_path, capsys):
    path = tmp_path / "data.svm"
    path.write_bytes(TEXT)
    read_svmlight(path, zero_based=True, progress=True)
    assert f"reading data.svm: {len(TEXT)} of {len(TEXT)} bytes\n" in capsys.readouterr().err
