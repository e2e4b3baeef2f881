# SPDX-License-Identifier: Apache-2.0
"""A folder of checkpoints: the last few, of which the newest whole one counts."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

from tfx_largeout.callbacks.checkpoint_file import (
    TEMPORARY,
    CheckpointFile,
    DamagedCheckpoint,
    NamedArray,
)
from tfx_largeout.callbacks.stored_run import StoredRun
from tfx_largeout.callbacks.worker_files import PART, write_file, write_files
from tfx_largeout.distribute.meeting import agree, together
from tfx_largeout.distribute.workers import current

_DAMAGED = ".damaged"
_SITE = "the folder of Checkpoint"


class Position(NamedTuple):
    """A point between two steps: `epoch` epochs are over, and `batch` batches of the next one."""

    epoch: int
    batch: int


class CheckpointFolder:
    """Checkpoints of one run, `epoch-00003-batch-00000120.npz` and so on.

    Several workers share it: all of them call the same methods. Beside that file, which has what
    they share, there is one of each then: see `write_files`.

    Args:
        folder: Made when it is first written to.
        keep: How many are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def clean(self) -> None:
        """Removes what a process left that was killed while it wrote."""

        def clean() -> None:
            if current().rank == 0:
                for path in self.folder.glob(f"epoch-*{TEMPORARY}"):
                    path.unlink(missing_ok=True)
                self._remove_unused()

        together(current(), _SITE, clean)

    def newest(self, rows: Set[str] = frozenset()) -> StoredRun | None:
        """Returns the newest whole checkpoint; None if there is no file at all.

        Damaged ones that are newer are reported by a warning and renamed.

        Args:
            rows: The names of arrays of which this worker has the rows of its classes.

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
            except RuntimeError as error:  # damaged, for this worker or for another one
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

    def write(
        self,
        position: Position,
        facts: dict[str, Any],
        own_facts: dict[str, Any],
        arrays: Sequence[NamedArray],
        own_arrays: Sequence[NamedArray],
        rows: Set[str] = frozenset(),
    ) -> None:
        """Writes a checkpoint, and removes those that are too many then.

        Args:
            position: Where the run is.
            facts: What JSON can hold, the same on all workers.
            own_facts: What is this worker's own.
            arrays: Names, and functions that give the arrays: the same names on all workers.
            own_arrays: Those that are this worker's own.
            rows: The names of arrays of which this worker has the rows of its classes.

        Raises:
            OSError: It can't be written. The others are as before.
        """
        workers = current()
        path = self.folder / f"epoch-{position.epoch:05d}-batch-{position.batch:08d}.npz"
        write: Callable[[], Any] = workers.pick(
            lambda: write_file(path, {**facts, **own_facts}, [*arrays, *own_arrays]),
            lambda: write_files(workers, path, facts, own_facts, arrays, own_arrays, rows),
        )
        write()
        if workers.rank == 0:
            for path in self._paths()[: -self.keep]:
                path.unlink(missing_ok=True)
            self._remove_unused()

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("epoch-*-batch-*.npz"), key=_position)

    def _remove_unused(self) -> None:
        """Removes files of workers that no checkpoint names, but for those of damaged ones."""
        used: set[str] = set()
        damaged = {path.name.split(".")[0] for path in self.folder.glob(f"epoch-*{_DAMAGED}")}
        for path in self._paths():
            try:
                parts = CheckpointFile(path, check=False).facts.get("parts", ())
                used.update(name for name, _ in parts)
            except DamagedCheckpoint:
                damaged.add(path.stem)
        for path in self.folder.glob(f"epoch-*{PART}"):
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


def _position(path: Path) -> Position:
    _, epoch, _, batch = path.stem.split("-")
    return Position(int(epoch), int(batch))
