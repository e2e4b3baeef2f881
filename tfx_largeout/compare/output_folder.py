# SPDX-License-Identifier: Apache-2.0
"""OutputFolder: where the results of a run go, and which files they are."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path


class OutputFolder:
    """The files of one run. Nothing that an earlier run wrote is lost unless that is asked for.

    A new object has looked, and changed nothing. `make` makes the folders; then either `begin_run`
    deletes the results of an earlier run, or `undo` removes the folders again.

    Args:
        path: The folder, or None for a new one, `runs/compare-<date>-<time>`.
        overwrite: Whether a folder that has the results of an earlier run may be used.
        add: Whether it has such results, to which others are added.

    Raises:
        ValueError: `path` is not a folder; or it has files, and `overwrite` and `add` are False or
            they are not results of an earlier run; or it has none, and `add` is True.
        OSError: It can't be read.
    """

    def __init__(self, path: str | None, overwrite: bool = False, add: bool = False) -> None:
        self.path = _new_folder() if path is None else Path(path)
        self.summary_csv = self.path / "summary.csv"
        self.curves_csv = self.path / "curves.csv"
        self.results_json = self.path / "results.json"
        self.plot_png = self.path / "curves.png"
        self.page_html = self.path / "comparison.html"
        self.tensorboard = self.path / "tensorboard"
        self.logs = self.path / "logs"
        self._made: list[Path] = []
        self._earlier: list[Path] = []
        if add:
            if not _is_report(self.results_json):
                raise ValueError(f"must be a folder with a results.json; got {str(self.path)!r}")
        elif self.path.exists():
            self._check(overwrite)

    def _check(self, overwrite: bool) -> None:
        if not self.path.is_dir():
            raise ValueError(f"must be a folder; got the file {str(self.path)!r}")
        if not any(self.path.iterdir()):
            return
        if not overwrite:
            raise ValueError(
                "must be a new or an empty folder, unless --overwrite is given; "
                f"got {str(self.path)!r}"
            )
        if not _is_report(self.results_json):
            raise ValueError(
                "must have a results.json of `tfx-largeout compare` for --overwrite; "
                f"got {str(self.path)!r}"
            )
        self._earlier = [
            self.plot_png,
            self.page_html,
            *self.logs.glob("*.log"),
            *self.logs.glob("*.part"),
            *self.tensorboard.glob("*/events.out.tfevents.*"),
        ]

    def train_again(self, run: str) -> None:
        """Makes `begin_run` delete what an earlier training of this name left for TensorBoard."""
        self._earlier += (self.tensorboard / run).glob("events.out.tfevents.*")

    def log(self, head: str) -> Path:
        """The file for what the process of a head writes to standard error."""
        return self.logs / f"{head}.log"

    def make(self) -> None:
        """Makes the folders that are not there yet."""
        folders = [self.tensorboard, self.logs, self.path, *self.path.parents]
        self._made = [folder for folder in folders if not folder.exists()]
        for folder in (self.tensorboard, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Keeps other runs out of the folder, which has been made, for as long as it is open.

        Raises:
            ValueError: Another run is at work in it.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            _lock(folder, self.path)
            yield
        finally:
            os.close(folder)

    def undo(self) -> None:
        """Removes the folders that `make` made, as far as they are empty."""
        _remove_empty(self._made)

    def begin_run(self) -> None:
        """Deletes the pictures, logs and TensorBoard runs of an earlier run, and no other file."""
        for file in self._earlier:
            file.unlink(missing_ok=True)
        _remove_empty({file.parent for file in self._earlier} - {self.path, self.logs})


def _lock(folder: int, path: Path) -> None:
    try:
        fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise ValueError(f"must not be in use by a run that goes on; got {str(path)!r}") from None
    except OSError:
        return  # a file system without locks


def _is_report(file: Path) -> bool:
    try:
        return "tfx_largeout" in json.loads(file.read_bytes())["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_empty(folders: list[Path] | set[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # it has files
            folder.rmdir()


def _new_folder() -> Path:
    name = time.strftime("compare-%Y%m%d-%H%M%S")
    path = Path("runs", name)
    count = 1
    while path.exists():
        count += 1
        path = Path("runs", f"{name}-{count}")
    return path
