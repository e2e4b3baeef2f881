# SPDX-License-Identifier: Apache-2.0
"""The job: trains one head after the other, and reports."""

from __future__ import annotations

import dataclasses
import sys
import webbrowser
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tfx_largeout.compare.machine import describe_machine, describe_versions
from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.page import write_page
from tfx_largeout.compare.plots import HOW_TO_GET_PLOTS, plot_precision
from tfx_largeout.compare.progress import Progress
from tfx_largeout.compare.report import write_report
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.runner import WORKER, run_head
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.summary import summarize
from tfx_largeout.compare.table import format_table

EXIT_SUCCESS, EXIT_FAILURE, EXIT_INTERRUPTED = 0, 1, 130


@dataclasses.dataclass(frozen=True)
class Job:
    """What to compare.

    Attributes:
        heads: Names of heads, and the options of each, in the order of training.
        peers: Names of other methods (`peers.py`), which come after them.
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


def run_job(
    job: Job, folder: OutputFolder, worker: Sequence[str] = WORKER, open_page: bool = False
) -> int:
    """Trains the heads, and reports: progress on standard error, the table on standard output.

    The files are written anew after each head, so that nothing is lost whatever happens.

    Args:
        job: What to compare.
        folder: Where the results go; its folders have been made.
        worker: Command of the process that trains a head.
        open_page: Whether to write one page of all results, and to show it in a browser.

    Returns:
        The exit code: 1 if a head failed, 130 after Ctrl-C, else 0.

    Raises:
        DataError: The data can't be read.
    """
    configuration = {**dataclasses.asdict(job), "command": sys.argv}
    configuration |= {"machine": describe_machine(), "versions": describe_versions()}
    _say(f"{job.data_name}: {_describe_length(job)}; evaluation is not counted.")
    progress = Progress(sys.stderr, job.training, [*job.heads, *job.peers])
    results: list[HeadResult] = []
    begun = False

    def begin_once() -> None:
        nonlocal begun
        if not begun:
            begun = True
            folder.begin_run()
            write_report(folder, configuration, results)

    def on_change(result: HeadResult, loss: float | None) -> None:
        if result.stage == "training":
            begin_once()  # the data are good: now an earlier run's results may go
        progress.update(result, loss)

    for settings in _all_settings(job, folder):
        head = settings.head
        progress.begin(head)
        result = run_head(settings, folder.log(head), on_change, worker)
        begin_once()
        progress.end(result)
        results.append(result)
        write_report(folder, configuration, results)
        if result.status == "interrupted":
            break
    notes = list(dict.fromkeys(note for result in results for note in result.notes))
    rows = summarize(results)
    print("", format_table(rows), *notes, "", sep="\n", flush=True)
    _draw(job, folder, results)
    if open_page:
        write_page(folder.page_html, _title(job, results), rows, notes, folder.plot_png)
        _open(folder.page_html)
    _say(f"Results: {folder.path}   (tensorboard --logdir {folder.tensorboard})")
    statuses = {result.status for result in results}
    if "interrupted" in statuses:
        left = [*job.heads, *job.peers][len(results) :]
        _say(f"Interrupted. Not trained: {', '.join(left) or 'none'}.")
        return EXIT_INTERRUPTED
    return EXIT_FAILURE if "failed" in statuses else EXIT_SUCCESS


def _all_settings(job: Job, folder: OutputFolder) -> Iterator[WorkerSettings]:
    for head, options in job.heads.items():
        events = str(folder.tensorboard / head)
        chosen = job.chosen.get(head, ())
        yield WorkerSettings(head, options, job.data, job.training, events, chosen)
    counts = dataclasses.replace(job.data, features="counts")
    alone = dataclasses.replace(job.training, workers=1)
    for peer in job.peers:
        yield WorkerSettings(peer, {}, counts, alone, "")


def _describe_length(job: Job) -> str:
    count = f"{len(job.heads)} head" + "s" * (len(job.heads) > 1)
    if job.training.workers > 1:
        count += f" over {job.training.workers} workers"
    if job.training.epochs is not None:
        count += f", {job.training.epochs:g} epochs each"
    else:
        count += f", {job.training.budget:g} s of training each"
    return f"{count}; then {', '.join(job.peers)}" if job.peers else count


def _draw(job: Job, folder: OutputFolder, results: Sequence[HeadResult]) -> None:
    try:
        plot_precision(results, _title(job, results), folder.plot_png)
    except ImportError:
        _say(HOW_TO_GET_PLOTS)
    except Exception as error:  # whatever matplotlib stumbles over, the results are there
        _say(f"No plot: {root_message(str(error))}")


def _title(job: Job, results: Sequence[HeadResult]) -> str:
    classes = next((f"{r.data['classes']:,} classes, " for r in results if r.data), "")
    return f"{job.data_name}: {classes}batches of {job.training.batch_size}"


def _open(page: Path) -> None:
    if not webbrowser.open(page.resolve().as_uri()):
        _say(f"No browser was found to open {page}.")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
