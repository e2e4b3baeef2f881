# SPDX-License-Identifier: Apache-2.0
"""Comparison: results and how they were measured; OutputFolder: their files."""

from __future__ import annotations

import base64
import contextlib
import csv
import dataclasses
import fcntl
import html
import itertools
import json
import os
import platform
import shlex
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

from tfx_largeout.compare.plots import HOW_TO_GET_PLOTS, plot_curves
from tfx_largeout.compare.results import CurvePoint, HeadResult, SummaryRow, by_head, summarize
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.table import format_table, html_table
from tfx_largeout.written_whole import written_whole

_PACKAGES = ("tfx_largeout", "tensorflow", "keras", "numpy")
_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; font-weight: 600; }
h2 { font-size: 1.1rem; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #222; vertical-align: bottom; font-weight: 600; }
td { border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr:hover td { background: #f2f6fa; }
img { max-width: 100%; margin: 1.5rem 0; }
ul { padding-left: 1.2rem; color: #555; font-size: 0.9rem; }
dt { font-weight: 600; }
dd { margin: 0 0 0.4rem; overflow-wrap: anywhere; }
"""


class OutputFolder:
    """The files of one run, by default in a new folder `runs/compare-<date>-<time>`.

    Results of an earlier run are deleted only with `overwrite`; with `add`, the run is extended.
    The constructor only reads. `make` creates the folders; then either `begin_run` deletes the
    results of an earlier run, or `undo` removes the folders.

    Raises:
        ValueError: `path` is not a folder; it has files, and `overwrite` and `add` are False, or
            the files are not results of an earlier run; or it has no files, and `add` is True.
        OSError: The folder can't be read.
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
        """Makes `begin_run` delete TensorBoard files of an earlier training with this name."""
        self._earlier += (self.tensorboard / run).glob("events.out.tfevents.*")

    def log(self, head: str) -> Path:
        """The file for the standard error of a head's process."""
        return self.logs / f"{head}.log"

    def make(self) -> None:
        """Creates missing folders."""
        folders = [self.tensorboard, self.logs, self.path, *self.path.parents]
        self._made = [folder for folder in folders if not folder.exists()]
        for folder in (self.tensorboard, self.logs):
            folder.mkdir(parents=True, exist_ok=True)

    @contextlib.contextmanager
    def claimed(self) -> Iterator[None]:
        """Locks the existing folder for this run while it is open.

        Raises:
            ValueError: Another run uses it.
        """
        folder = os.open(self.path, os.O_RDONLY)
        try:
            try:
                fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                message = f"must not be in use by a run that goes on; got {str(self.path)!r}"
                raise ValueError(message) from None
            except OSError:
                pass  # a file system without locks
            yield
        finally:
            os.close(folder)

    def undo(self) -> None:
        """Removes the folders that `make` created, if they are empty."""
        _remove_empty(self._made)

    def begin_run(self) -> None:
        """Deletes the pictures, logs and TensorBoard runs of an earlier run, and no other file."""
        for file in self._earlier:
            file.unlink(missing_ok=True)
        _remove_empty({file.parent for file in self._earlier} - {self.path, self.logs})


def _is_report(file: Path) -> bool:
    try:
        return "tfx_largeout" in json.loads(file.read_bytes())["versions"]
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _remove_empty(folders: list[Path] | set[Path]) -> None:
    for folder in folders:
        with contextlib.suppress(OSError):  # it is not empty
            folder.rmdir()


def _new_folder() -> Path:
    path = Path("runs", time.strftime("compare-%Y%m%d-%H%M%S"))
    others = (path.with_name(f"{path.name}-{count}") for count in itertools.count(2))
    return next(path for path in itertools.chain([path], others) if not path.exists())


class Comparison:
    """The results of a comparison. `str` returns the table, a notebook shows it as HTML.

    Attributes:
        results: A `HeadResult` per head or model and seed.
        files: The files of the results.
    """

    def __init__(
        self,
        name: str,  # of the data
        files: OutputFolder,
        configuration: Mapping[str, Any],  # all that the results depend on
        results: Sequence[HeadResult] = (),  # of an earlier run, to which others are added
        notes: Sequence[str] = (),  # sentences below the table
    ) -> None:
        self.results = list(results)
        self._name = name
        self.files = files
        self._configuration = configuration
        self._notes = notes
        self._begun = False

    @property
    def rows(self) -> list[SummaryRow]:
        """The figures of the table, one row per head or model: `row.precision_at_1` and others."""
        return summarize(self.results)

    @property
    def curves(self) -> dict[str, list[list[CurvePoint]]]:
        """The evaluations of each head or model: a list of points per seed."""
        return {head: [run.curve for run in runs] for head, runs in by_head(self.results).items()}

    @property
    def folder(self) -> Path:
        """The folder of the files."""
        return self.files.path

    @property
    def title(self) -> str:
        """The data, as one line."""
        classes = (r.data["classes"] for r in self.results if "classes" in r.data)
        sizes = (r.batch_size for r in self.results if r.batch_size)
        parts = [f"{n:,} classes" for n in [*classes][:1]] + [f"batches of {n}" for n in sizes][:1]
        return f"{self._name}: {', '.join(parts)}" if parts else self._name

    @property
    def notes(self) -> list[str]:
        """Notes for readers."""
        notes = [note for result in self.results for note in result.notes]
        return list(dict.fromkeys([*notes, *self._notes]))

    def begin(self) -> None:
        """Deletes an earlier run's files, if not yet done, and writes this run's files."""
        if not self._begun:
            self._begun = True
            self.files.begin_run()
            self.write()

    def write(self) -> None:
        """Writes `summary.csv`, `curves.csv` and `results.json`; replaces what it wrote before.

        A number that is not finite is `nan` or `inf` in CSV, and null in JSON.
        """
        files, points = self.files, []
        for result in self.results:
            about = {"head": result.head, "seed": result.seed}
            points += [{**about, **dataclasses.asdict(point)} for point in result.curve]
        rows = [dataclasses.asdict(row) for row in self.rows]
        write_csv(files.summary_csv, _names(SummaryRow), rows)
        write_csv(files.curves_csv, ["head", "seed", *_names(CurvePoint)], points)
        heads = [dataclasses.asdict(result) for result in self.results]
        text = json.dumps({**self._configuration, "heads": heads, "summary": rows})
        content = json.loads(text, parse_constant=lambda _: None)
        with _replaced(files.results_json) as file:
            json.dump(content, file, indent=2, allow_nan=False)

    def draw(self) -> str:
        """Writes the picture and the page; returns the reason if there is no picture."""
        files, problem = self.files, ""
        files.plot_png.unlink(missing_ok=True)  # of an earlier state
        try:
            plot_curves(self.results, self.title, files.plot_png)
        except ImportError:
            problem = HOW_TO_GET_PLOTS
        except Exception as error:  # results must survive any error of matplotlib
            problem = f"No plot: {root_message(str(error))}"
        with _replaced(files.page_html) as file:
            file.write(self._page())
        return problem

    def _page(self) -> str:
        """Returns a self-contained HTML page with everything."""
        title = html.escape(self.title)
        return f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<div class="wide">{self._repr_html_()}</div>
{_image(self.files.plot_png)}
<h2>How it was measured</h2>
<dl>
{self._definitions()}
</dl>
</html>
"""

    def _definitions(self) -> str:
        configuration = self._configuration
        lines: dict[str, str] = {}
        commands = [configuration.get("command"), *configuration.get("added_by", ())]
        for command in filter(None, commands):
            name = "Command" if not lines else f"Added by command {len(lines)}"
            words = command[1:] if command[1:2] == ["compare"] else ["compare", *command[1:]]
            lines[name] = shlex.join(["tfx-largeout", *words])
        for name in ("data", "training", "machine", "versions"):
            if name in configuration:
                lines[name.capitalize()] = _listed(configuration[name])
        for head, runs in by_head(self.results).items():
            if runs[0].options:
                lines[f"Options of {head}"] = _listed(runs[0].options)
        return "\n".join(
            f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>"
            for name, text in lines.items()
        )

    def __str__(self) -> str:
        return format_table(self.rows, self.notes)

    def _repr_html_(self) -> str:
        return html_table(self.rows, self.notes)


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, ""))


def _image(picture: Path) -> str:
    if not picture.exists():
        return ""
    data = base64.b64encode(picture.read_bytes()).decode("ascii")
    what = "P@1, P@5 and exact loss against seconds and examples"
    return f'<img alt="{what}" src="data:image/png;base64,{data}">'


def write_csv(path: Path, names: Iterable[str], rows: Iterable[dict[str, Any]]) -> None:
    """Writes a table with the columns `names`."""
    with _replaced(path) as file:
        writer = csv.DictWriter(file, list(names), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[TextIO]:
    """Writes a file atomically: a reader never sees half of it."""
    with written_whole(path) as new, open(new, "w", encoding="utf-8", newline="") as file:
        yield file


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def describe_machine() -> dict[str, Any]:
    """Returns operating system, processor, number of usable cores, and memory."""
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    affinity = hasattr(os, "sched_getaffinity")
    return {
        "system": platform.platform(),
        "processor": _processor(),
        "cores": len(os.sched_getaffinity(0)) if affinity else os.cpu_count() or 1,
        "memory_gib": round(pages / 2**30, 1),
    }


def describe_versions() -> dict[str, str]:
    """Returns the versions of Python and of relevant packages."""
    return {"python": platform.python_version(), **{name: _version(name) for name in _PACKAGES}}


def _processor() -> str:
    with contextlib.suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"
