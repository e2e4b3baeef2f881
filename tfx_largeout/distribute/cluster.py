# SPDX-License-Identifier: Apache-2.0
"""connect: joins the workers that train a model together."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from types import TracebackType
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument, number_argument
from tfx_largeout.distribute.collectives import ConnectedWorkers, WaitLimit
from tfx_largeout.distribute.meeting import agree
from tfx_largeout.distribute.workers import Workers, current, set_current
from tfx_largeout.tensorflow_internals import configure_coordination

_JOBS = ("chief", "worker")
_WIRE_DTYPES = ("float32", "bfloat16")
_PAUSE = 1.0  # seconds for the others to finish the last collective before this process leaves
_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
_TASK = re.compile(r"/job:(\w+)(?:/replica:0)?/task:(\d+)")
_TO_THE_FIRST = "CoordinationService"  # which worker 0 runs


class _Place(NamedTuple):
    tasks: list[tuple[str, int]]  # the job and task of each rank
    addresses: list[str]
    rank: int


def connect(
    addresses: Sequence[str] | None = None,
    rank: int | None = None,
    timeout: float = 60.0,
    step_timeout: float = 600.0,
    heartbeat_timeout: float = 30.0,
    wire_dtype: str = "float32",
    data_replicas: int = 1,
) -> Workers:
    """Joins the workers that train a model together. With one process nothing happens.

    Each process calls it first, before TensorFlow computes anything. It returns when all have
    joined. Heads that are built later hold a part of the classes on each worker, and `DataParallel`
    and `shard` take effect.

    Args:
        addresses: `"host:port"` of each worker, in the same order everywhere. Default None: the
            addresses in the environment variable TF_CONFIG (jobs `chief` and `worker`); without it,
            the process is alone.
        rank: The number of this worker among the addresses.
        timeout: Seconds within which all workers must join. Then the process ends with a message:
            TensorFlow's wait can't be interrupted otherwise.
        step_timeout: Seconds that a worker waits for the others in a step.
        heartbeat_timeout: Seconds without a heartbeat after which a process counts as hanging, and
            all others end. A killed process is noticed at once. Choose more seconds than a busy
            machine may keep a process from running.
        wire_dtype: `"float32"` or `"bfloat16"`: the dtype in which training sends float32 hidden
            vectors and gradients. bfloat16 halves the bytes per step; sums are taken in float32,
            and weights, evaluation and checkpoints do not change. The rows of a `FactoredHead` and
            a `RowEmbedding` are sent unrounded. Default `"float32"`.
        data_replicas: G, the number of copies of a head's classes; it divides the number of
            workers R. Workers of consecutive ranks make up G groups of R / G. Each group holds all
            classes and gets 1 / G of the batch. Workers that hold the same classes add up their
            gradients, and stay bitwise equal. For many workers, if few of them can hold W. For
            `SampledHead` and `ExactSoftmaxHead`. Default 1.

    Returns:
        The workers: `size`, and the `rank` of this one.

    Raises:
        ValueError: An argument or TF_CONFIG is wrong; workers differ in `wire_dtype`,
            `data_replicas`, or the version of this package, TensorFlow, Keras or Python.
        RuntimeError: The port of this worker is taken, TensorFlow has computed something already,
            or the process is already connected.
    """
    timeout = number_argument("timeout", timeout, above=0)
    step_timeout = number_argument("step_timeout", step_timeout, above=0)
    heartbeat_timeout = number_argument("heartbeat_timeout", heartbeat_timeout, above=0)
    if wire_dtype not in _WIRE_DTYPES:
        raise ValueError(f"wire_dtype must be one of {_WIRE_DTYPES}; got {wire_dtype!r}")
    data_replicas = integer_argument("data_replicas", data_replicas, at_least=1)
    if not current().alone:
        raise RuntimeError(
            f"connect must be called once in a process; got a second call, with {current().size} "
            "workers connected"
        )
    place = _of_environment() if addresses is None else _of_arguments(addresses, rank)
    if place is None or len(place.addresses) == 1:
        return current()
    if len(place.addresses) % data_replicas:
        raise ValueError(
            f"data_replicas must divide the number of workers, {len(place.addresses)}; got "
            f"{data_replicas}"
        )
    _check_addresses(place.addresses)
    _check_port(place.addresses[place.rank])
    workers = _join(place, timeout, step_timeout, heartbeat_timeout, tf.as_dtype(wire_dtype))
    atexit.register(time.sleep, _PAUSE)
    explain_at_exit(place.tasks, place.addresses, place.rank)
    agree(workers, "connect", _versions())
    agree(workers, "connect", {"wire_dtype": wire_dtype, "data_replicas": data_replicas})
    if data_replicas > 1:
        workers.divide(data_replicas)
    set_current(workers)
    return workers


def _join(
    place: _Place,
    timeout: float,
    step_timeout: float,
    heartbeat_timeout: float,
    wire_dtype: tf.DType,
) -> Workers:
    addresses, rank = place.addresses, place.rank
    message = (
        f"tlo.distribute.connect: not all of {len(addresses)} workers were there within "
        f"{timeout:g} seconds (this is worker {rank} of {addresses}). Start all of them, and "
        "check that they can reach each other's addresses. Ending this process."
    )
    jobs: dict[str, list[str]] = {}
    for (name, _), address in zip(place.tasks, addresses, strict=True):
        jobs.setdefault(name, []).append(address)
    (leader, _), (job, task) = place.tasks[0], place.tasks[rank]
    try:
        configure_coordination(
            service_type="standalone",
            service_leader=f"/job:{leader}/replica:0/task:0",
            # The message of the time limit below is clearer than this error.
            cluster_register_timeout_in_ms=int(1000 * (timeout + 30)),
            heartbeat_timeout_in_ms=int(1000 * heartbeat_timeout),
            coordinated_jobs=_coordinated(jobs),
        )
        resolver = tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec(jobs),
            task_type=job,
            task_id=task,
            rpc_layer="grpc",
        )
        with time_limit(timeout, message):
            # Starts the server, the coordination service and its heartbeats. Never used as a scope.
            server = tf.distribute.MultiWorkerMirroredStrategy(resolver)
    except RuntimeError as error:
        raise RuntimeError(
            "connect must come before anything that TensorFlow computes, such as a constant or a "
            f"weight; got {error}"
        ) from error
    device = f"/job:{job}/replica:0/task:{task}/device:CPU:0"
    limit = WaitLimit(step_timeout)
    return ConnectedWorkers(len(addresses), rank, device, limit, server, wire_dtype)


def _coordinated(jobs: dict[str, list[str]]) -> list[Any]:
    known = tf.compat.v1.ConfigProto().experimental.coordination_config.coordinated_job_list
    return [known.add(name=name, num_tasks=len(tasks)) for name, tasks in jobs.items()]


def _of_arguments(addresses: Sequence[str], rank: int | None) -> _Place:
    addresses = list(addresses)
    if not addresses:
        raise ValueError("addresses must name at least one worker; got none")
    if rank is None:
        raise ValueError("rank must be given with addresses; got None")
    rank = integer_argument("rank", rank, at_least=0)
    if rank >= len(addresses):
        raise ValueError(f"rank must be less than {len(addresses)}, the workers; got {rank}")
    return _Place([("worker", i) for i in range(len(addresses))], addresses, rank)


def _of_environment() -> _Place | None:
    text = os.environ.get("TF_CONFIG", "")
    if not text:
        return None
    try:
        config = json.loads(text)
        jobs = {job: list(tasks) for job, tasks in config.get("cluster", {}).items()}
        if not jobs:
            return None
        job, index = config["task"]["type"], int(config["task"]["index"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            "TF_CONFIG must be JSON with a cluster and a task, as TensorFlow's guide to several "
            f"workers has it; got {text!r}"
        ) from error
    if set(jobs) - set(_JOBS) or len(jobs.get("chief", [])) > 1:
        raise ValueError(
            f"TF_CONFIG must have the jobs 'worker' and at most one 'chief'; got {jobs}"
        )
    tasks = [(name, i) for name in _JOBS for i in range(len(jobs.get(name, [])))]
    if (job, index) not in tasks:
        raise ValueError(f"the task of TF_CONFIG must be one of its cluster; got {config['task']}")
    addresses = [address for name in _JOBS for address in jobs.get(name, [])]
    return _Place(tasks, addresses, tasks.index((job, index)))


def _check_addresses(addresses: list[str]) -> None:
    for address in addresses:
        host, _, port = str(address).rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 2**16:
            raise ValueError(f"each address must be 'host:port'; got {address!r}")
    if len(set(addresses)) < len(addresses):
        raise ValueError(f"workers must have different addresses; got {addresses}")


def _check_port(address: str) -> None:
    """Raises an error if the port is taken: TensorFlow's server would share it, or wait."""
    port = int(address.rpartition(":")[2])
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            raise RuntimeError(
                f"the port of this worker must be free; got {address}, which is taken: {error}"
            ) from error


def _versions() -> dict[str, Any]:
    return {
        "the version of tfx_largeout": version("tfx_largeout"),
        "the version of TensorFlow": tf.__version__,
        "the version of Keras": keras.__version__,
        "the version of Python": platform.python_version_tuple()[:2],
    }


# The watching process ends when the call returns, or when the watched process ends.
_WATCH = """
import os, select, signal, sys
process, seconds, message = int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
if not select.select([0], [], [], seconds)[0]:
    os.write(2, (message + "\\n").encode())
    os.kill(process, signal.SIGKILL)
"""


@contextlib.contextmanager
def time_limit(seconds: float, message: str) -> Iterator[None]:
    """Ends this process with a message if the body takes longer.

    TensorFlow waits for other workers with the interpreter's lock held and signals blocked: no
    thread and no signal handler of this process would run. So a separate small process watches.
    """
    command = [sys.executable, "-I", "-S", "-c", _WATCH, str(os.getpid()), str(seconds), message]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as watch:
        try:
            yield
        finally:
            assert watch.stdin is not None
            watch.stdin.close()


def failed_worker(error: BaseException, tasks: Sequence[tuple[str, int]], rank: int) -> int | None:
    """Returns the rank of the worker whose failure an error reports, or None.

    `tasks` has the job and task of each rank, such as `("worker", 1)`. Errors also name this
    worker, as the place where they are raised.
    """
    if not isinstance(error, _OF_OTHERS):
        return None
    # An error that workers passed on names the first worker last.
    named = [(job, int(number)) for job, number in _TASK.findall(str(error))]
    others = [tasks.index(task) for task in named if task in tasks and task != tasks[rank]]
    if others:
        return others[-1]
    return 0 if _TO_THE_FIRST in str(error) else None


def explain_at_exit(tasks: Sequence[tuple[str, int]], addresses: Sequence[str], rank: int) -> None:
    """Makes Python print which worker failed, after the error that ends this process."""
    report = sys.excepthook

    def report_and_explain(
        kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        report(kind, error, trace)
        failed = failed_worker(error, tasks, rank)
        if failed is not None:
            print(
                f"tlo.distribute: worker {failed} of {len(tasks)} ({addresses[failed]}) has "
                f"failed, and ends worker {rank}. Start all of them again; with a "
                "tlo.callbacks.Checkpoint they go on from the last one.",
                file=sys.stderr,
                flush=True,
            )

    sys.excepthook = report_and_explain
