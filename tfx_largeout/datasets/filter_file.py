# SPDX-License-Identifier: Apache-2.0
"""read_filter: pairs of examples and labels that metrics leave out."""

from __future__ import annotations

import os
import re
from contextlib import closing

import numpy as np

from tfx_largeout.arguments import integer_argument
from tfx_largeout.datasets.line_blocks import line_blocks, shorten

_LINE = re.compile(rb"[ \t]*0*([0-9]{1,18})[ \t]+0*([0-9]{1,18})[ \t]*")
_NO_NUMBERS = re.compile(rb"[^0-9 \t\n]")


def read_filter(
    path: str | os.PathLike[str],
    *,
    num_examples: int | None = None,
    num_labels: int | None = None,
) -> np.ndarray:
    """Reads a filter file of the extreme classification repository: lines `row label`.

    These pairs (such as an article and itself, if labels are articles) count neither as labels nor
    as predictions. Rows are numbered as in the data file, from 0: read it with
    `rows_without_labels="keep"`.

    Cost: O(file size) time; 16 bytes per pair, twice.

    Args:
        path: A plain, gzip, xz or bzip2 file. It may be empty.
        num_examples: Rows must be below it. Default: any.
        num_labels: Labels must be below it. Default: any.

    Returns:
        `[pairs, 2]` int64: rows and labels, in rising order, each pair once.

    Raises:
        ValueError: A line is not a pair of integers, or one is out of range. The message starts
            with `path:line:`.
        FileNotFoundError: The file does not exist.
    """
    limits = [2**63 - 1 if n is None else n for n in (num_examples, num_labels)]
    for name, value in (("num_examples", num_examples), ("num_labels", num_labels)):
        if value is not None:
            integer_argument(name, value, at_least=0)
    path = os.fspath(path)
    blocks, blank = [np.zeros([0, 2], np.int64)], None
    with closing(line_blocks(path)) as lines:
        for number, block in lines:
            filled = block.rstrip(b" \t\n")
            if filled:
                if blank is not None:
                    raise _refusal(path, blank, b"")
                blocks.append(_pairs(path, number, filled, limits))
            rest = block.count(b"\n") - filled.count(b"\n") - bool(filled)
            if rest and blank is None:
                blank = number + filled.count(b"\n") + bool(filled)
    return np.unique(np.concatenate(blocks), axis=0)


def _pairs(path: str, number: int, block: bytes, limits: list[int]) -> np.ndarray:
    """Parses lines by NumPy, and one by one after an error."""
    lines = block.split(b"\n")
    if not _NO_NUMBERS.search(block) and all(len(line.split()) == 2 for line in lines):
        words = np.array(block.split())
        if words.dtype.itemsize <= 18:
            pairs = words.astype(np.int64).reshape(-1, 2)
            if (pairs < limits).all():
                return pairs
    found = []
    for offset, line in enumerate(lines):
        match = _LINE.fullmatch(line)
        if not match:
            raise _refusal(path, number + offset, line)
        for what, word, limit in zip(("row", "label"), match.groups(), limits, strict=True):
            if int(word) >= limit:
                raise ValueError(
                    f"{path}:{number + offset}: a {what} must be an integer in [0, {limit}); "
                    f"got {shorten(word)}"
                )
        found.append([int(word) for word in match.groups()])
    return np.array(found, np.int64)


def _refusal(path: str, number: int, line: bytes) -> ValueError:
    return ValueError(
        f"{path}:{number}: a line must have two integers from 0 on, of at most 18 digits, a row "
        f"and a label; got {shorten(line)}"
    )
