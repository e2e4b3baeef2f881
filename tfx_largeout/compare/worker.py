# SPDX-License-Identifier: Apache-2.0
"""Trains one head in a separate process, or in one per worker: parent and child.

The child reads its `WorkerSettings` as JSON from standard input and writes changes of its
`HeadResult` to standard output, one JSON object per line: values of fields by name, sometimes the
mean `loss` since the last evaluation; a `note` or a `point` is appended to the earlier ones.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from tfx_largeout.compare.data import load
from tfx_largeout.compare.peers import PEERS, train_peer
from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.settings import WorkerSettings
from tfx_largeout.distribute import connect
from tfx_largeout.distribute.launcher import free_addresses, worker_environments

# With -m, Python would search the current folder first: in a clone it would find the source tree,
# without the shared library, instead of the installed package. The worker gets our path.
_WORKER_PROGRAM = """
import sys
sys.path[:] = sys.argv[1:]
from tfx_largeout.compare.worker import main
sys.exit(main())
"""
WORKER = (sys.executable, "-c", _WORKER_PROGRAM, *sys.path)
_SECONDS_TO_END = 5.0
# Errors that only mean that another worker has failed.
_OF_ANOTHER_WORKER = ("UnavailableError", "DeadlineExceededError")
# Called after each event with the result so far, and the training loss if the event has one.
OnChange = Callable[[HeadResult, float | None], None]


class DataError(Exception):
    """The data can't be read: no head can be trained."""


def run_head(
    settings: WorkerSettings, log: Path, on_change: OnChange, command: Sequence[str] = WORKER
) -> HeadResult:
    """Trains one head. After Ctrl-C the result has everything up to then.

    With several workers the first one sends events. The file `log` gets their standard error; it
    has the suffix `.part` until they have ended.

    Raises:
        DataError: The data are invalid; the message is one sentence.
    """
    result = HeadResult(settings.head, dict(settings.options), seed=settings.training.seed)
    start, others = time.monotonic(), ""
    with _open_log(log) as errors, contextlib.ExitStack() as stack:
        processes = [stack.enter_context(process) for process in _start(command, settings, errors)]
        try:
            for process in processes:
                _tell(process, settings)
            _follow(processes[0], result, on_change)
            for rank, process in enumerate(processes[1:], start=1):
                if process.poll() and not others:
                    others = f"worker {rank}: {_describe_exit(process.returncode)}"
        except KeyboardInterrupt:
            result.status = "interrupted"
        finally:
            _end(processes)
    if result.status == "running":
        result.status = "failed"
        result.error = f"{others or _describe_exit(processes[0].returncode)}; see {log}"
    elif others and (result.error or "").startswith(_OF_ANOTHER_WORKER):
        result.error = f"{others}; see {log}"
    result.wall_seconds = time.monotonic() - start
    return result


@contextlib.contextmanager
def _open_log(log: Path) -> Iterator[BinaryIO]:
    """A file that gets its name at the end, and is removed if the data are invalid."""
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
    """Starts the workers. Only the output of the first one is read."""
    workers = settings.training.workers
    alone = [dict(os.environ)]
    environments = alone if workers == 1 else worker_environments(free_addresses(workers))
    for rank, environment in enumerate(environments):
        # In a separate session, Ctrl-C reaches the worker only through this process.
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
    with contextlib.suppress(BrokenPipeError):  # it has ended; its exit code tells more
        json.dump(dataclasses.asdict(settings), process.stdin)
        process.stdin.close()


def _follow(process: subprocess.Popen[str], result: HeadResult, on_change: OnChange) -> None:
    assert process.stdout is not None
    result.status = "running"
    for line in process.stdout:
        told = json.loads(line)
        if "data_error" in told:
            raise DataError(told["data_error"])
        on_change(result, result.take(told))
    process.wait()


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


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"the process ended early with exit code {code}"
    name = signal.Signals(-code).name
    reason = ", perhaps for want of memory" if name == "SIGKILL" else ""
    return f"the process was killed by {name}{reason}"


def main() -> int:
    """Trains the head of the settings on standard input; returns the exit code."""
    send = _open_channel()
    settings = WorkerSettings.from_json(json.load(sys.stdin))
    try:
        _run(settings, send)
    except DataError as error:
        traceback.print_exc()
        send(data_error=str(error))
    except BaseException as error:
        traceback.print_exc()
        send(status="failed", error=f"{type(error).__name__}: {root_message(str(error))}")
    else:
        return 0
    return 1


def _run(settings: WorkerSettings, send: Callable[..., None]) -> None:
    # Imported here: it takes long to import, and the parent does not need it.
    from tfx_largeout.compare.training import train

    if settings.training.workers > 1:
        connect()
    try:
        examples = load(settings.data, send)
    except (OSError, ValueError) as error:
        raise DataError(str(error)) from error
    if settings.head in PEERS:
        train_peer(settings.head, *examples, send)
    else:
        train(settings, *examples, send)


def _open_channel() -> Callable[..., None]:
    """Returns a function that sends an event. Other output goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def send(**told: Any) -> None:
        channel.write(json.dumps({**told, "peak_bytes": _peak_bytes()}) + "\n")

    return send


def _peak_bytes() -> int:
    """Peak memory of this process.

    On Linux `ru_maxrss` starts from the peak of the process that started this one.
    """
    if sys.platform != "linux":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
