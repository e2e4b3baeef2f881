# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import gzip

import numpy as np
import pytest

from tfx_largeout.datasets import line_blocks, read_filter


@pytest.mark.all_cases
@pytest.mark.parametrize("block_bytes", [1, 7, 1 << 20])
def test_reads_pairs(tmp_path, monkeypatch, block_bytes):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "filter.txt"
    text = b"3 10\n0 7\n3\t 9 \n 03 010\n"
    for content in (
        text,
        text[:-1],
        text.replace(b"\n", b"\r\n"),
        b"\xef\xbb\xbf" + text,
        gzip.compress(text, mtime=0),
        text + b"\n \n\n",
    ):
        path.write_bytes(content)
        pairs = read_filter(path, num_examples=4, num_labels=11)
        assert pairs.tolist() == [[0, 7], [3, 9], [3, 10]]
        assert pairs.dtype == np.int64
        np.testing.assert_array_equal(read_filter(path), pairs)
    path.write_bytes(b"")
    assert read_filter(path).shape == (0, 2)


def test_as_numpy_reads_many(tmp_path):
    rng = np.random.default_rng(0)
    pairs = rng.integers(0, [2_000_000, 700_000], (200_000, 2))
    path = tmp_path / "filter.txt"
    path.write_text("\n".join(f"{row} {label}" for row, label in pairs))
    np.testing.assert_array_equal(read_filter(path), np.unique(pairs, axis=0))


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"1 2\n3\n", r":2: a line must have two integers .*; got '3'"),
        (b"1 2\n3 4 5\n", r":2: a line must have two integers .*; got '3 4 5'"),
        (b"1 2\n\n3 4\n", r":2: a line must have two integers .*; got ''"),
        (b"\n3 4\n", r":1: a line must have two integers .*; got ''"),
        (b"1 2\n3 -4\n", r":2: a line must have two integers .*; got '3 -4'"),
        (b"1 2\n3 4.0\n", r":2: a line must have two integers .*; got '3 4.0'"),
        (b"1 nan\n", r":1: a line must have two integers .*; got '1 nan'"),
        (b"1,2\n", r":1: a line must have two integers .*; got '1,2'"),
        (b"1 " + b"9" * 19 + b"\n", r":1: a line must have two integers"),
        (b"1 2\n5 2\n", r":2: a row must be an integer in \[0, 5\); got '5'"),
        (b"1 2\n3 9\n", r":2: a label must be an integer in \[0, 9\); got '9'"),
        (gzip.compress(b"1 2\n", mtime=0)[:-3], r":\d: a compressed file must be whole"),
    ],
)
@pytest.mark.parametrize("block_bytes", [1, 1 << 20])
def test_refused(tmp_path, monkeypatch, text, message, block_bytes):
    monkeypatch.setattr(line_blocks, "_BLOCK_BYTES", block_bytes)
    path = tmp_path / "filter.txt"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=rf"filter\.txt{message}"):
        read_filter(path, num_examples=5, num_labels=9)


def test_refused_arguments(tmp_path):
    path = tmp_path / "filter.txt"
    path.write_text("1 2\n")
    with pytest.raises(ValueError, match=r"num_labels must be an integer of at least 0; got 1\.5"):
        read_filter(path, num_labels=1.5)
    with pytest.raises(FileNotFoundError, match="nothing"):
        read_filter(tmp_path / "nothing")
