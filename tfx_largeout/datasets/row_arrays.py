# SPDX-License-Identifier: Apache-2.0
"""Storage for the rows of a reader: arrays in memory, or memory-mapped files."""

from __future__ import annotations

import json
import os
import shutil
import struct
import zlib
from collections.abc import Callable
from typing import Any, BinaryIO

import numpy as np

from tfx_largeout.datasets.sparse_examples import SparseExamples
from tfx_largeout.datasets.sparse_rows import ARRAYS, JoinedRows, SparseRows
from tfx_largeout.written_whole import written_whole

_VERSION = 1
_ABOUT = "about.json"


class InMemory(JoinedRows):
    """Arrays in memory."""

    def finish(self, num_features: int, num_labels: int, less: int = 0) -> SparseExamples:
        """Returns the examples, with `less` subtracted from feature ids."""
        arrays = self.arrays()
        if less:
            arrays["feature_ids"] -= less
        return SparseExamples(**arrays, num_features=num_features, num_labels=num_labels)


class OnDisk:
    """Files in a folder, in the format of `numpy.save`."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files = {name: _ArrayFile(_file(folder, name), ARRAYS[name]) for name in ARRAYS}
        self._ends = {"feature": 0, "label": 0}
        for kind in self._ends:
            self._files[f"{kind}_splits"].append(np.zeros(1))

    def append(self, kind: str, rows: SparseRows) -> None:
        """Appends rows of `kind`, features or labels."""
        splits = self._ends[kind] + np.cumsum(rows.lengths)
        self._files[f"{kind}_splits"].append(splits)
        self._ends[kind] = int(splits[-1]) if len(splits) else self._ends[kind]
        self._files[f"{kind}_ids"].append(rows.ids)
        if rows.values is not None:
            self._files[f"{kind}_values"].append(rows.values)

    def finish(self, num_features: int, num_labels: int, less: int = 0) -> SparseExamples:
        """Closes the files, and returns the examples in them."""
        self.close()
        if less and self._ends["feature"]:
            ids = np.load(_file(self._folder, "feature_ids"), mmap_mode="r+")
            for start in range(0, len(ids), 1 << 20):
                ids[start : start + (1 << 20)] -= less
            ids.flush()
        return _map(self._folder, num_features, num_labels)

    def close(self) -> None:
        """Closes the files."""
        for file in self._files.values():
            file.close()


def cached(
    folder: str,
    sources: list[str],
    options: dict[str, Any],
    convert: Callable[[OnDisk], SparseExamples],
) -> SparseExamples:
    """Returns the cached result of `convert` for files, in a folder, or creates it.

    It is created again if a source has another size or date. Several processes may do so at once.
    """
    paths = [os.path.abspath(path) for path in sources]
    status = [os.stat(path) for path in paths]
    about = {
        "version": _VERSION,
        "sources": [
            [path, one.st_size, one.st_mtime_ns] for path, one in zip(paths, status, strict=True)
        ],
        "options": options,
    }
    key = zlib.crc32(json.dumps([paths, options]).encode())
    target = os.path.join(folder, f"{os.path.basename(paths[0])}-{key:08x}")
    examples = _open(target, about)
    if examples is not None:
        return examples
    os.makedirs(folder, exist_ok=True)
    try:
        with written_whole(target) as made:
            made.mkdir()
            writer = OnDisk(str(made))
            try:
                examples = convert(writer)
            finally:
                writer.close()
            sizes = [examples.num_features, examples.num_labels]
            with open(made / _ABOUT, "w") as file:
                json.dump({**about, "sizes": sizes}, file)
            if os.path.isdir(target) and _open(target, about) is None:
                shutil.rmtree(target, ignore_errors=True)
    except OSError:
        if _open(target, about) is None:  # otherwise another process was faster
            raise
    examples = _open(target, about)
    assert examples is not None
    return examples


def _open(target: str, about: dict[str, Any]) -> SparseExamples | None:
    """Returns the cached result, if it is complete and of these sources."""
    try:
        with open(os.path.join(target, _ABOUT)) as file:
            found = json.load(file)
        sizes = found.pop("sizes")
        return _map(target, *sizes) if found == about else None
    except Exception:  # after any error it is created again
        return None


def _map(folder: str, num_features: int, num_labels: int) -> SparseExamples:
    arrays = {name: np.load(_file(folder, name), mmap_mode="r") for name in ARRAYS}
    for name, array in arrays.items():  # NumPy has checked headers against file sizes
        kind, part = name.split("_")
        alike = arrays["label_splits" if part == "splits" else f"{kind}_ids"]
        if array.dtype != ARRAYS[name] or array.ndim != 1 or len(array) != len(alike):
            raise ValueError(f"{name} must be {ARRAYS[name].__name__} [n]; got {array.dtype}")
        if part == "splits" and array[-1] != len(arrays[f"{kind}_ids"]):
            raise ValueError(f"{name} must end with the number of ids; got {array[-1]}")
    return SparseExamples.unchecked(**arrays, num_features=num_features, num_labels=num_labels)


def _file(folder: str, name: str) -> str:
    return os.path.join(folder, f"{name}.npy")


class _ArrayFile:
    """A vector in the format of `numpy.save` that grows."""

    def __init__(self, path: str, dtype: Any) -> None:
        self._dtype, self._size = np.dtype(dtype), 0
        self._file: BinaryIO = open(path, "wb")  # noqa: SIM115
        self._write_header()

    def append(self, values: np.ndarray) -> None:
        self._file.write(values.astype(self._dtype).tobytes())
        self._size += len(values)

    def close(self) -> None:
        if not self._file.closed:
            self._file.seek(0)
            self._write_header()
            self._file.close()

    def _write_header(self) -> None:
        fields = (
            f"{{'descr': '{self._dtype.str}', 'fortran_order': False, 'shape': ({self._size},), }}"
        )
        header = fields.ljust(117).encode() + b"\n"
        self._file.write(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header)
