# SPDX-License-Identifier: Apache-2.0
"""launch: starts a script as several workers on this machine."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from typing import IO, Any

_EXIT_INTERRUPTED = 130
_GRACE = 5.0  # seconds for workers to end by themselves
_POLL = 0.1
_LIST = 60.0  # seconds to list the GPUs


def launch(command: Sequence[str], num_workers: int, restarts: int = 0) -> int:
    """Runs a Python script as several workers on this machine, each with a TF_CONFIG.

    Their output is printed line by line, after the worker's number. All are ended if one fails, on
    Ctrl-C and on SIGTERM; after a failure they are started again, on other ports, at most
    `restarts` times. The cores are divided among the workers, unless the environment sets
    TF_NUM_INTRAOP_THREADS or TF_NUM_INTEROP_THREADS. Each worker sees one GPU of
    CUDA_VISIBLE_DEVICES (default: of all); more workers than GPUs share them.

    Returns the exit code: 0; or the exit code of the first worker that failed (128 + n if signal n
    ended it), in the last attempt; 130 after Ctrl-C. Raises `SystemExit` of code 143 after SIGTERM,
    when all have ended.
    """
    with _ended_by_sigterm():
        for restart in range(restarts + 1):
            if restart:
                _tell(f"starting all workers again, {restart} of {restarts}")
            code = _run(command, num_workers)
            if code in (0, _EXIT_INTERRUPTED):
                break
        return code


@contextlib.contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """A context in which SIGTERM raises `SystemExit`, once; only in the main thread."""

    def end(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_IGN)
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _run(command: Sequence[str], num_workers: int) -> int:
    """Starts all workers once, and returns the exit code."""
    addresses = free_addresses(num_workers)
    processes: list[subprocess.Popen[str]] = []
    printers: list[threading.Thread] = []
    try:
        for rank, environment in enumerate(worker_environments(addresses)):
            process = _start(command, environment)
            processes.append(process)
            printers.append(threading.Thread(target=_print_lines, args=(rank, process.stdout)))
            printers[-1].start()
        return _first_failure(processes)
    except KeyboardInterrupt:
        return _EXIT_INTERRUPTED
    finally:
        _end(processes)
        for printer in printers:
            printer.join()


def worker_environments(addresses: Sequence[str]) -> list[dict[str, str]]:
    """Returns the workers' environments: their TF_CONFIG, and their shares of cores and GPUs."""
    threads = str(max((os.cpu_count() or 1) // len(addresses), 1))
    common = {"TF_NUM_INTRAOP_THREADS": threads, "TF_NUM_INTEROP_THREADS": threads}
    gpus = _gpus()
    if gpus and len(addresses) > len(gpus):  # otherwise the first worker takes all memory
        common["TF_FORCE_GPU_ALLOW_GROWTH"] = "true"
    environments = []
    for rank in range(len(addresses)):
        config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
        own = {"TF_CONFIG": json.dumps(config)}
        if gpus:
            own["CUDA_VISIBLE_DEVICES"] = gpus[rank % len(gpus)]
        environments.append({**common, **os.environ, **own})
    return environments


def _gpus() -> list[str]:
    """Returns the GPUs that a process would see, by the names of CUDA_VISIBLE_DEVICES."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:  # CUDA ignores what follows a name without a device
        names = [name.strip() for name in visible.split(",")]
        return list(itertools.takewhile(lambda name: name and not name.startswith("-"), names))
    command = shutil.which("nvidia-smi")
    if command is None:
        return []
    try:
        listed = subprocess.check_output([command, "-L"], timeout=_LIST)
    except (OSError, subprocess.SubprocessError):  # as without a driver
        return []
    gpus = [line for line in listed.splitlines() if line.startswith(b"GPU ")]
    return [str(number) for number in range(len(gpus))]


def free_addresses(number: int) -> list[str]:
    """Returns addresses of this machine with free ports."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for s in sockets:
            s.bind(("127.0.0.1", 0))
        return [f"127.0.0.1:{s.getsockname()[1]}" for s in sockets]


def _start(command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-u", *command],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    )


def _first_failure(processes: list[subprocess.Popen[str]]) -> int:
    """Waits for all workers and returns 0, or the exit code of the first that fails."""
    running = list(processes)
    while running:
        for process in running:
            code = process.poll()
            if code:
                rank = processes.index(process)
                _tell(f"worker {rank} ended with {code}" if code > 0 else _killed(rank, -code))
                return code if code > 0 else 128 - code
        running = [process for process in running if process.poll() is None]
        time.sleep(_POLL)
    return 0


def _killed(rank: int, number: int) -> str:
    return f"worker {rank} was ended by signal {number} ({signal.Signals(number).name})"


def _tell(what: str) -> None:
    print(f"tfx-largeout launch: {what}", file=sys.stderr, flush=True)


def _end(processes: list[subprocess.Popen[str]]) -> None:
    """Ends workers that still run; TensorFlow's server ignores SIGTERM."""
    end = time.monotonic() + _GRACE
    for process in processes:
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(max(end - time.monotonic(), 0))
        if process.poll() is None:
            process.kill()
            process.wait()


def _print_lines(rank: int, lines: IO[str] | None) -> None:
    """Prints a worker's output; still reads it if stdout is closed, so that it can continue."""
    for line in lines or ():
        text = f"[{rank}] {line if line.endswith(chr(10)) else line + chr(10)}"
        encoding = sys.stdout.encoding or "utf-8"
        with contextlib.suppress(OSError, ValueError):  # a broken pipe; a closed file
            sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
            sys.stdout.flush()
