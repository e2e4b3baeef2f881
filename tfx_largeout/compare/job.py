# SPDX-License-Identifier: Apache-2.0
"""The job: trains one head after the other, with a line of progress, and reports the results."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import sys
import webbrowser
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TextIO

from tfx_largeout.compare.comparison import (
    Comparison,
    OutputFolder,
    describe_machine,
    describe_versions,
)
from tfx_largeout.compare.peers import PEERS
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.worker import WORKER, OnChange, run_head

_BAR_WIDTH = 20
EXIT_SUCCESS, EXIT_FAILURE, EXIT_INTERRUPTED = 0, 1, 130


@dataclasses.dataclass(frozen=True)
class Job:
    """The comparison, in the order of training: heads with their options, then peers."""

    heads: dict[str, dict[str, Any]]
    data_name: str  # the user's name for the data
    data: DataSettings
    training: TrainingSettings
    peers: tuple[str, ...] = ()
    # For each head, the names of the options chosen by the user.
    chosen: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    missing_peers: tuple[str, ...] = ()  # peers that are not installed
    # `package.module:function` of each custom head.
    functions: dict[str, str] = dataclasses.field(default_factory=dict)


class EarlierRun(NamedTuple):
    """A finished run to which heads are added, read from its `results.json`."""

    configuration: dict[str, Any]  # everything except the results
    data_name: str
    data: DataSettings
    training: TrainingSettings
    results: list[HeadResult]

    @classmethod
    def read(cls, file: Path) -> EarlierRun:
        """Reads a `results.json`.

        Raises:
            ValueError: It was not written by this version of `tfx-largeout compare`.
        """
        try:
            content = json.loads(file.read_bytes())
            results = [HeadResult.from_json(fields) for fields in content.pop("heads")]
            del content["summary"]
            data = _all_fields(DataSettings, content["data"])
            training = _all_fields(TrainingSettings, content["training"])
            return cls(content, content["data_name"], data, training, results)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(
                "must be a folder with a results.json that this version of `tfx-largeout compare` "
                f"has written; got {str(file.parent)!r} ({type(error).__name__}: {error})"
            ) from None

    def without(self, heads: Collection[str]) -> EarlierRun:
        """Returns the run without heads that are trained again.

        Raises:
            ValueError: One of them has finished training, with all seeds.
        """
        for head in heads:
            statuses = {result.status for result in self.results if result.head == head}
            if statuses == {"done"}:
                raise ValueError(f"must be new to the results, or have failed there; got {head!r}")
        return self._replace(results=[r for r in self.results if r.head not in heads])

    @property
    def arguments(self) -> dict[str, Any]:
        """The command's arguments for data and training."""
        settings = {**dataclasses.asdict(self.data), **dataclasses.asdict(self.training)}
        return {"data": self.data_name, **settings}


def _all_fields(kind: Any, values: dict[str, Any]) -> Any:
    """Creates settings; none may be missing, since its default may have changed."""
    missing = {field.name for field in dataclasses.fields(kind)} - values.keys()
    if missing:
        raise KeyError(", ".join(sorted(missing)))
    return kind(**values)


def run_job(
    job: Job,
    files: OutputFolder,
    worker: Sequence[str] = WORKER,
    open_page: bool = False,
    earlier: EarlierRun | None = None,
) -> int:
    """Trains the heads, each by the command `worker`, and reports to an existing folder.

    With an `earlier` run, heads are added to its folder.

    Returns:
        The exit code: 1 if a head failed, 130 after Ctrl-C, else 0.

    Raises:
        DataError: The data can't be read.
    """
    configuration = {**dataclasses.asdict(job), "command": sys.argv}
    configuration |= {"machine": describe_machine(), "versions": describe_versions()}
    results, note = [], ""
    if earlier is not None:
        configuration, note = _added(configuration, earlier.configuration)
        results = earlier.results
    say(f"{job.data_name}: {_describe_length(job)}; evaluation is not counted.")
    notes = []
    if job.missing_peers:
        packages = " ".join(PEERS[name].package for name in job.missing_peers)
        notes.append(
            f"Peers not installed: {', '.join(job.missing_peers)} (`pip install {packages}`, or in "
            'a clone `pip install ".[peers]"`).'
        )
    comparison = Comparison(job.data_name, files, configuration, results, notes)
    turns = []
    for name, settings in _all_settings(job, files):
        files.train_again(name)
        turns.append((name, functools.partial(_train, settings, files.log(name), worker, note)))
    take_turns(turns, comparison, job.training)
    if open_page and not webbrowser.open(files.page_html.resolve().as_uri()):
        say(f"No browser was found to open {files.page_html}.")
    statuses = {result.status for result in comparison.results[len(results) :]}
    if "interrupted" in statuses:
        return EXIT_INTERRUPTED
    return EXIT_FAILURE if "failed" in statuses else EXIT_SUCCESS


def _train(
    settings: WorkerSettings, log: Path, worker: Sequence[str], note: str, on_change: OnChange
) -> HeadResult:
    result = run_head(settings, log, on_change, worker)
    if note:
        result.notes.append(f"{settings.head} {note}")
    return result


def _added(new: dict[str, Any], earlier: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the configuration of a run to which heads are added, and a note about them."""
    note, where = "", ("machine", "versions")
    if any(new[name] != earlier[name] for name in where):
        machine, version = new["machine"], new["versions"]["tensorflow"]
        about = f"{machine['processor']}, {machine['cores']} cores, TensorFlow {version}"
        note = f"was trained later than the others, on another machine or other versions: {about}."
    merged = {name: {**earlier.get(name, {}), **new[name]} for name in ("chosen", "functions")}
    peers = list(dict.fromkeys([*earlier["peers"], *new["peers"]]))
    added_by = [*earlier.get("added_by", []), new["command"]]
    return {**earlier, **merged, "peers": peers, "added_by": added_by}, note


def _all_settings(job: Job, files: OutputFolder) -> Iterator[tuple[str, WorkerSettings]]:
    """Yields name and settings of each training: all heads with the first seed, then the next."""
    common = job.training
    for seed in range(common.seed, common.seed + common.seeds):
        for head, options in job.heads.items():
            name = run_name(head, seed, common.seeds)
            training = dataclasses.replace(common, seed=seed)
            events = str(files.tensorboard / name)
            chosen = job.chosen.get(head, ())
            function = job.functions.get(head, "")
            settings = WorkerSettings(head, options, job.data, training, events, chosen, function)
            yield name, settings
    counts = dataclasses.replace(job.data, features="counts")
    alone = dataclasses.replace(common, workers=1)
    for peer in job.peers:
        yield peer, WorkerSettings(peer, {}, counts, alone, "")


def _describe_length(job: Job) -> str:
    count = f"{len(job.heads)} head" + "s" * (len(job.heads) > 1)
    if job.training.seeds > 1:
        count += f" with {job.training.seeds} seeds"
    if job.training.workers > 1:
        count += f" over {job.training.workers} workers"
    if job.training.epochs is not None:
        epochs = job.training.epochs
        count += f", {epochs:g} epoch{'s' * (epochs != 1)} each"
    else:
        count += f", {job.training.budget:g} s of training each"
    return f"{count}; then {', '.join(job.peers)}" if job.peers else count


def run_name(head: str, seed: int, seeds: int) -> str:
    """Returns the name of a head's turn, with the seed if there are several."""
    return head if seeds == 1 else f"{head}-seed{seed}"


def take_turns(
    turns: Sequence[tuple[str, Callable[[OnChange], HeadResult]]],
    comparison: Comparison,
    settings: TrainingSettings,
) -> None:
    """Trains, with progress on standard error, and prints the table on standard output.

    A turn is a name for the progress line, and a function that trains; an interrupted turn is the
    last. CSV and JSON are rewritten after each turn, so that no results are lost. Files of an
    earlier run are deleted once a training has begun.
    """
    progress = Progress(sys.stderr, settings, [name for name, _ in turns])

    def on_change(result: HeadResult, loss: float | None) -> None:
        if result.stage == "training":
            comparison.begin()  # data are valid: earlier results may be deleted
        progress.update(result, loss)

    left, interrupted = list(turns), False
    while left and not interrupted:
        name, train = left.pop(0)
        progress.begin(name)
        result = train(on_change)
        comparison.begin()
        progress.end(result)
        comparison.results.append(result)
        comparison.write()
        interrupted = result.status == "interrupted"
    print("", comparison, "", sep="\n", flush=True)
    say(comparison.draw())
    files = comparison.files
    say(f"Results: {files.path}   (tensorboard --logdir {files.tensorboard})")
    say(f"As one page: {files.page_html}")
    if interrupted:
        say(f"Interrupted. Not trained: {', '.join(name for name, _ in left) or 'none'}.")


def say(text: str) -> None:
    """Prints a message on standard error."""
    if text:
        print(text, file=sys.stderr, flush=True)


class Progress:
    """Shows the progress of each of `heads`, the names for `begin`.

    On a terminal the line, with a bar, is rewritten at each event; elsewhere each evaluation prints
    a line.
    """

    def __init__(self, stream: TextIO, settings: TrainingSettings, heads: list[str]) -> None:
        self._stream = stream
        self._live = stream.isatty()
        self._settings = settings
        self._width = max(map(len, heads), default=0)
        self._name = ""
        self._num_points = 0
        self._loss: float | None = None

    def begin(self, head: str) -> None:
        """Shows that a head's process starts."""
        self._name, self._num_points, self._loss = f"{head:{self._width}}", 0, None
        self._show(f"{self._name}  starting")

    def update(self, result: HeadResult, loss: float | None) -> None:
        """Shows a changed result, and the latest training loss."""
        self._loss = self._loss if loss is None else loss
        if self._live or len(result.curve) > self._num_points:
            self._num_points = len(result.curve)
            self._show(self._line(result))

    def end(self, result: HeadResult) -> None:
        """Prints the last line."""
        if result.status == "failed":
            self._show(f"{self._name}  failed: {result.error}")
        elif self._live:
            self._show(self._line(result))
        if self._live:
            self._stream.write("\n")
            self._stream.flush()

    def _line(self, result: HeadResult) -> str:
        if not result.steps_per_epoch:  # a peer, or before the first step
            if not result.curve:
                return f"{self._name}  {result.stage}"
            precision = 100 * result.curve[-1].precision_at_1
            return f"{self._name}  {result.seconds:.1f} s  P@1 {precision:.2f}%"
        settings, seconds = self._settings, result.seconds
        done = settings.fraction_done(result.steps, seconds, result.steps_per_epoch)
        if settings.epochs is None:
            share = f"{seconds:5.1f}/{settings.budget:g} s"
        else:
            share = f"{seconds:5.1f} s  epoch {result.epochs:.2f}/{settings.epochs:g}"
        parts = [self._name]
        if self._live:
            full = round(min(done, 1.0) * _BAR_WIDTH)
            parts.append(f"[{'#' * full:.<{_BAR_WIDTH}}]")
            if done and seconds:
                share += f", {seconds * max(1 / done - 1, 0):.0f} s left"
        parts += [share, f"step {result.steps:,}"]
        if settings.epochs is None:
            parts.append(f"epoch {result.epochs:.2f}")
        if self._loss is not None:
            parts.append(f"loss {self._loss:.3f}")
        if result.curve:
            parts.append(f"P@1 {100 * result.curve[-1].precision_at_1:.2f}%")
        if result.status == "interrupted":
            parts.append("interrupted")
        return "  ".join(parts)

    def _show(self, line: str) -> None:
        if self._live:
            columns = _columns(self._stream)
            self._stream.write(f"\r{line[: columns - 1]}\x1b[K")
        else:
            self._stream.write(line + "\n")
        self._stream.flush()


def _columns(stream: TextIO) -> int:
    try:
        return os.get_terminal_size(stream.fileno()).columns or 80
    except OSError:
        return 80
