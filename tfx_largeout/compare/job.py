# SPDX-License-Identifier: Apache-2.0
"""The job: trains one head after the other, and reports."""

from __future__ import annotations

import dataclasses
import functools
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfx_largeout.compare.comparison import Comparison
from tfx_largeout.compare.earlier_run import EarlierRun
from tfx_largeout.compare.machine import describe_machine, describe_versions
from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.peers import PEERS
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.runner import WORKER, run_head
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.turns import OnChange, Turn, run_name, say, take_turns

EXIT_SUCCESS, EXIT_FAILURE, EXIT_INTERRUPTED = 0, 1, 130


@dataclasses.dataclass(frozen=True)
class Job:
    """What to compare.

    Attributes:
        heads: Names of heads, and the options of each, in the order of training.
        peers: Names of other methods (`peers.py`), which come after them.
        missing_peers: Names of those that would come, were they installed.
        functions: `package.module:function` of each head of the user's own.
        chosen: Names of the options that the user chose, of each head.
        data_name: What the user calls the data.
        data: The data.
        training: What all heads have in common.
    """

    heads: dict[str, dict[str, Any]]
    data_name: str
    data: DataSettings
    training: TrainingSettings
    peers: tuple[str, ...] = ()
    chosen: dict[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    missing_peers: tuple[str, ...] = ()
    functions: dict[str, str] = dataclasses.field(default_factory=dict)


def run_job(
    job: Job,
    files: OutputFolder,
    worker: Sequence[str] = WORKER,
    open_page: bool = False,
    earlier: EarlierRun | None = None,
) -> int:
    """Trains the heads, and reports: progress on standard error, the table on standard output.

    Args:
        job: What to compare.
        files: Where the results go; the folders have been made.
        worker: Command of the process that trains a head.
        open_page: Whether to show the page of all results in a browser.
        earlier: A run to which the heads are added, in its own folder.

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
    notes = [how_to_get(job.missing_peers)] if job.missing_peers else []
    comparison = Comparison(job.data_name, files, configuration, results, notes)
    turns = []
    for name, settings in _all_settings(job, files):
        files.train_again(name)
        train = functools.partial(_train, settings, files.log(name), worker, note)
        turns.append(Turn(name, train))
    left = take_turns(turns, comparison, files, job.training)
    if open_page and not webbrowser.open(files.page_html.resolve().as_uri()):
        say(f"No browser was found to open {files.page_html}.")
    statuses = {result.status for result in comparison.results[len(results) :]}
    if "interrupted" in statuses:
        say(f"Interrupted. Not trained: {', '.join(left) or 'none'}.")
        return EXIT_INTERRUPTED
    return EXIT_FAILURE if "failed" in statuses else EXIT_SUCCESS


def _added(new: dict[str, Any], earlier: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Returns the configuration of a run to which heads are added, and a note on these."""
    note, where = "", ("machine", "versions")
    if any(new[name] != earlier[name] for name in where):
        machine, version = new["machine"], new["versions"]["tensorflow"]
        about = f"{machine['processor']}, {machine['cores']} cores, TensorFlow {version}"
        note = f"was trained later than the others, on another machine or other versions: {about}."
    merged = {name: new[name] for name in ("chosen", "functions")}
    merged = {name: {**earlier.get(name, {}), **values} for name, values in merged.items()}
    peers = list(dict.fromkeys([*earlier["peers"], *new["peers"]]))
    added_by = [*earlier.get("added_by", []), new["command"]]
    return {**earlier, **merged, "peers": peers, "added_by": added_by}, note


def how_to_get(peers: Sequence[str]) -> str:
    """Says which peers are not installed, and how to get them."""
    packages = " ".join(PEERS[name].package for name in peers)
    return (
        f"Peers not installed: {', '.join(peers)} (`pip install {packages}`, or in a clone "
        '`pip install ".[peers]"`).'
    )


def _train(
    settings: WorkerSettings, log: Path, worker: Sequence[str], note: str, on_change: OnChange
) -> HeadResult:
    result = run_head(settings, log, on_change, worker)
    if note:
        result.notes.append(f"{settings.head} {note}")
    return result


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
        count += f", {job.training.epochs:g} epochs each"
    else:
        count += f", {job.training.budget:g} s of training each"
    return f"{count}; then {', '.join(job.peers)}" if job.peers else count
