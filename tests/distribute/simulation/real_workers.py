# SPDX-License-Identifier: Apache-2.0
"""The same over TensorFlow's collectives, between processes, on a real disk.

    python real_workers.py behaviours FOLDER    # the table; writes the results
    python real_workers.py seeds FOLDER 20      # runs that are killed, by their seeds

Processes are forked from a process that has only imported TensorFlow.
"""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
os.environ["CUDA_VISIBLE_DEVICES"] = "-1"
os.environ["TF_NUM_INTRAOP_THREADS"] = "1"
os.environ["TF_NUM_INTEROP_THREADS"] = "2"
sys.path.insert(0, str(Path(__file__).parents[2]))

import tensorflow as tf
from distribute.simulation import behaviours, simulate, worker
from distribute.simulation.invariants import Invariants
from distribute.simulation.problem import Problem

import tfx_largeout as tlo
from tfx_largeout.callbacks import checkpoint_file
from tfx_largeout.distribute.launcher import free_addresses

LIMIT = 240.0  # seconds of a start; a twentieth of it where nothing else runs


def forked(size: int, run: Callable[[Any], None], grace: float, **options: Any) -> list[int]:
    """Runs workers; ends all some seconds after one has failed. Returns how each has ended."""
    addresses = free_addresses(size)
    pids: list[int] = []
    for rank in range(size):
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                run(tlo.distribute.connect(addresses, rank, timeout=120, **options))
                code = 0
            except BaseException:
                traceback.print_exc()
            time.sleep(1.0)  # as at the end of Python, so that the others finish their collective
            os._exit(code)
        pids.append(pid)
    codes: dict[int, int] = {}
    end = time.monotonic() + LIMIT
    while len(codes) < size:
        for rank, pid in enumerate(pids):
            ended, status = os.waitpid(pid, os.WNOHANG) if rank not in codes else (0, 0)
            if ended:
                codes[rank] = os.waitstatus_to_exitcode(status)
                if codes[rank]:
                    end = min(end, time.monotonic() + grace)
        if time.monotonic() > end:
            for rank, pid in enumerate(pids):
                if rank not in codes:
                    os.kill(pid, signal.SIGKILL)
                    end += 1.0
        time.sleep(0.02)
    return [codes[rank] for rank in range(size)]


def run_behaviours(folder: Path) -> None:
    """Writes the result of each, and of all that succeed in one start."""

    def start(name: str, several: dict[str, behaviours.Behaviour]) -> None:
        def work(workers: Any) -> None:
            found = {}
            here = SimpleNamespace(workers=workers, tf=tf, sleep=time.sleep)
            here.kill = lambda: os.kill(os.getpid(), signal.SIGKILL)
            here.stop = stop
            try:
                for of, behaviour in several.items():
                    found[of] = behaviours.plain(behaviour.run(here))
            except Exception as error:
                found[of] = type(error).__name__
                raise
            finally:
                (folder / f"{name}-{workers.rank}.json").write_text(json.dumps(found))

        limits = {
            "step_timeout": behaviours.STEP_TIMEOUT,
            "heartbeat_timeout": behaviours.HEARTBEAT,
        }
        forked(2, work, behaviours.GRACE, **limits)

    chosen = sys.argv[3:] or ["well", *behaviours.ERRORS]
    for name in chosen:
        start(name, behaviours.WELL if name == "well" else {name: behaviours.ERRORS[name]})


def stop(seconds: float) -> None:
    """Stops this process; another process resumes it."""
    me = os.getpid()
    if os.fork() == 0:
        time.sleep(seconds)
        with contextlib.suppress(ProcessLookupError):
            os.kill(me, signal.SIGCONT)
        os._exit(0)
    os.kill(me, signal.SIGSTOP)


def run_seed(seed: int, folder: Path) -> int:
    """Runs a seed whose faults are kills; returns how many starts it took."""
    problem, plan = Problem(seed), simulate.Plan.of(seed, kinds=("kill",))
    invariants, folder = Invariants(problem), folder / str(seed)
    folder.mkdir()
    for number, (shape, faults) in enumerate(zip(plan.shapes, plan.faults, strict=True)):

        def work(workers: Any, number: int = number, faults: Any = faults) -> None:
            points = {"network": 0, "disk": 0}
            mine = [fault for fault in faults if fault.rank % workers.size == workers.rank]
            at = [(kind, n if kind == "network" else 1 + n // 6) for _, _, (kind, n), _ in mine]

            def point(kind: str) -> None:
                points[kind] += 1
                if (kind, points[kind]) in at:
                    os.kill(os.getpid(), signal.SIGKILL)

            for name in ("gather", "add_up", "exchange"):
                _before(workers, name, lambda: point("network"))
            _before(checkpoint_file, "os", None)
            for name in ("fsync", "replace"):
                _before(checkpoint_file.os, name, lambda: point("disk"))
            with (folder / f"said-{number}-{workers.rank}").open("wb") as file:

                def observe(kind: str, step: int, value: Any) -> None:
                    said = (time.monotonic(), workers.rank, kind, step, value)
                    pickle.dump(said, file)
                    file.flush()

                worker.Worker(workers, folder / "run", problem, observe).train()

        invariants.begin(number, *shape, {path.name: path for path in (folder / "run").glob("*")})
        codes = forked(shape.size, work, 3.0, data_replicas=shape.groups)
        said = [
            item for rank in range(shape.size) for item in _said(folder / f"said-{number}-{rank}")
        ]
        for _, *observation in sorted(said, key=lambda item: item[0]):
            invariants.observe(*observation)
        files = (folder / "run").glob("*")
        invariants.check_disk({path.name: _Whole(path.read_bytes()) for path in files})
        if not any(codes):
            break
    assert len(invariants.ends) == shape.size, (seed, codes)
    return number + 1


class _Whole:
    """A file of the real disk, with the interface of the simulated file."""

    def __init__(self, data: bytes) -> None:
        self.data = data


def _before(owner: Any, name: str, action: Any) -> None:
    """Has something happen before each call; without an action only makes a copy of a module."""
    run = getattr(owner, name)
    if action is None:
        setattr(owner, name, SimpleNamespace(**vars(run)))
        return

    def with_action(*arguments: Any) -> Any:
        action()
        return run(*arguments)

    setattr(owner, name, with_action)


def _said(path: Path) -> list[Any]:
    said = []
    with (
        contextlib.suppress(FileNotFoundError, EOFError, pickle.UnpicklingError),
        path.open("rb") as f,
    ):
        while True:
            said.append(pickle.load(f))
    return said


if __name__ == "__main__":
    _, part, place, *options = sys.argv
    if part == "behaviours":
        run_behaviours(Path(place))
    else:
        for seed in range(int(options[0])):
            print(seed, run_seed(seed, Path(place)), "starts", flush=True)
