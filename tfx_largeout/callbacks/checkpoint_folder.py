# SPDX-License-Identifier: Apache-2.0
"""A folder with the last few checkpoints; the newest whole one is used.

A checkpoint is one file; with several workers one shared file, and one per worker.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import struct
import warnings
from collections.abc import Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.callbacks.checkpoint_file import (
    TEMPORARY,
    CheckpointFile,
    DamagedCheckpoint,
    NamedArray,
    write_checkpoint,
)
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.meeting import SAVE, agree, meet, together
from tfx_largeout.distribute.workers import Workers, current

_NAME = re.compile(r"epoch-\d+-batch-\d+\.npz")
_DAMAGED = ".damaged"
_PART = ".part"  # the end of the name of a worker's file
_SITE = "the folder of Checkpoint"
_SITE_OF_FILES = "the files of a checkpoint"
_DIGEST = struct.Struct(">4q")


class Position(NamedTuple):
    """A point between two steps: after `epoch` epochs and `batch` batches of the next one."""

    epoch: int
    batch: int


class Snapshot(NamedTuple):
    """The content of a checkpoint: facts for JSON, and functions that return arrays, by name.

    With several workers, `facts` and the names of `arrays` are the same on all of them. `rows` are
    the names of arrays that are spread over workers by class.
    """

    facts: dict[str, Any]
    own_facts: dict[str, Any]
    arrays: Sequence[NamedArray]
    own_arrays: Sequence[NamedArray]
    rows: Set[str]


class CheckpointFolder:
    """The checkpoints of one run, `epoch-00003-batch-00000120.npz` and so on.

    Several workers share it: all of them call the same methods. Then there is also one file per
    worker: see `_write_files`. The folder is created at the first write.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def clean(self) -> None:
        """Removes unfinished files of a killed process."""

        def clean() -> None:
            if current().rank == 0:
                for path in self.folder.glob(f"epoch-*{TEMPORARY}"):
                    path.unlink(missing_ok=True)
                self._remove_unused()

        together(current(), _SITE, clean)

    def newest(self, rows: Set[str] = frozenset()) -> StoredRun | None:
        """Returns the newest whole checkpoint; None if there is no file.

        Newer damaged checkpoints are renamed with a warning. `rows` are the names of arrays
        whose classes are split over workers.

        Raises:
            RuntimeError: There are checkpoints, but none is whole.
            ValueError: Workers find different files.
        """
        workers, reasons = current(), {}
        paths = together(workers, _SITE, self._paths)
        agree(workers, _SITE, {"the list of checkpoints": [path.name for path in paths]})
        for path in reversed(paths):
            try:
                run = together(workers, _SITE, functools.partial(StoredRun, path, workers, rows))
            except RuntimeError as error:  # damaged, for this or another worker
                reasons[path] = error
                continue
            agree(workers, _SITE, {f"the file {path.name}": run.digest})
            set_aside = functools.partial(self._set_aside, reasons, path)
            together(workers, _SITE, set_aside)
            return run
        if reasons:
            told = "; ".join(f"{path.name}: {reason}" for path, reason in reasons.items())
            raise RuntimeError(
                f"one of the checkpoints in {self.folder} must be whole; got {told}. To train from "
                "the beginning, remove the folder."
            )
        return None

    def write(self, position: Position, snapshot: Snapshot) -> None:
        """Writes a checkpoint, and removes the oldest ones.

        Raises:
            OSError: A worker can't write it. The other checkpoints are unchanged.
        """
        workers = current()
        path = self.folder / f"epoch-{position.epoch:05d}-batch-{position.batch:08d}.npz"
        try:
            workers.pick(_write_file, _write_files)(workers, path, snapshot)
            if workers.rank == 0:
                for path in self._paths()[: -self.keep]:
                    path.unlink(missing_ok=True)
        finally:
            if workers.rank == 0:
                self._remove_unused()

    def _paths(self) -> list[Path]:
        found = self.folder.glob("epoch-*-batch-*.npz")
        return sorted((path for path in found if _NAME.fullmatch(path.name)), key=_position)

    def _remove_unused(self) -> None:
        """Removes files of workers that belong to no checkpoint; keeps files of damaged ones."""
        used: set[str] = set()
        damaged = {path.name.split(".")[0] for path in self.folder.glob(f"epoch-*{_DAMAGED}")}
        for path in self._paths():
            try:
                parts = CheckpointFile(path, check=False).facts.get("parts", ())
                used.update(name for name, _ in parts)
            except DamagedCheckpoint:
                damaged.add(path.stem)
        for path in self.folder.glob(f"epoch-*{_PART}"):
            belongs_to = path.name.rsplit("-", 4)[0]
            if path.name not in used and belongs_to not in damaged:
                path.unlink(missing_ok=True)

    def _set_aside(self, reasons: dict[Path, RuntimeError], instead: Path) -> None:
        for path, reason in reasons.items():
            warnings.warn(
                f"the checkpoint {path} is damaged ({reason}); training goes on from "
                f"{instead.name}, and the damaged file is renamed to {path.name}{_DAMAGED}",
                UserWarning,
                stacklevel=2,
            )
            if current().rank == 0:
                path.rename(path.with_name(path.name + _DAMAGED))


class StoredRun:
    """A checkpoint: one file; with several workers one shared file, and one per worker.

    For arrays with a row per class, each file has the rows of its worker's classes; with data
    replicas, the files of the first group have them. If another number of workers or groups reads
    it, rows are redistributed. State per worker, such as seeds of dropout, comes from worker
    r % R of the R that wrote it.

    Every byte is first compared with its digest. Workers share this work: each checks some of the
    files. Errors as in `CheckpointFile`.

    Args:
        path: The shared file.
        workers: The workers that read it.
        rows: The names of arrays that are spread over the reading workers by class.
    """

    def __init__(self, path: Path, workers: Workers, rows: Set[str]) -> None:
        self.path = path
        self._workers = workers
        self._shared = CheckpointFile(path, check=workers.rank == 0)
        self.digest = self._shared.digest  # of the whole checkpoint
        self._parts = self._open_parts() or [self._shared]
        self._own = self._parts[workers.rank % len(self._parts)]
        self._rows = rows | set(self._shared.facts.get("rows", ()))

    @property
    def num_workers(self) -> int:
        """The number of workers that wrote it."""
        return len(self._parts)

    @property
    def is_of_others(self) -> bool:
        """Whether another number of workers or groups wrote it."""
        groups = self._workers.replicas.size
        return (self.num_workers, self._data_replicas) != (self._workers.size, groups)

    @property
    def _data_replicas(self) -> int:
        return self._shared.facts.get("data_replicas", 1)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts in the checkpoint."""
        return {**self._shared.facts, **self._own.facts}

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(dict.fromkeys([*self._shared.names, *self._own.names]))

    def array(self, name: str) -> np.ndarray:
        """Reads an array, or this worker's rows of it. Memory: the result."""
        if name in self._rows:
            return self._dealt(name)
        return (self._shared if name in self._shared.names else self._own).array(name)

    def _open_parts(self) -> list[CheckpointFile]:
        parts = []
        for writer, (name, digest) in enumerate(self._shared.facts.get("parts", ())):
            is_mine = writer % self._workers.size == self._workers.rank
            part = CheckpointFile(self.path.with_name(name), check=is_mine)
            if part.digest != digest:
                raise DamagedCheckpoint(f"{name} is not the file that was written with it")
            parts.append(part)
        return parts

    def _dealt(self, name: str) -> np.ndarray:
        parts = self._parts[: self.num_workers // self._data_replicas]
        if name in self._shared.names:  # groups of one worker each have all rows
            parts = [self._shared]
        num_classes = sum(part.number_of_rows(name) for part in parts)
        group = self._workers.group
        own = ClassShard(group.rank, group.size, num_classes)
        rows: np.ndarray | None = None
        for writer, part in enumerate(parts):
            written = ClassShard(writer, len(parts), num_classes)
            if not own.meets(written):
                continue
            first = 0
            for block in part.row_blocks(name):
                classes = written.class_of(np.arange(first, first + len(block)))
                first += len(block)
                places = own.row_of(tf.constant(classes)).numpy()
                if rows is None:
                    rows = np.empty((own.num_rows, *block.shape[1:]), block.dtype)
                rows[places[places >= 0]] = block[places >= 0]
        assert rows is not None  # heads raise an error for fewer classes than workers
        return rows


def _write_file(workers: Workers, path: Path, snapshot: Snapshot) -> None:
    """Writes the whole checkpoint, as the only worker."""
    facts, own_facts, arrays, own_arrays, _ = snapshot
    path.parent.mkdir(parents=True, exist_ok=True)
    write_checkpoint(path, {**facts, **own_facts}, [*arrays, *own_arrays])


def _write_files(workers: Workers, path: Path, snapshot: Snapshot) -> None:
    """Writes a file per worker and, when all are on the disk, the shared file.

    The shared file has the names and digests of the others. Until it has its final name the
    checkpoint does not exist, and an older one is unchanged, because file names are never reused.

    Each worker of the first group writes its rows, and each worker the arrays that differ between
    workers.
    """
    facts, own_facts, arrays, own_arrays, rows = snapshot
    number = int.from_bytes(os.urandom(4), "big")
    number = int(meet(workers, SAVE, _SITE_OF_FILES, numbers=[number]).numpy()[0, 0])
    names = [
        f"{path.stem}-{number:08x}-{rank}-of-{workers.size}{_PART}" for rank in range(workers.size)
    ]
    alike = _alike(workers, [(name, get) for name, get in arrays if name not in rows])
    part = path.with_name(names[workers.rank])

    def write_part() -> str:
        path.parent.mkdir(parents=True, exist_ok=True)
        left = alike if workers.replicas.rank == 0 else alike | rows
        own = [(name, get) for name, get in arrays if name not in left]
        return write_checkpoint(part, own_facts, [*own, *own_arrays])

    try:
        digest = together(workers, _SITE_OF_FILES, write_part)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    # Worker 0 may continue and list this file, even if this worker gets an error.
    numbers = _DIGEST.unpack(bytes.fromhex(digest))
    heard = meet(workers, SAVE, _SITE_OF_FILES, numbers=numbers).numpy()
    digests = [_DIGEST.pack(*said.tolist()).hex() for said in heard]

    def write_shared() -> None:
        if workers.rank != 0:
            return
        missing = [name for name in names if not path.with_name(name).is_file()]
        if missing:
            raise OSError(
                "the folder of Checkpoint must be shared by all workers; got none of "
                f"{missing} in {path.parent} on worker 0"
            )
        parts = list(zip(names, digests, strict=True))
        shared = [(name, get) for name, get in arrays if name in alike]
        divided = {"rows": sorted(rows), "data_replicas": workers.replicas.size}
        write_checkpoint(path, {**facts, **divided, "parts": parts}, shared)

    together(workers, _SITE_OF_FILES, write_shared)


def _alike(workers: Workers, arrays: Sequence[NamedArray]) -> set[str]:
    """Returns the names of arrays that are the same on all workers."""
    if not arrays:
        return set()
    said = tf.constant([_first_of_digest(get()) for _, get in arrays], tf.int64)
    heard = workers.gather(said, "digests").numpy()
    same = (heard == heard[0]).all(axis=0)
    return {name for (name, _), is_same in zip(arrays, same, strict=True) if is_same}


def _first_of_digest(array: np.ndarray) -> int:
    digest = hashlib.sha256(np.ascontiguousarray(array).view(np.uint8).data)
    return int(_DIGEST.unpack(digest.digest())[0])


def _position(path: Path) -> Position:
    _, epoch, _, batch = path.stem.split("-")
    return Position(int(epoch), int(batch))
