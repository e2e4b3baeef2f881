# SPDX-License-Identifier: Apache-2.0
"""StoredRun: a checkpoint as a worker reads it, however many workers have written it."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.callbacks.checkpoint_file import CheckpointFile, DamagedCheckpoint
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.workers import Workers


class StoredRun:
    """A checkpoint: one file; of several workers one with what they share, and one a worker.

    Of W and its like each file has the rows of its worker's classes. Where other workers read than
    have written, rows are dealt anew. What is each worker's own, such as the seeds of its dropout,
    is that of worker r % R there.

    Every byte is compared with its digest first. Workers divide that among them: each looks at the
    files of some.

    Args:
        path: The file with what all workers share.
        workers: Those that read.
        rows: The names of arrays of which a worker that reads has its own rows.

    Raises:
        DamagedCheckpoint: A file differs from what was written, or is not there.
        ValueError: It was written in another format.
    """

    def __init__(self, path: Path, workers: Workers, rows: Set[str] = frozenset()) -> None:
        self.path = path
        self._workers = workers
        self._shared = CheckpointFile(path, check=workers.rank == 0)
        self._parts = self._open_parts() or [self._shared]
        self._own = self._parts[workers.rank % len(self._parts)]
        self._rows = rows | set(self._shared.facts.get("rows", ()))

    @property
    def digest(self) -> str:
        """A digest of all of it."""
        return self._shared.digest

    @property
    def num_workers(self) -> int:
        """How many workers have written it."""
        return len(self._parts)

    @property
    def facts(self) -> dict[str, Any]:
        """What it holds beside arrays."""
        return {**self._shared.facts, **self._own.facts}

    @property
    def names(self) -> list[str]:
        """The names of the arrays."""
        return list(dict.fromkeys([*self._shared.names, *self._own.names]))

    def array(self, name: str) -> np.ndarray:
        """Reads an array, or this worker's rows of it. Memory: that of the result."""
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
        num_classes = sum(part.number_of_rows(name) for part in self._parts)
        own = ClassShard(self._workers.rank, self._workers.size, num_classes)
        rows: np.ndarray | None = None
        for writer, part in enumerate(self._parts):
            written = ClassShard(writer, len(self._parts), num_classes)
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
        assert rows is not None  # heads refuse fewer classes than workers
        return rows
