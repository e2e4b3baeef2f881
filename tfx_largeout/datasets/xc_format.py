# SPDX-License-Identifier: Apache-2.0
"""Text files with a line per example: labels, entries `id:value`, or both.

There are two parsers: one by NumPy, without a loop over lines, which only detects errors; and one
line by line, which defines the format and reports which rule a line breaks.
"""

from __future__ import annotations

import itertools
import math
import re
import warnings
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tfx_largeout.datasets.line_blocks import line_blocks, shorten
from tfx_largeout.datasets.sparse_rows import VALUE_RULES, SparseRows, wrong_values

# Kinds of bytes. The kind of a separator is its digit in the two-separator code of a token, below.
_SPACE, _COMMA, _COLON, _NEWLINE, _DIGIT, _NUMERIC, _ILLEGAL = range(7)
# Roles of the (perhaps empty) token between two neighbouring separators.
_NOTHING, _LABEL, _ENTRY, _VALUE, _WRONG = range(5)
_INTEGER = re.compile(rb"0*([0-9]{1,18})")
# Digits match in only one way, so that long numbers take linear time.
_NUMBER = re.compile(rb"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?")
_COMMENT = re.compile(rb"[ \t]*#[^\n]*")
_COUNTS = {2: "two", 3: "three"}
MAX_IDS = int(np.iinfo(np.int32).max)


class Grammar(NamedTuple):
    """The format of the lines of a file, and the allowed ids.

    Attributes:
        width: The number of ids for entries `id:value`.
        num_labels: The number of ids for labels, which come before the entries, separated by
            commas; None if a line has only entries, and may be blank.
        entry: The kind of an entry: a feature or a label.
        value_rule: One of `VALUE_RULES`.
        first_id, first_label: The smallest id in the file, which becomes 0.
        comments: Whether `#` begins a comment.
    """

    width: int
    num_labels: int | None = None
    entry: str = "feature"
    value_rule: str = "finite"
    first_id: int = 0
    first_label: int = 0
    comments: bool = False


class Rows(NamedTuple):
    """A block of parsed examples."""

    entries: SparseRows
    labels: SparseRows  # before the entries


class TextFile:
    """A file with a header, and a line per example. Memory does not depend on the header.

    Args:
        path: A file, plain or compressed as in `line_blocks`.
        names: The names of the numbers in the header; examples are the first.

    Attributes:
        counts: The numbers of the header.
    """

    def __init__(self, path: str, names: tuple[str, ...]) -> None:
        self._path = path
        self._lines = line_blocks(path)
        _, first = next(self._lines, (1, b""))
        line, _, self._first = first.partition(b"\n")
        self.counts = parse_header(path, line, names)

    def close(self) -> None:
        """Closes the file."""
        self._lines.close()

    def blocks(self, grammar: Grammar) -> Iterator[tuple[int, Rows]]:
        """Yields (number of the first line, examples)."""
        num_examples, num_read = self.counts[0], 0
        for number, block in itertools.chain(
            [(2, self._first)] if self._first else [], self._lines
        ):
            wanted = num_examples - num_read
            if block.count(b"\n") > wanted:
                block = self._drop_blank_tail(number, block, wanted)
            rows = parse(self._path, number, block, grammar)
            num_read += len(rows.entries)
            yield number, rows
        if num_read < num_examples:
            raise ValueError(
                f"{self._path}:{1 + num_read}: the header promises {num_examples} examples; "
                f"got {num_read} before the end of the file"
            )

    def _drop_blank_tail(self, number: int, block: bytes, wanted: int) -> bytes:
        lines = block.split(b"\n")
        for extra, line in enumerate(lines[wanted:]):
            if line.strip():
                raise ValueError(
                    f"{self._path}:{number + wanted + extra}: the header promises "
                    f"{self.counts[0]} examples; got more: {shorten(line)}"
                )
        return b"".join(line + b"\n" for line in lines[:wanted])


def parse_header(path: str, line: bytes, names: tuple[str, ...]) -> list[int]:
    """Returns the numbers in the first line of a file; raises ValueError if it is invalid."""
    numbers = [_parse_integer(word) for word in re.split(rb"[ \t]+", line.strip(b" \t"))]
    counts = [number for number in numbers if number is not None]
    if len(numbers) != len(names) or len(counts) != len(names):
        hint = ""
        if len(numbers) == len(counts) and len(counts) in _COUNTS:
            hint = (
                "; that of features alone has two: read_xc(features, labels), or num_labels="
                if len(counts) == 2
                else "; that of features and labels in one file has three: read_xc(path)"
            )
        listed = ", ".join(names[:-1]) + " and " + names[-1]
        raise ValueError(
            f"{path}:1: the header must be {_COUNTS[len(names)]} integers of at most 18 digits, "
            f"the numbers of {listed}; got {shorten(line)}{hint}"
        )
    for what, count in zip(names[1:], counts[1:], strict=True):
        if count > MAX_IDS:
            raise ValueError(
                f"{path}:1: the number of {what} must be at most {MAX_IDS}; got {count}"
            )
    return counts


def parse(path: str, number: int, block: bytes, grammar: Grammar) -> Rows:
    """Parses whole lines, from line `number` on."""
    rows = parse_fast(block, grammar)
    return parse_slowly(path, number, block, grammar) if rows is None else rows


def parse_slowly(path: str, number: int, block: bytes, grammar: Grammar) -> Rows:
    """Parses lines one by one; raises ValueError at the first that breaks a rule."""
    entry_lengths, label_lengths = [], []
    all_entries: list[tuple[int, float]] = []
    all_labels: list[int] = []
    for offset, line in enumerate(block[:-1].split(b"\n") if block else []):
        if grammar.comments and b"#" in line:
            line = _COMMENT.sub(b"", line)
            if not line:
                continue
        try:
            labels, entries = _parse_line(line, grammar)
        except ValueError as error:
            raise ValueError(f"{path}:{number + offset}: {error}") from None
        label_lengths.append(len(labels))
        all_labels += labels
        entry_lengths.append(len(entries))
        all_entries += sorted(entries.items())
    return Rows(
        SparseRows(
            np.array(entry_lengths, np.int64),
            np.array([id for id, _ in all_entries], np.int32),
            np.array([value for _, value in all_entries], np.float32),
        ),
        SparseRows(np.array(label_lengths, np.int64), np.array(all_labels, np.int64), None),
    )


def _parse_line(line: bytes, grammar: Grammar) -> tuple[list[int], dict[int, float]]:
    """Labels and entries of one line. This is the definition of the format."""
    words = line.replace(b"\t", b" ").split(b" ")
    labels: dict[int, None] = {}  # a set in the order of the line
    if grammar.num_labels is not None:
        if not line:
            raise ValueError("a line must hold an example; got a blank line")
        if words[0] and b":" not in words[0]:
            for word in words.pop(0).split(b","):
                label = _parse_id("label", word, grammar.first_label, grammar.num_labels)
                if label in labels:
                    raise ValueError(
                        f"a label must not occur twice in a line; got {shorten_id(word)} again"
                    )
                labels[label] = None
    entries: dict[int, float] = {}
    what = grammar.entry
    for word in filter(None, words):
        key, colon, value = word.partition(b":")
        if not colon:
            raise ValueError(f"a {what} must be written id:value; got {shorten(word)}")
        id = _parse_id(what, key, grammar.first_id, grammar.width)
        if id in entries:
            raise ValueError(
                f"a {what} must not occur twice in a line; got {shorten_id(key)} again"
            )
        entries[id] = _parse_value(f"{what} {id + grammar.first_id}", value, grammar.value_rule)
    return list(labels), entries


def shorten_id(word: bytes) -> str:
    """Returns an id in its correct form."""
    return str(_parse_integer(word))


def _parse_id(what: str, word: bytes, first: int, number: int) -> int:
    value = _parse_integer(word)
    if value is None or not first <= value < first + number:
        raise ValueError(
            f"a {what} must be an integer in [{first}, {first + number}); got {shorten(word)}"
        )
    return value - first


def _parse_integer(word: bytes) -> int | None:
    match = _INTEGER.fullmatch(word)
    return int(match[1]) if match else None


def _parse_value(what: str, word: bytes, rule: str) -> float:
    with np.errstate(over="ignore"):
        value = np.float32(float(word)) if _NUMBER.fullmatch(word) else np.float32(math.nan)
    if not np.isfinite(value) or wrong_values(value, rule):
        hint = (
            " (labels that have values are read from a file of their own)" if b"," in word else ""
        )
        raise ValueError(
            f"the value of {what} must be {VALUE_RULES[rule]}; got {shorten(word)}{hint}"
        )
    return float(value)


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
_ROLES[0, [_NEWLINE, _SPACE], _COLON] = _ENTRY
_ROLES[0, _COLON, [_SPACE, _NEWLINE]] = _VALUE
_ROLES_OF_ENTRIES = _ROLES.copy()
_ROLES_OF_ENTRIES[1, _NEWLINE, _NEWLINE] = _NOTHING
_ROLES[0, [[_NEWLINE], [_COMMA]], [_COMMA, _SPACE, _NEWLINE]] = _LABEL
_BLANKED = bytes.maketrans(b"\t,:\n", b"    ")


def parse_fast(block: bytes, grammar: Grammar) -> Rows | None:
    """Parses lines with array operations; None if any line is invalid."""
    if grammar.comments and b"#" in block:
        block = _COMMENT.sub(b"", block)
    kinds = np.frombuffer(block.translate(_KINDS), np.uint8)
    if kinds.max(initial=0) == _ILLEGAL:
        return None
    ends = np.flatnonzero(kinds < _DIGIT)
    after = kinds[ends]
    before = np.roll(after, 1)  # the block ends with a newline
    starts = np.roll(ends, 1) + 1
    starts[:1] = 0
    table = _ROLES_OF_ENTRIES if grammar.num_labels is None else _ROLES
    roles = table.ravel()[(starts == ends) * np.uint8(16) + before * np.uint8(4) + after]
    if roles.max(initial=0) == _WRONG:
        return None
    is_label, is_entry = roles == _LABEL, roles == _ENTRY
    numeric_until = np.cumsum(kinds == _NUMERIC, dtype=np.int32)[ends]
    is_numeric = np.diff(numeric_until, prepend=np.int32(0)) > 0
    if np.any(is_numeric & (is_label | is_entry)):
        return None
    token_roles = roles[roles != _NOTHING]
    try:
        with warnings.catch_warnings():
            # With it, NumPy before 2.3 returns the numbers up to an invalid one.
            warnings.simplefilter("error", DeprecationWarning)
            # The leading 0 is for a block without numbers, for which NumPy raises.
            numbers = np.fromstring(b"0 " + block.translate(_BLANKED), np.float64, sep=" ")[1:]
    except (ValueError, DeprecationWarning):
        return None
    if len(numbers) != len(token_roles):
        return None
    is_line_end = after == _NEWLINE
    label_lengths = np.diff(np.cumsum(is_label)[is_line_end], prepend=0)
    entry_lengths = np.diff(np.cumsum(is_entry)[is_line_end], prepend=0)
    labels = numbers[token_roles == _LABEL] - grammar.first_label
    ids = numbers[token_roles == _ENTRY] - grammar.first_id
    with np.errstate(over="ignore"):
        values = numbers[token_roles == _VALUE].astype(np.float32)
    if not _are_below(labels, grammar.num_labels or 0) or not _are_below(ids, grammar.width):
        return None
    if wrong_values(values, grammar.value_rule).any():
        return None
    entries = SparseRows(entry_lengths, ids.astype(np.int32), values).in_order(grammar.width)
    kept = SparseRows(label_lengths, labels.astype(np.int64), None)
    if isinstance(entries, int) or isinstance(kept.in_order(grammar.num_labels or 1), int):
        return None
    return Rows(entries, kept)


def _are_below(ids: np.ndarray, limit: int) -> bool:
    return ids.min(initial=0) >= 0 and ids.max(initial=-1) < limit
