# SPDX-License-Identifier: Apache-2.0
"""A checkpoint as one file: arrays and facts with digests. It appears whole or not at all."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO, Any

import numpy as np

from tfx_largeout.written_whole import put_names_on_disk

TEMPORARY = ".tmp"  # the end of the name of an unfinished file
_FORMAT = 1
_FACTS = "checkpoint.json"
_CHUNK = 2**22
# Errors of zipfile and numpy for a damaged file.
_SIGNS_OF_DAMAGE = (
    zipfile.BadZipFile,
    OSError,
    EOFError,
    KeyError,
    TypeError,
    ValueError,
    RuntimeError,  # includes NotImplementedError: an unknown compression method
    OverflowError,
    struct.error,
    zlib.error,
)

NamedArray = tuple[str, Callable[[], np.ndarray]]


class DamagedCheckpoint(RuntimeError):
    """A file differs from what was written; the message says how."""


def write_checkpoint(path: Path, facts: dict[str, Any], arrays: Iterable[NamedArray]) -> str:
    """Writes an `.npz` file beside `path`, flushes it to disk, and then renames it to `path`.

    Memory: one array at a time. `facts` must be valid JSON. Returns the digest of the file: see
    `CheckpointFile`. After an OSError `path` is unchanged, and no other file is left.
    """
    unfinished = path.with_name(path.name + TEMPORARY)
    try:
        with unfinished.open("wb") as file:
            with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
                digest = _write_entries(archive, facts, arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(unfinished, path)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise
    put_names_on_disk(path.parent)
    return digest


class CheckpointFile:
    """A file of `write_checkpoint`; every byte is first compared with its digest.

    Args:
        path: The path of the file.
        check: Whether to check arrays, too. Default True.

    Attributes:
        digest: A digest of its facts and of the digests of its arrays.

    Raises:
        DamagedCheckpoint: It differs from what was written.
        ValueError: Another version of this package wrote it, in another format.
    """

    def __init__(self, path: Path, check: bool = True) -> None:
        self.path = path
        try:
            self._read_facts()
            if check:
                self._check()
        except _SIGNS_OF_DAMAGE as error:
            raise DamagedCheckpoint(f"{type(error).__name__}: {error}") from error
        if self._header["format"] != _FORMAT:
            raise ValueError(
                f"{path} must be a checkpoint of format {_FORMAT}; got {self._header['format']}"
            )

    @property
    def facts(self) -> dict[str, Any]:
        """The facts in the file."""
        return self._header["facts"]

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(self._header["digests"])

    def array(self, name: str) -> np.ndarray:
        """Reads an array. Memory: the array."""
        with self._opened(name) as file:
            return np.lib.format.read_array(file, allow_pickle=False)

    def row_blocks(self, name: str) -> Iterator[np.ndarray]:
        """Reads an array of at least one dimension, some rows at a time. Memory: these rows."""
        with self._opened(name) as file:
            shape, dtype = _read_header(file)
            row_bytes = dtype.itemsize * math.prod(shape[1:])
            rows = max(_CHUNK // max(row_bytes, 1), 1)
            for start in range(0, shape[0], rows):
                number = min(rows, shape[0] - start)
                block = np.frombuffer(file.read(number * row_bytes), dtype)
                yield block.reshape(number, *shape[1:])

    def number_of_rows(self, name: str) -> int:
        """Returns the first dimension of an array."""
        with self._opened(name) as file:
            return _read_header(file)[0][0]

    @contextlib.contextmanager
    def _opened(self, name: str) -> Iterator[IO[bytes]]:
        with zipfile.ZipFile(self.path) as archive, archive.open(_entry(name)) as file:
            yield file

    def _read_facts(self) -> None:
        with zipfile.ZipFile(self.path) as archive:
            header = archive.read(_FACTS)
        self.digest = hashlib.sha256(header).hexdigest()
        self._header: dict[str, Any] = json.loads(header)
        for key in ("format", "facts", "digests"):
            self._header[key]

    def _check(self) -> None:
        for name, written in self._header["digests"].items():
            digest = hashlib.sha256()
            with self._opened(name) as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
            if digest.hexdigest() != written:
                raise ValueError(f"the bytes of {name} have changed")


def _write_entries(
    archive: zipfile.ZipFile, facts: dict[str, Any], arrays: Iterable[NamedArray]
) -> str:
    digests = {}
    for name, get in arrays:
        with archive.open(_entry(name), "w", force_zip64=True) as file:
            writer = _DigestingWriter(file)
            array = np.asarray(get(), order="C")
            np.lib.format.write_array(writer, array, allow_pickle=False)
        digests[name] = writer.digest.hexdigest()
    header = json.dumps({"format": _FORMAT, "facts": facts, "digests": digests})
    archive.writestr(_FACTS, header)
    return hashlib.sha256(header.encode()).hexdigest()


def _read_header(file: IO[bytes]) -> tuple[tuple[int, ...], np.dtype]:
    """Reads the header of an array in row-major order."""
    np.lib.format.read_magic(file)  # version 1.0: only headers of over 64 KiB have others
    shape, _, dtype = np.lib.format.read_array_header_1_0(file)
    return shape, dtype


class _DigestingWriter:
    """Writes bytes to a file, and computes their digest."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        # Processors have instructions for it; blake2b takes twice the time.
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> int:
        self.digest.update(data)
        return self._file.write(data)


def _entry(name: str) -> str:
    return f"{name}.npy"
