# SPDX-License-Identifier: Apache-2.0
"""OutputFolder: where the results of a run go, and which files they are."""

from __future__ import annotations

import shutil
import time
from pathlib import Path


class OutputFolder:
    """The files of one run. Nothing that an earlier run wrote is lost unless that is asked for.

    Args:
        path: The folder, or None for a new one, `runs/compare-<date>-<time>`.
        overwrite: Whether a folder that has files may be used. Results of an earlier run are then
            deleted from it; all other files stay.

    Raises:
        ValueError: `path` is not a folder, or has files and `overwrite` is False.
        OSError: It can't be made.
    """

    def __init__(self, path: str | None, overwrite: bool = False) -> None:
        self.path = _new_folder() if path is None else Path(path)
        self.summary_csv = self.path / "summary.csv"
        self.curves_csv = self.path / "curves.csv"
        self.results_json = self.path / "results.json"
        self.plot_png = self.path / "precision.png"
        self.tensorboard = self.path / "tensorboard"
        self.logs = self.path / "logs"
        if self.path.exists():
            if not self.path.is_dir():
                raise ValueError(f"must be a folder; got the file {str(self.path)!r}")
            if any(self.path.iterdir()) and not overwrite:
                raise ValueError(
                    "must be a new or an empty folder, unless --overwrite is given; "
                    f"got {str(self.path)!r}"
                )
            self._delete_results()
        self.tensorboard.mkdir(parents=True)
        self.logs.mkdir()

    def _delete_results(self) -> None:
        for file in (self.summary_csv, self.curves_csv, self.results_json, self.plot_png):
            file.unlink(missing_ok=True)
        for folder in (self.tensorboard, self.logs):
            if folder.exists():
                shutil.rmtree(folder)


def _new_folder() -> Path:
    name = time.strftime("compare-%Y%m%d-%H%M%S")
    path = Path("runs", name)
    count = 1
    while path.exists():
        count += 1
        path = Path("runs", f"{name}-{count}")
    return path
