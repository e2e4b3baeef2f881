# SPDX-License-Identifier: Apache-2.0
"""Compressed sparse rows: SciPy matrices, and .npz files of `scipy.sparse.save_npz`.

The files are read and written without SciPy, block by block.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfx_largeout.datasets.sparse_rows import VALUE_RULES, SparseRows, wrong_values
from tfx_largeout.labels import is_sparse_matrix

_BLOCK_ENTRIES = 1 << 20
_PARTS = ("format", "shape", "indptr", "indices", "data")


class CsrMatrix:
    """A SciPy matrix whose rows are checked as they are read.

    Args:
        name: Its name in errors.
        matrix: Any of SciPy's sparse matrices and arrays.

    Attributes:
        counts: The numbers of rows and columns.

    Raises:
        TypeError: It has another type.
        ValueError: It is malformed.
    """

    def __init__(self, name: str, matrix: Any) -> None:
        if not is_sparse_matrix(matrix):
            raise TypeError(
                f"{name} must be a sparse matrix of SciPy; got {type(matrix).__name__}: "
                "scipy.sparse.csr_matrix makes one"
            )
        if len(matrix.shape) != 2:
            raise ValueError(f"{name} must have two dimensions; got shape {matrix.shape}")
        matrix = matrix.tocsr()
        if matrix.dtype.kind not in "biuf":
            raise ValueError(f"{name}: values must be real numbers; got dtype {matrix.dtype}")
        self._name, self._ids, self._values = name, matrix.indices, matrix.data
        self.counts = list(map(int, matrix.shape))
        self._splits = _checked_splits(
            name, self.counts, matrix.indptr, len(self._ids), len(self._values)
        )

    def close(self) -> None:
        """Does nothing."""

    def blocks(self, entry: str, rule: str) -> Iterator[tuple[int, SparseRows]]:
        """Yields (first row, rows with rising ids); values follow one of `VALUE_RULES`."""
        for first, end in _bounds(self._splits):
            entries = slice(self._splits[first], self._splits[end])
            yield (
                first,
                self._checked(first, end, self._ids[entries], self._values[entries], entry, rule),
            )

    def _checked(
        self, first: int, end: int, ids: np.ndarray, values: np.ndarray, entry: str, rule: str
    ) -> SparseRows:
        lengths, width = np.diff(self._splits[first : end + 1]), self.counts[1]

        def refuse(row: int, what: str) -> None:
            raise ValueError(f"{self._name}: row {first + row}, from 0: {what}")

        def row_of(wrong: np.ndarray) -> int:
            return int(np.searchsorted(np.cumsum(lengths), np.argmax(wrong), side="right"))

        wrong = (ids < 0) | (ids >= width)
        if wrong.any():
            got = ids[np.argmax(wrong)]
            refuse(row_of(wrong), f"a {entry} must be an integer in [0, {width}); got {got}")
        with np.errstate(over="ignore"):
            numbers = values.astype(np.float32)
        wrong = wrong_values(numbers, rule)
        if wrong.any():
            place = np.argmax(wrong)
            refuse(
                row_of(wrong),
                f"the value of {entry} {ids[place]} must be {VALUE_RULES[rule]}; "
                f"got {values[place]}",
            )
        rows = SparseRows(lengths, ids.astype(np.int32), numbers).in_order(width)
        if isinstance(rows, int):
            ids = np.sort(ids[np.repeat(np.arange(len(lengths)), lengths) == rows])
            twice = ids[:-1][ids[1:] == ids[:-1]][0]
            refuse(rows, f"a {entry} must not occur twice in a row; got {twice} again")
        assert isinstance(rows, SparseRows)
        return rows


class NpzFile(CsrMatrix):
    """A file of `scipy.sparse.save_npz`, read in bounded memory except for 8 bytes per row."""

    def __init__(self, path: str) -> None:
        self._name = path
        with open(path, "rb"):  # an OSError names the file
            pass
        try:
            self._archive = zipfile.ZipFile(path)
            kept = self._archive.namelist()
            if "format.npy" in kept:  # other formats have other members
                kind = self._whole("format", 0, "SU").item()
                kind = kind.decode("latin1") if isinstance(kind, bytes) else kind
                if kind != "csr":
                    raise _refusal(path, f"format {kind!r}: matrix.tocsr() makes one")
            missing = [part for part in _PARTS if f"{part}.npy" not in kept]
            if missing:
                names = ", ".join(kept) or "nothing"
                raise _refusal(path, f"no {missing[0]}.npy in it, but {names}")
            shape = self._whole("shape", 1, "iu")
            if shape.shape != (2,) or shape.min() < 0 or shape.max() >= 2**63:
                raise _refusal(path, f"the shape {shape.tolist()}")
            self.counts = shape.tolist()
            ids, values = _Member(self._archive, path, "indices", 1, "iu"), self._data()
            self._splits = _checked_splits(
                path, self.counts, self._whole("indptr", 1, "iu"), ids.size, values.size
            )
        except _DAMAGES as error:
            raise _damage(path, error) from error

    def close(self) -> None:
        """Closes the file."""
        self._archive.close()

    def blocks(self, entry: str, rule: str) -> Iterator[tuple[int, SparseRows]]:
        """As for a matrix in memory."""
        try:
            ids = _Member(self._archive, self._name, "indices", 1, "iu")
            values = self._data()
            for first, end in _bounds(self._splits):
                number = int(self._splits[end] - self._splits[first])
                yield (
                    first,
                    self._checked(first, end, ids.read(number), values.read(number), entry, rule),
                )
        except _DAMAGES as error:
            raise _damage(self._name, error) from error

    def _data(self) -> _Member:
        return _Member(self._archive, self._name, "data", 1, "biuf")

    def _whole(self, part: str, rank: int, kinds: str) -> np.ndarray:
        member = _Member(self._archive, self._name, part, rank, kinds)
        return member.read(member.size).reshape(member.shape)


_DAMAGES = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


class _Member:
    """An array in the archive (a file of `numpy.save`), read sequentially."""

    def __init__(
        self, archive: zipfile.ZipFile, path: str, part: str, rank: int, kinds: str
    ) -> None:
        stream = archive.open(f"{part}.npy")
        try:
            version = np.lib.format.read_magic(stream)
            if version == (1, 0):
                header = np.lib.format.read_array_header_1_0(stream)
            else:
                header = np.lib.format.read_array_header_2_0(stream)
        except ValueError as error:
            raise _refusal(path, f"{part}.npy, which is none ({error})") from error
        self.shape, _, self._dtype = header
        if len(self.shape) != rank or self._dtype.kind not in kinds:
            raise _refusal(path, f"{part} of shape {self.shape} and dtype {self._dtype}")
        self.size = int(np.prod(self.shape, dtype=object))
        there = archive.getinfo(f"{part}.npy").file_size
        if self.size * self._dtype.itemsize > there:
            raise _refusal(path, f"{part} of shape {self.shape} in {there} bytes")
        self._stream = stream

    def read(self, number: int) -> np.ndarray:
        """Returns the next `number` numbers."""
        data = self._stream.read(number * self._dtype.itemsize)
        if len(data) < number * self._dtype.itemsize:
            raise EOFError("an array ends too early")
        return np.frombuffer(data, self._dtype)


def write_npz(
    path: Path, splits: np.ndarray, ids: np.ndarray, values: np.ndarray, width: int
) -> None:
    """Writes a matrix as `scipy.sparse.save_npz` does; ids rise within a row."""
    index = np.int32 if max(len(ids), width) <= np.iinfo(np.int32).max else np.int64
    with open(path, "wb") as file:
        np.savez_compressed(
            file,
            indices=ids.astype(index),
            indptr=splits.astype(index),
            format=np.array(b"csr"),
            shape=np.array([len(splits) - 1, width], np.int64),
            data=values,
        )


def _refusal(path: str, got: str) -> ValueError:
    return ValueError(
        f"{path}: an .npz file must hold a CSR matrix, as scipy.sparse.save_npz writes it; "
        f"got {got}"
    )


def _damage(path: str, error: Exception) -> ValueError:
    return ValueError(f"{path}: an .npz file must be whole; it is cut short or damaged ({error})")


def _checked_splits(
    name: str, counts: list[int], splits: np.ndarray, num_ids: int, num_values: int
) -> np.ndarray:
    """Returns the start of each row in the entries, as int64."""

    def refuse(rule: str, got: Any) -> None:
        raise ValueError(f"{name}: {rule}; got {got}")

    if len(splits) != counts[0] + 1:
        refuse(f"indptr must have a number per row and one more, {counts[0] + 1}", len(splits))
    if num_ids != num_values:
        refuse("indices and data must have the same length", f"{num_ids} and {num_values}")
    splits = splits.astype(np.int64)
    if splits[0] != 0 or splits[-1] != num_ids:
        refuse(f"indptr must run from 0 to {num_ids}", f"{splits[0]} to {splits[-1]}")
    falls = np.diff(splits) < 0
    if falls.any():
        refuse("indptr must not fall", f"that of row {int(np.argmax(falls))}, from 0")
    if counts[1] > np.iinfo(np.int32).max:
        refuse(f"there must be at most {np.iinfo(np.int32).max} columns", counts[1])
    return splits


def _bounds(splits: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yields (first row, end) of blocks with a number of entries, at least one row each."""
    first, number = 0, len(splits) - 1
    while first < number:
        end = int(np.searchsorted(splits, splits[first] + _BLOCK_ENTRIES, side="right")) - 1
        end = min(max(end, first + 1), number)
        yield first, end
        first = end
