# SPDX-License-Identifier: Apache-2.0
"""read_xc: reads a file in the format of the extreme classification repository.

Two parsers: one by NumPy, without a loop over lines, which knows what is wrong, not why; and one
line by line, which is the definition of the format and says which rule a line breaks.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tfx_largeout.arguments import choice_argument
from tfx_largeout.datasets.line_blocks import line_blocks, shorten
from tfx_largeout.datasets.sparse_examples import SparseExamples

Progress = Callable[[int, int], None]
_ROWS_WITHOUT_LABELS = ("keep", "drop", "error")

# Kinds of bytes. A separator's kind is its place in the two-separator code of a token, below.
_SPACE, _COMMA, _COLON, _NEWLINE, _DIGIT, _NUMERIC, _ILLEGAL = range(7)
# Roles of the (perhaps empty) token between two neighbouring separators.
_NOTHING, _LABEL, _FEATURE, _VALUE, _WRONG = range(5)
_INTEGER = re.compile(rb"0*([0-9]{1,18})")
# There is one way only to match some digits, so that long ones take linear time.
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_MAX_IDS = np.iinfo(np.int32).max


class Header(NamedTuple):
    """The numbers in the first line of a file."""

    num_examples: int
    num_features: int
    num_labels: int


class Rows(NamedTuple):
    """A block of parsed examples; lengths, not splits, so that blocks can be joined."""

    feature_lengths: np.ndarray
    feature_ids: np.ndarray
    feature_values: np.ndarray
    label_lengths: np.ndarray
    label_ids: np.ndarray

    @property
    def num_examples(self) -> int:
        return len(self.label_lengths)


def find_split(folder: str | os.PathLike[str], split: str) -> Path:
    """Returns the one file of a folder that is named like a split.

    Its name is `{split}.txt` or ends in `_{split}.txt`, `-{split}.txt` or `.{split}.txt`, in any
    case, and perhaps with `.gz` or `.xz` after it.

    Args:
        folder: Where to look; not in folders within it.
        split: Such as `train` or `test`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: There are several.
        OSError: The folder can't be read.
    """
    pattern = re.compile(rf"(.*[_.-])?{re.escape(split)}\.txt(\.gz|\.xz)?", re.IGNORECASE)
    found = sorted(path for path in Path(folder).iterdir() if pattern.fullmatch(path.name))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        kind = ValueError if found else FileNotFoundError
        raise kind(f"{folder} must hold one {split}.txt, .txt.gz or .txt.xz; got {names}")
    return found[0]


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
    with contextlib.closing(line_blocks(path)) as lines:
        _, first = next(lines, (1, b""))
        line, _, first = first.partition(b"\n")
        header = parse_header(path, line)
        blocks = []
        num_read = 0
        for number, block in itertools.chain([(2, first)] if first else [], lines):
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


def parse_header(path: str, line: bytes) -> Header:
    """Returns what the first line of a file promises; raises ValueError if it breaks a rule."""
    numbers = [_parse_integer(word) for word in re.split(rb"[ \t]+", line.strip(b" \t"))]
    counts = [number for number in numbers if number is not None]
    if len(numbers) != 3 or len(counts) != 3:
        raise ValueError(
            f"{path}:1: the header must be three integers of at most 18 digits, the numbers of "
            f"examples, features and labels; got {shorten(line)}"
        )
    header = Header(*counts)
    for what, count in (("features", header.num_features), ("labels", header.num_labels)):
        if count > _MAX_IDS:
            raise ValueError(
                f"{path}:1: the number of {what} must be at most {_MAX_IDS}; got {count}"
            )
    return header


def parse_slowly(path: str, number: int, block: bytes, header: Header) -> Rows:
    """Parses lines one by one; raises ValueError at the first that breaks a rule."""
    feature_lengths, label_lengths = [], []
    all_features: list[tuple[int, float]] = []
    all_labels: list[int] = []
    for offset, line in enumerate(block[:-1].split(b"\n")):
        try:
            labels, features = _parse_line(line, header)
        except ValueError as error:
            raise ValueError(f"{path}:{number + offset}: {error}") from None
        label_lengths.append(len(labels))
        all_labels += labels
        feature_lengths.append(len(features))
        all_features += sorted(features.items())
    return Rows(
        np.array(feature_lengths, np.int64),
        np.array([feature for feature, _ in all_features], np.int32),
        np.array([value for _, value in all_features], np.float32),
        np.array(label_lengths, np.int64),
        np.array(all_labels, np.int64),
    )


def _parse_line(line: bytes, header: Header) -> tuple[list[int], dict[int, float]]:
    """Labels and features of one line. This is the definition of the format."""
    if not line:
        raise ValueError("a line must hold an example; got a blank line")
    words = line.replace(b"\t", b" ").split(b" ")
    labels: dict[int, None] = {}  # a set in the order of the line
    if words[0] and b":" not in words[0]:
        for word in words.pop(0).split(b","):
            label = _parse_id("label", word, header.num_labels)
            if label in labels:
                raise ValueError(f"a label must not occur twice in a line; got {label} again")
            labels[label] = None
    features: dict[int, float] = {}
    for word in filter(None, words):
        key, colon, value = word.partition(b":")
        if not colon:
            raise ValueError(f"a feature must be written id:value; got {shorten(word)}")
        feature = _parse_id("feature", key, header.num_features)
        if feature in features:
            raise ValueError(f"a feature must not occur twice in a line; got {feature} again")
        features[feature] = _parse_value(feature, value)
    return list(labels), features


def _parse_id(what: str, word: bytes, limit: int) -> int:
    value = _parse_integer(word)
    if value is None or value >= limit:
        raise ValueError(f"a {what} must be an integer in [0, {limit}); got {shorten(word)}")
    return value


def _parse_integer(word: bytes) -> int | None:
    match = _INTEGER.fullmatch(word)
    return int(match[1]) if match else None


def _parse_value(feature: int, word: bytes) -> float:
    with np.errstate(over="ignore"):
        value = float(np.float32(float(word))) if _NUMBER.fullmatch(word) else math.nan
    if not math.isfinite(value):
        raise ValueError(
            f"the value of feature {feature} must be a finite float32 number; got {shorten(word)}"
        )
    return value


def _kinds() -> bytes:
    kinds = bytearray([_ILLEGAL] * 256)
    for kind, characters in enumerate((b" \t", b",", b":", b"\n", b"0123456789", b"+-.eE")):
        for character in characters:
            kinds[character] = kind
    return bytes(kinds)


_KINDS = _kinds()
# The grammar: role of a token by [is it empty, separator before it, separator after it].
_ROLES = np.full([2, 4, 4], _WRONG, np.uint8)
_ROLES[1, [_NEWLINE, _SPACE, _SPACE], [_SPACE, _SPACE, _NEWLINE]] = _NOTHING
_ROLES[0, [[_NEWLINE], [_COMMA]], [_COMMA, _SPACE, _NEWLINE]] = _LABEL
_ROLES[0, [_NEWLINE, _SPACE], _COLON] = _FEATURE
_ROLES[0, _COLON, [_SPACE, _NEWLINE]] = _VALUE
_BLANKED = bytes.maketrans(b"\t,:\n", b"    ")


def parse_fast(block: bytes, header: Header) -> Rows | None:
    """Parses lines with array operations; None if anything is wrong with any of them."""
    kinds = np.frombuffer(block.translate(_KINDS), np.uint8)
    if kinds.max(initial=0) == _ILLEGAL:
        return None
    ends = np.flatnonzero(kinds < _DIGIT)
    after = kinds[ends]
    before = np.roll(after, 1)  # the block ends with a newline
    starts = np.roll(ends, 1) + 1
    starts[:1] = 0
    roles = _ROLES.ravel()[(starts == ends) * np.uint8(16) + before * np.uint8(4) + after]
    if roles.max(initial=0) == _WRONG:
        return None
    is_label, is_feature = roles == _LABEL, roles == _FEATURE
    numeric_until = np.cumsum(kinds == _NUMERIC, dtype=np.int32)[ends]
    is_numeric = np.diff(numeric_until, prepend=np.int32(0)) > 0
    if np.any(is_numeric & (is_label | is_feature)):
        return None
    token_roles = roles[roles != _NOTHING]
    try:
        with warnings.catch_warnings():
            # With which NumPy before 2.3 gives the numbers up to one that is none.
            warnings.simplefilter("error", DeprecationWarning)
            # The leading 0 is for a block without any number, which NumPy refuses.
            numbers = np.fromstring(b"0 " + block.translate(_BLANKED), np.float64, sep=" ")[1:]
    except (ValueError, DeprecationWarning):
        return None
    if len(numbers) != len(token_roles):
        return None
    is_line_end = after == _NEWLINE
    label_lengths = np.diff(np.cumsum(is_label)[is_line_end], prepend=0)
    feature_lengths = np.diff(np.cumsum(is_feature)[is_line_end], prepend=0)
    labels = numbers[token_roles == _LABEL]
    features = numbers[token_roles == _FEATURE]
    with np.errstate(over="ignore"):
        values = numbers[token_roles == _VALUE].astype(np.float32)
    if (
        labels.max(initial=-1) >= header.num_labels
        or features.max(initial=-1) >= header.num_features
        or not np.isfinite(values).all()
    ):
        return None
    return _checked_rows(
        Rows(
            feature_lengths,
            features.astype(np.int32),
            values,
            label_lengths,
            labels.astype(np.int64),
        ),
        header,
    )


def _checked_rows(rows: Rows, header: Header) -> Rows | None:
    """The rows with their features sorted; None if an id occurs twice in a row."""
    row_of_label = np.repeat(np.arange(rows.num_examples), rows.label_lengths)
    label_keys = np.sort(row_of_label * header.num_labels + rows.label_ids)
    if np.any(label_keys[1:] == label_keys[:-1]):
        return None
    row_of_feature = np.repeat(np.arange(rows.num_examples), rows.feature_lengths)
    keys = row_of_feature * header.num_features + rows.feature_ids
    if np.all(keys[1:] > keys[:-1]):
        return rows
    order = np.argsort(keys)
    keys = keys[order]
    if np.any(keys[1:] == keys[:-1]):
        return None
    return rows._replace(
        feature_ids=rows.feature_ids[order], feature_values=rows.feature_values[order]
    )
