# SPDX-License-Identifier: Apache-2.0
"""Readers of data sets in files: `read_xc`, `read_svmlight`, and functions to find files."""

from __future__ import annotations

import contextlib
import functools
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tfx_largeout.arguments import choice_argument, flag_argument, integer_argument
from tfx_largeout.datasets.csr_format import NpzFile
from tfx_largeout.datasets.line_blocks import line_blocks
from tfx_largeout.datasets.row_arrays import InMemory, OnDisk, cached
from tfx_largeout.datasets.sparse_examples import SparseExamples
from tfx_largeout.datasets.sparse_rows import LABEL_VALUES, SparseRows
from tfx_largeout.datasets.xc_format import MAX_IDS, Grammar, TextFile, parse

Progress = Callable[[int, int], None]
_ROWS_WITHOUT_LABELS = ("keep", "drop", "error")
_SHORT = {"train": "trn", "test": "tst"}
_ENDINGS = r"(\.gz|\.xz|\.bz2)?"


def find_split(folder: str | os.PathLike[str], split: str) -> Path:
    """Returns the only file of a folder with the name of a split.

    Its name is `{split}.txt` or ends in `_{split}.txt`, `-{split}.txt` or `.{split}.txt`, in any
    case, optionally followed by `.gz`, `.xz` or `.bz2`.

    Args:
        folder: The folder to search, without subfolders.
        split: The split, such as `train` or `test`.

    Raises:
        FileNotFoundError: There is no such file in the folder.
        ValueError: There are several.
        OSError: The folder can't be read.
    """
    found = _named(folder, rf"(.*[_.-])?{re.escape(split)}\.txt{_ENDINGS}")
    return _only(folder, f"{split}.txt, .txt.gz, .txt.xz or .txt.bz2", found)


def split_files(folder: str | os.PathLike[str], split: str) -> tuple[Path, ...]:
    """Returns the file of a split, or its file of features and its file of labels.

    One file is found as by `find_split`. Two files are `{split}_X_Xf.txt` and `{split}_X_Y.txt`,
    where `trn` and `tst` may stand for `train` and `test`, optionally compressed, or `.npz`.

    Raises:
        FileNotFoundError, ValueError, OSError: As `find_split`.
    """
    start = f"({re.escape(split)}|{_SHORT.get(split, re.escape(split))})"
    ending = rf"\.(txt{_ENDINGS}|npz)"
    features, labels = (_named(folder, rf"{start}_X_{part}{ending}") for part in ("Xf", "Y"))
    if not features and not labels:
        return (find_split(folder, split),)
    if _named(folder, rf"(.*[_.-])?{re.escape(split)}\.txt{_ENDINGS}"):
        names = ", ".join(path.name for path in features + labels)
        raise ValueError(
            f"{folder} must hold one file of {split}, or one of its features and one of its "
            f"labels; got {names} and {find_split(folder, split).name}"
        )
    pair = ((features, "X_Xf"), (labels, "X_Y"))
    return tuple(_only(folder, f"{split}_{part}.txt or .npz", found) for found, part in pair)


def _named(folder: str | os.PathLike[str], pattern: str) -> list[Path]:
    name = re.compile(pattern, re.IGNORECASE)
    return sorted(path for path in Path(folder).iterdir() if name.fullmatch(path.name))


def _only(folder: str | os.PathLike[str], wanted: str, found: list[Path]) -> Path:
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        kind = ValueError if found else FileNotFoundError
        raise kind(f"{folder} must hold one {wanted}; got {names}")
    return found[0]


def read_xc(
    path: str | os.PathLike[str],
    labels: str | os.PathLike[str] | None = None,
    *,
    num_labels: int | None = None,
    label_values: str = "one",
    cache: str | os.PathLike[str] | None = None,
    progress: bool | Progress = False,
    rows_without_labels: str = "keep",
) -> SparseExamples:
    """Reads examples with sparse features and label sets, from one file or from two.

    One file begins with `N D L`: the numbers of examples, features and labels. Each further line is
    one example, `l1,l2,... f1:v1 f2:v2 ...`, ids from 0. A line without labels starts with a space
    or with its first feature.

    With two files, the features begin with `N D`, the labels with `N L`; lines are `id:value
    id:value ...`, blank for an example without any. Each may instead be a CSR matrix in a `.npz`
    file of `scipy.sparse.save_npz` (read without SciPy).

    Allowed: labels and features in any order (features are sorted), no labels, no features,
    several spaces or tabs, Windows line ends, a byte order mark of UTF-8, no line end after the
    last line, blank lines after the last example. Everything else raises a ValueError, such as
    blank lines between examples of one file, an id that occurs twice in a line, values that are not
    finite in float32, a line of more than 16 MiB, an xz file that needs more than 256 MiB to
    unpack.

    Cost: O(file size) time; blocks of lines are parsed by NumPy, without a loop over lines. Memory:
    twice the arrays of the result at the end, and up to 50 times the length of the longest line;
    with `cache` only the latter, 17 bytes per example, and one block: arrays stay in files, which
    data sets read when needed. Memory does not depend on the header.

    Args:
        path: A plain, gzip, xz, bzip2 or `.npz` file; recognized by its first bytes.
        labels: The file of labels, if `path` has only features. Default: `path` has both.
        num_labels: The number of labels L for data without labels, to predict for: `path` has only
            features, and there is no file of labels. Default: from the files.
        label_values: The allowed values in a file of labels. `"one"` (default): 1, or 0 for no
            label; others raise an error. `"positive"`: a value above 0 is a label; the value itself
            is dropped.
        cache: A folder for the arrays of the result. They are created once, and again if a file has
            changed; the result is memory-mapped. Default: arrays in memory.
        progress: True: a line on standard error counts examples; or a function that is called with
            (examples of a file read so far, N) after each block. Default: silent.
        rows_without_labels: What to do with examples without a label. `"keep"` (default): they are
            read, so that row i is line i + 2; losses and metrics leave them out. `"drop"`: they are
            left out. `"error"`: they raise an error.

    Returns:
        The examples, in the order of the file.

    Raises:
        ValueError: A file is malformed, the two have different numbers of examples, or an example
            has no label with `"error"`. The message starts with `path:line:` (for a `.npz` file
            `path: row`) and has the rule and the value found. An argument is not one of its
            choices.
        FileNotFoundError: A file does not exist.

    Deviations:
        The repository's readers don't check numbers; this one checks each.

    References:
        Bhatia, Dahiya, Jain, Mittal, Prabhu, Varma 2016, The extreme classification repository.
    """
    choice_argument("rows_without_labels", rows_without_labels, _ROWS_WITHOUT_LABELS)
    choice_argument("label_values", label_values, LABEL_VALUES)
    sources = [os.fspath(path)] + ([] if labels is None else [os.fspath(labels)])
    if num_labels is not None:
        num_labels = integer_argument("num_labels", num_labels, 0, MAX_IDS)
        if labels is not None or rows_without_labels != "keep":
            raise ValueError(
                "num_labels must be None with a file of labels, and where rows without any are not "
                f"kept; got {num_labels}"
            )

    def convert(writer: InMemory | OnDisk) -> SparseExamples:
        if num_labels is not None:
            return _read_features(writer, sources[0], num_labels, progress)
        if len(sources) == 1:
            return _read_one(writer, sources[0], progress, rows_without_labels)
        return _read_two(writer, sources, label_values, progress, rows_without_labels)

    options = {
        "num_labels": num_labels,
        "label_values": label_values,
        "rows_without_labels": rows_without_labels,
    }
    return _read(convert, sources, cache, options)


def read_svmlight(
    path: str | os.PathLike[str],
    *,
    zero_based: bool | None = None,
    zero_based_labels: bool = True,
    num_features: int | None = None,
    num_labels: int | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: bool | Progress = False,
    rows_without_labels: str = "keep",
) -> SparseExamples:
    """Reads examples from a file of SVMlight: `label,label,... id:value id:value ...`, no header.

    `#` starts a comment; a line with only a comment is not an example. Otherwise lines are as in
    one file of `read_xc`, with the same rules and cost.

    Args:
        path: A plain, gzip, xz or bzip2 file.
        zero_based: Whether feature ids start at 0 instead of 1. Default None: determined from the
            file, if it has a feature 0, or a feature `num_features`.
        zero_based_labels: The same for labels.
        num_features: The number of features D. Default: the greatest id (plus 1 if ids start at 0).
        num_labels: The number of labels L. Default: likewise.
        cache: As `read_xc`.
        progress: As `read_xc`, but it counts bytes of the file.
        rows_without_labels: As `read_xc`.

    Returns:
        The examples, in the order of the file. For a test set, pass the numbers of its training
        set.

    Raises:
        ValueError: As `read_xc`; or the file does not show whether ids start at 0.
        FileNotFoundError: The file does not exist.

    References:
        Joachims 1999, Making large-scale SVM learning practical.
    """
    choice_argument("rows_without_labels", rows_without_labels, _ROWS_WITHOUT_LABELS)
    if zero_based is not None:
        zero_based = flag_argument("zero_based", zero_based)
    zero_based_labels = flag_argument("zero_based_labels", zero_based_labels)
    limits = []
    for name, value in (("num_features", num_features), ("num_labels", num_labels)):
        limits.append(integer_argument(name, MAX_IDS if value is None else value, 0, MAX_IDS))
    # As long as this is unknown, ids are kept as in the file.
    width = limits[0] + (zero_based is None and num_features is not None)
    grammar = Grammar(
        width,
        limits[1],
        first_id=int(zero_based is False),
        first_label=int(not zero_based_labels),
        comments=True,
    )
    file = os.fspath(path)

    def convert(writer: InMemory | OnDisk) -> SparseExamples:
        least, most_feature, most_label, is_empty = MAX_IDS, -1, -1, True
        for number, rows in _svmlight_rows(file, grammar, progress):
            ids = rows.entries.ids
            is_empty = is_empty and not len(rows.labels)
            least = min(least, int(ids.min(initial=MAX_IDS)))
            most_feature = max(most_feature, int(ids.max(initial=-1)))
            most_label = max(most_label, int(rows.labels.ids.max(initial=-1)))
            kept = _kept(rows.labels, _lines_from(file, number), rows_without_labels)
            writer.append("feature", rows.entries.where(kept))
            writer.append("label", rows.labels.where(kept))
        if is_empty:
            raise ValueError(f"{file}:1: a file must have at least one example; got none")
        less = 0
        if zero_based is None and most_feature >= 0:
            if least == 0 and most_feature == num_features:
                return convert_again()
            if least > 0 and most_feature != num_features:
                raise ValueError(
                    f"{file}: zero_based must be True or False where no feature is 0, nor "
                    f"num_features, so that ids may begin at 0 or at 1; got ids from {least} to "
                    f"{most_feature}"
                )
            less = int(least > 0)
        return writer.finish(
            most_feature + 1 - less if num_features is None else num_features,
            most_label + 1 if num_labels is None else num_labels,
            less,
        )

    def convert_again() -> SparseExamples:
        """Raises for an id that is too great if there is an id of 0, with its line."""
        for _ in _svmlight_rows(file, grammar._replace(width=limits[0]), False):
            pass
        raise AssertionError

    options = {
        "zero_based": zero_based,
        "zero_based_labels": zero_based_labels,
        "num_features": num_features,
        "num_labels": num_labels,
        "rows_without_labels": rows_without_labels,
    }
    return _read(convert, [file], cache, options)


def _read(
    convert: Callable[[Any], SparseExamples],
    sources: list[str],
    cache: str | os.PathLike[str] | None,
    options: dict[str, Any],
) -> SparseExamples:
    if cache is None:
        return convert(InMemory())
    return cached(os.fspath(cache), sources, options, convert)


def _read_one(
    writer: InMemory | OnDisk, path: str, progress: bool | Progress, choice: str
) -> SparseExamples:
    if _is_npz(path):
        raise ValueError(
            f"{path}: an .npz file must have features or labels alone: read_xc(features, labels), "
            "or num_labels=; got no file of labels"
        )
    with contextlib.closing(TextFile(path, ("examples", "features", "labels"))) as file:
        num_examples, num_features, num_labels = file.counts
        report = _reporter(path, progress)
        num_read = 0
        for number, rows in file.blocks(Grammar(num_features, num_labels)):
            kept = _kept(rows.labels, _lines_from(path, number), choice)
            writer.append("feature", rows.entries.where(kept))
            writer.append("label", rows.labels.where(kept))
            num_read += len(kept)
            report(num_read, num_examples)
    return writer.finish(num_features, num_labels)


def _read_features(
    writer: InMemory | OnDisk, path: str, num_labels: int, progress: bool | Progress
) -> SparseExamples:
    with contextlib.ExitStack() as stack:
        x = open_part(stack, path, "feature", "finite")
        report, num_read = _reporter(path, progress), 0
        for _, rows in x.blocks:
            writer.append("feature", rows)
            none = np.zeros(0, np.int64)
            writer.append("label", SparseRows(np.zeros(len(rows), np.int64), none, None))
            num_read += len(rows)
            report(num_read, x.counts[0])
    return writer.finish(x.counts[1], num_labels)


class _Part(NamedTuple):
    """A file of features or of labels: its numbers of rows and columns, and a generator of rows."""

    counts: list[int]
    blocks: Iterator[tuple[int, SparseRows]]
    place: Callable[[int], Callable[[int], str]]  # for the first row of a block


def _read_two(
    writer: InMemory | OnDisk,
    sources: list[str],
    label_values: str,
    progress: bool | Progress,
    choice: str,
) -> SparseExamples:
    features, labels = sources
    with contextlib.ExitStack() as stack:
        x = open_part(stack, features, "feature", "finite")
        y = open_part(stack, labels, "label", label_values)
        num_examples, num_labels = y.counts
        if x.counts[0] != num_examples:
            place = labels if _is_npz(labels) else f"{labels}:1"
            raise ValueError(
                f"{place}: a file of labels must have as many examples as the file of features, "
                f"{x.counts[0]} in {features}; got {num_examples}"
            )
        report = _reporter(labels, progress)
        all_kept = [np.zeros(0, bool)]
        num_read = 0
        for first, rows in y.blocks:
            rows = rows.as_labels()
            kept = _kept(rows, y.place(first), choice)
            all_kept.append(kept)
            writer.append("label", rows.where(kept))
            num_read += len(rows)
            report(num_read, num_examples)
        kept, report, num_read = np.concatenate(all_kept), _reporter(features, progress), 0
        for _, rows in x.blocks:
            writer.append("feature", rows.where(kept[num_read : num_read + len(rows)]))
            num_read += len(rows)
            report(num_read, num_examples)
    return writer.finish(x.counts[1], num_labels)


def open_part(stack: contextlib.ExitStack, path: str, entry: str, rule: str) -> _Part:
    """Opens a file of features or of labels, text or `.npz`; values follow a rule."""
    if _is_npz(path):
        matrix = stack.enter_context(contextlib.closing(NpzFile(path)))
        return _Part(matrix.counts, matrix.blocks(entry, rule), functools.partial(_rows_from, path))
    text = stack.enter_context(contextlib.closing(TextFile(path, ("examples", f"{entry}s"))))
    blocks = text.blocks(Grammar(text.counts[1], entry=entry, value_rule=rule))
    return _Part(
        text.counts,
        ((number, rows.entries) for number, rows in blocks),
        functools.partial(_lines_from, path),
    )


def _lines_from(path: str, first: int) -> Callable[[int], str]:
    """Returns the name of a row of a block, for errors."""
    return lambda row: f"{path}:{first + row}"


def _rows_from(path: str, first: int) -> Callable[[int], str]:
    return lambda row: f"{path}: row {first + row}, from 0"


def _is_npz(path: str) -> bool:
    with open(path, "rb") as file:
        return file.read(4) == b"PK\x03\x04" or path.endswith(".npz")


def _svmlight_rows(
    path: str, grammar: Grammar, progress: bool | Progress
) -> Iterator[tuple[int, Any]]:
    """Yields (number of the first line, examples)."""
    blank = None
    with contextlib.closing(line_blocks(path, _reporter(path, progress, "bytes"))) as blocks:
        for number, block in blocks:
            lines = block.rstrip(b"\n")
            if lines and (blank is not None or block.startswith(b"\n")):
                raise ValueError(
                    f"{path}:{blank or number}: a line must hold an example; got a blank line"
                )
            end = len(lines) + bool(lines)
            if end < len(block) and blank is None:
                blank = number + block.count(b"\n", 0, end)
            if lines:
                yield number, parse(path, number, block[:end], grammar)


def _kept(labels: SparseRows, place: Callable[[int], str], choice: str) -> np.ndarray:
    """Returns which examples are kept: `[n]` bool."""
    has_labels = labels.lengths > 0
    if choice == "keep" or has_labels.all():
        return np.ones(len(labels), bool)
    if choice == "error":
        raise ValueError(
            f"{place(int(np.argmin(has_labels)))}: an example must have a label with "
            "rows_without_labels='error'; got none ('keep' reads it, and losses and metrics leave "
            "it out; 'drop' leaves it out of the examples)"
        )
    return has_labels


def _reporter(path: str, progress: bool | Progress, unit: str = "examples") -> Progress:
    """A function that rewrites one line on standard error, at most four times per second."""
    if callable(progress):
        return progress
    name = os.path.basename(path)
    last = time.monotonic()

    def report(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if progress and (done == total or now - last >= 0.25):
            last = now
            end = "\n" if done == total else ""
            sys.stderr.write(f"\rreading {name}: {done:,} of {total:,} {unit}{end}")
            sys.stderr.flush()

    return report
