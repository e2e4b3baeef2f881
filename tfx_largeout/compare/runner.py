# SPDX-License-Identifier: Apache-2.0
"""Starts a worker, follows it, and survives its end, whatever that is."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.settings import WorkerSettings
from tfx_largeout.distribute.launcher import free_addresses, worker_environment

# With -m, Python would look in the current folder first: in a clone it would find the source tree,
# which has no shared library, and not the installed package. The worker looks where we look.
_WORKER_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from tfx_largeout.compare.worker import main
sys.exit(main())
"""
WORKER = (sys.executable, "-c", _WORKER_PROGRAM, *sys.path)
_SECONDS_TO_END = 5.0


class DataError(Exception):
    """The data can't be read: no head will get any further."""


def run_head(
    settings: WorkerSettings,
    log: Path,
    on_change: Callable[[HeadResult, float | None], None],
    command: Sequence[str] = WORKER,
) -> HeadResult:
    """Trains one head in a process of its own, or in as many as there are workers.

    Ctrl-C ends it; the result then has the status `"interrupted"` and what came before.

    Args:
        settings: For the worker. Of several, the first one tells what happens.
        log: File that gets the worker's standard error, and appears when the worker has ended;
            until then it has the suffix `.part`.
        on_change: Called after each event with the result so far and the training loss, if the
            event has one.
        command: The command that starts the worker.

    Raises:
        DataError: The data are at fault, in one sentence.
    """
    result = HeadResult(settings.head, dict(settings.options), seed=settings.training.seed)
    start = time.monotonic()
    with _open_log(log) as errors, contextlib.ExitStack() as stack:
        processes = [stack.enter_context(process) for process in _start(command, settings, errors)]
        try:
            for process in processes:
                _tell(process, settings)
            _follow(processes[0], result, on_change)
            others = _describe_failure_of_others(processes)
        except KeyboardInterrupt:
            result.status = "interrupted"
        finally:
            _end(processes)
    if result.status == "running":
        result.status = "failed"
        result.error = f"{others or _describe_exit(processes[0].returncode)}; see {log}"
    elif result.status == "failed" and others and _names_no_cause(result.error):
        result.error = f"{others}; see {log}"
    result.wall_seconds = time.monotonic() - start
    return result


@contextlib.contextmanager
def _open_log(log: Path) -> Iterator[BinaryIO]:
    """A file that takes its name at the end, or goes where the data are at fault."""
    unfinished = log.with_suffix(".part")
    try:
        with open(unfinished, "wb") as file:
            yield file
    except DataError:
        unfinished.unlink()
        raise
    unfinished.replace(log)


def _start(
    command: Sequence[str], settings: WorkerSettings, errors: BinaryIO
) -> Iterator[subprocess.Popen[str]]:
    """Starts the workers. What others than the first one tell is not read."""
    addresses = free_addresses(settings.training.workers)
    for rank in range(len(addresses)):
        environment = dict(os.environ)
        if len(addresses) > 1:
            environment = worker_environment(addresses, rank)
        # In a session of its own, Ctrl-C reaches the worker through us alone.
        yield subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL if rank else subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
            env={"TF_CPP_MIN_LOG_LEVEL": "2", **environment},
        )


def _tell(process: subprocess.Popen[str], settings: WorkerSettings) -> None:
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it has ended already; its exit code says more
        json.dump(dataclasses.asdict(settings), process.stdin)
        process.stdin.close()


def _follow(
    process: subprocess.Popen[str],
    result: HeadResult,
    on_change: Callable[[HeadResult, float | None], None],
) -> None:
    assert process.stdout is not None
    result.status = "running"
    for line in process.stdout:
        on_change(result, _apply(json.loads(line), result))
    process.wait()


def _apply(event: dict[str, Any], result: HeadResult) -> float | None:
    """Puts an event into the result; returns the training loss, if it has one."""
    result.peak_bytes = event["peak_bytes"]
    if event["event"] == "failed" and event["data_at_fault"]:
        raise DataError(event["error"])
    return result.take(event["event"], event)


def _end(processes: Sequence[subprocess.Popen[str]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + _SECONDS_TO_END
    for process in processes:
        try:
            process.wait(max(end - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            process.kill()


def _describe_failure_of_others(processes: Sequence[subprocess.Popen[str]]) -> str:
    """Says how a worker other than the first has failed, or nothing."""
    for rank, process in enumerate(processes[1:], start=1):
        if process.poll():
            return f"worker {rank}: {_describe_exit(process.returncode)}"
    return ""


def _names_no_cause(error: str | None) -> bool:
    """Whether an error tells of nothing but another worker that has failed."""
    return (error or "").startswith(("UnavailableError", "DeadlineExceededError"))


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the process ended early with exit code {code}"
    name = signal.Signals(-code).name
    reason = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"the process was killed by {name}{reason}"
