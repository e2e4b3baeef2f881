# SPDX-License-Identifier: Apache-2.0
"""read_xc: reads a file in the format of the extreme classification repository."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np

from tfx_largeout.arguments import choice_argument
from tfx_largeout.datasets.line_blocks import LineBlocks, open_unpacked, shorten
from tfx_largeout.datasets.sparse_examples import SparseExamples
from tfx_largeout.datasets.xc_fast_parser import parse_fast
from tfx_largeout.datasets.xc_rows import Header, Rows
from tfx_largeout.datasets.xc_slow_parser import parse_header, parse_slowly

Progress = Callable[[int, int], None]
_ROWS_WITHOUT_LABELS = ("keep", "drop", "error")


def read_xc(
    path: str | os.PathLike[str],
    *,
    progress: bool | Progress = False,
    rows_without_labels: str = "keep",
) -> SparseExamples:
    """Reads examples with sparse features and label sets from a text file.

    The first line is `N D L`: numbers of examples, features and labels. Each further line is one
    example, `l1,l2,... f1:v1 f2:v2 ...`, ids from 0. A line without labels starts with a space
    or with its first feature. Blocks of lines are parsed by NumPy, without a loop over lines.

    Allowed: labels and features in any order (features are sorted), no labels, no features,
    several spaces or tabs, Windows line ends, no line end after the last line, blank lines after
    the last example. Refused: everything else, and among it blank lines between examples, an
    id that occurs twice in a line, values that are not finite in float32, a line of more than
    16 MiB, an xz file that needs more than 256 MiB to unpack.

    Cost: O(file size) time; the arrays of the result twice in memory at the end, and up to 50 times
    the length of the longest line. What the header promises takes no memory.

    Args:
        path: A plain, gzip or xz file; its first bytes tell which.
        progress: True for a line on standard error that counts examples, or a function that is
            called with (examples read so far, N) after each block. Default: silent.
        rows_without_labels: What becomes of examples that have no label. `"keep"` (default): they
            are read, so that row i is line i + 2; losses and metrics leave them out. `"drop"`:
            they are not among the examples (once all are read, which takes the memory of the
            result once more). `"error"`: they are refused.

    Returns:
        The examples, in the order of the file.

    Raises:
        ValueError: The file is malformed, or has no label in a line where that is an error. The
            message starts with `path:line:` and says the rule and what was found.
            `rows_without_labels` is none of the three.
        FileNotFoundError: There is no such file.

    Deviations:
        The repository's readers take the numbers as they come; this one checks each of them.

    References:
        Bhatia, Dahiya, Jain, Mittal, Prabhu, Varma 2016, The extreme classification repository.
    """
    choice_argument("rows_without_labels", rows_without_labels, _ROWS_WITHOUT_LABELS)
    path = os.fspath(path)
    report = _print_progress(path) if progress is True else (progress or None)
    with open_unpacked(path) as stream:
        lines = LineBlocks(path, stream)
        header = parse_header(path, lines.header())
        blocks = []
        num_read = 0
        for number, block in lines:
            wanted = header.num_examples - num_read
            rows = _parse_block(path, number, block, wanted, header)
            if rows_without_labels == "error":
                _refuse_without_labels(path, number, rows)
            blocks.append(rows)
            num_read += rows.num_examples
            if report:
                report(num_read, header.num_examples)
    if num_read < header.num_examples:
        raise ValueError(
            f"{path}:{1 + num_read}: the header promises {header.num_examples} examples; "
            f"got {num_read} before the end of the file"
        )
    examples = _concatenate(blocks, header)
    return examples.with_labels() if rows_without_labels == "drop" else examples


def _refuse_without_labels(path: str, number: int, rows: Rows) -> None:
    empty = rows.label_lengths == 0
    if empty.any():
        raise ValueError(
            f"{path}:{number + int(empty.argmax())}: an example must have a label with "
            "rows_without_labels='error'; got none ('keep' reads it, and losses and metrics leave "
            "it out; 'drop' leaves it out of the examples)"
        )


def _parse_block(path: str, number: int, block: bytes, wanted: int, header: Header) -> Rows:
    """Parses whole lines, the first of which is line `number`, as at most `wanted` examples."""
    if block.count(b"\n") > wanted:
        block = _drop_blank_tail(path, number, block, wanted, header)
    rows = parse_fast(block, header)
    return parse_slowly(path, number, block, header) if rows is None else rows


def _drop_blank_tail(path: str, number: int, block: bytes, wanted: int, header: Header) -> bytes:
    lines = block.split(b"\n")
    for extra, line in enumerate(lines[wanted:]):
        if line.strip():
            raise ValueError(
                f"{path}:{number + wanted + extra}: the header promises {header.num_examples} "
                f"examples; got more: {shorten(line)}"
            )
    return b"".join(line + b"\n" for line in lines[:wanted])


def _concatenate(blocks: list[Rows], header: Header) -> SparseExamples:
    def join(name: str) -> np.ndarray:
        arrays = [getattr(block, name) for block in blocks]
        return np.concatenate(arrays) if arrays else np.zeros([0], np.int64)

    return SparseExamples(
        feature_splits=np.concatenate([[0], np.cumsum(join("feature_lengths"))]),
        feature_ids=join("feature_ids"),
        feature_values=join("feature_values"),
        label_splits=np.concatenate([[0], np.cumsum(join("label_lengths"))]),
        label_ids=join("label_ids"),
        num_features=header.num_features,
        num_labels=header.num_labels,
    )


def _print_progress(path: str) -> Progress:
    """A function that rewrites one line on standard error, at most four times a second."""
    name = os.path.basename(path)
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if done == total or now - last >= 0.25:
            last = now
            end = "\n" if done == total else ""
            sys.stderr.write(f"\rreading {name}: {done:,} of {total:,} examples{end}")
            sys.stderr.flush()

    return report
