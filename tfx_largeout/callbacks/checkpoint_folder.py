# SPDX-License-Identifier: Apache-2.0
"""A folder of checkpoints: the last few, of which the newest whole one counts."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from tfx_largeout.callbacks.checkpoint_file import (
    TEMPORARY,
    CheckpointFile,
    DamagedCheckpoint,
    NamedArray,
    write_checkpoint,
)

_DAMAGED = ".damaged"


class Position(NamedTuple):
    """A point between two steps: `epoch` epochs are over, and `batch` batches of the next one."""

    epoch: int
    batch: int


class CheckpointFolder:
    """Checkpoints of one run, `epoch-00003-batch-00000120.npz` and so on.

    Args:
        folder: Made when it is first written to.
        keep: How many are kept.
    """

    def __init__(self, folder: Path, keep: int) -> None:
        self.folder = folder
        self.keep = keep

    def clean(self) -> None:
        """Removes what a process left that was killed while it wrote."""
        for path in self.folder.glob(f"epoch-*{TEMPORARY}"):
            path.unlink(missing_ok=True)

    def newest(self) -> CheckpointFile | None:
        """Returns the newest whole checkpoint; None if there is no file at all.

        Damaged ones that are newer are reported by a warning and renamed.

        Raises:
            RuntimeError: There are checkpoints, but none is whole.
        """
        reasons: dict[Path, DamagedCheckpoint] = {}
        for path in reversed(self._paths()):
            try:
                file = CheckpointFile(path)
            except DamagedCheckpoint as error:
                reasons[path] = error
                continue
            for damaged, reason in reasons.items():
                self._set_aside(damaged, reason, path)
            return file
        if reasons:
            told = "; ".join(f"{path.name}: {reason}" for path, reason in reasons.items())
            raise RuntimeError(
                f"one of the checkpoints in {self.folder} must be whole; got {told}. To train from "
                "the beginning, remove the folder."
            )
        return None

    def write(
        self, position: Position, facts: dict[str, Any], arrays: Iterable[NamedArray]
    ) -> None:
        """Writes a checkpoint, and removes those that are too many then.

        Raises:
            OSError: It can't be written. The others are as before.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        name = f"epoch-{position.epoch:05d}-batch-{position.batch:08d}.npz"
        write_checkpoint(self.folder / name, facts, arrays)
        for path in self._paths()[: -self.keep]:
            path.unlink(missing_ok=True)

    def _paths(self) -> list[Path]:
        return sorted(self.folder.glob("epoch-*-batch-*.npz"))

    def _set_aside(self, path: Path, reason: DamagedCheckpoint, instead: Path) -> None:
        warnings.warn(
            f"the checkpoint {path} is damaged ({reason}); training goes on from {instead.name}, "
            f"and the damaged file is renamed to {path.name}{_DAMAGED}",
            UserWarning,
            stacklevel=2,
        )
        path.rename(path.with_name(path.name + _DAMAGED))
