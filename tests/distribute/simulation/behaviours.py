# SPDX-License-Identifier: Apache-2.0
"""How collectives behave, and how they fail: the table that both transports are held to.

The real one is TensorFlow's, between processes; the simulated one must do the same. A behaviour is
what two workers do, and what each gets: numbers, or the name of an error.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow
from distribute.simulation.network import Process, SimulatedWorkers, World
from distribute.simulation.numpy_tensorflow import FUNCTIONS, Tensor

Here = Any  # a worker: `workers`, `tf`, and what can happen to it: `sleep`, `kill`, `stop`
STEP_TIMEOUT, HEARTBEAT = 4.0, 10.0  # seconds, of both transports
GRACE = 8.0  # seconds after a failure until all are ended
ABORTED, LATE, INVALID = "UnavailableError", "DeadlineExceededError", "InvalidArgumentError"
GONE = "gone"  # a worker that says nothing more
LOST = (ABORTED, LATE, GONE)  # with a heartbeat: TensorFlow raises one or the other


class Behaviour(NamedTuple):
    """Actions of workers, and results by rank; a tuple: one of these."""

    run: Callable[[Here], Any]
    expected: list[Any]


def _both(value: Any) -> list[Any]:
    return [value, value]


def _numbers(here: Here, dtype: str = "float32") -> Any:
    tf = here.tf
    return tf.cast(tf.constant([here.workers.rank, 2]), getattr(tensorflow, dtype))


def _sum(here: Here, name: str = "x") -> Any:
    return here.workers.add_up(_numbers(here), name)


def _gather(here: Here) -> Any:
    return here.workers.gather(_numbers(here), "x")


def _all_kinds(here: Here, dtype: str) -> list[Any]:
    x, workers = _numbers(here, dtype), here.workers
    return [workers.gather(x, "x"), workers.add_up(x, "x"), workers.exchange(x, "x")]


def _all_kinds_found(rank: int) -> list[Any]:
    return [[[0, 2], [1, 2]], [1, 4], [0, 1] if rank == 0 else [2, 2]]


def _then(here: Here, first: Callable[[Here], Any]) -> list[Any]:
    """The result or error of an action, and of a sum after it."""
    try:
        found: Any = first(here)
    except tensorflow.errors.OpError as error:
        found = type(error).__name__
    return [found, _sum(here, "later")]


def _of_rank(
    rank: int,
    action: Callable[[Here], Any],
    after: float = 0.5,
    others_sleep: float = 0.0,
    last: Callable[[Here], Any] = _gather,
) -> Callable[[Here], Any]:
    """Something happens to a worker after a collective of both, when the other one waits."""

    def run(here: Here) -> Any:
        last(here)
        if here.workers.rank == rank:
            here.sleep(after)
            action(here)
        else:
            here.sleep(others_sleep)
        return last(here)

    return run


_rank_1 = functools.partial(_of_rank, 1)


def _fail(here: Here) -> None:
    raise ValueError("of its own")


def _in_order(here: Here, *names: str) -> list[Any]:
    names = names if here.workers.rank == 0 else names[::-1]
    return [_sum(here, name) for name in names]


def _ahead(here: Here) -> list[Any]:
    here.sleep(here.workers.rank)
    return [_sum(here, name) for name in "aab"]


WELL = {
    **{
        f"{dtype}": Behaviour(
            lambda here, dtype=dtype: _all_kinds(here, dtype), [_all_kinds_found(r) for r in (0, 1)]
        )
        for dtype in ("float16", "float32", "float64", "int32", "int64")
    },
    "bfloat16 is added up and exchanged": Behaviour(
        lambda here: [
            here.tf.cast(x, tensorflow.float32)
            for x in (
                here.workers.add_up(_numbers(here, "bfloat16"), "b"),
                here.workers.exchange(_numbers(here, "bfloat16"), "b"),
            )
        ],
        [_all_kinds_found(r)[1:] for r in (0, 1)],
    ),
    "scalars": Behaviour(
        lambda here: [
            here.workers.gather(_sum(here)[0], "s"),
            here.workers.add_up(_sum(here)[1], "s"),
        ],
        _both([[1, 1], 8]),
    ),
    "one comes later": Behaviour(_ahead, _both([[1, 4]] * 3)),
    "a name again, another shape": Behaviour(
        lambda here: [_sum(here), here.workers.add_up(here.tf.ones([3]), "x"), _sum(here)],
        _both([[1, 4], [2, 2, 2], [1, 4]]),
    ),
    **{
        f"nothing is {kind}": Behaviour(
            lambda here, call=call: _then(here, lambda here: call(here.workers, here.tf)),
            _both([INVALID, [1, 4]]),
        )
        for kind, call in {
            "gathered": lambda workers, tf: workers.gather(tf.zeros([0, 2]), "n"),
            "added up": lambda workers, tf: workers.add_up(tf.zeros([2, 0]), "n"),
            "exchanged": lambda workers, tf: workers.exchange(tf.zeros([2, 0]), "n"),
        }.items()
    },
}

ERRORS = {
    "bfloat16 gathered": Behaviour(
        lambda here: here.workers.gather(_numbers(here, "bfloat16"), "b"), _both(INVALID)
    ),
    "bool gathered": Behaviour(
        lambda here: here.workers.gather(_numbers(here, "int32") > 0, "b"), _both(INVALID)
    ),
    "bool added up": Behaviour(
        lambda here: here.workers.add_up(_numbers(here, "int32") > 0, "b"), _both(INVALID)
    ),
    "another first dimension, and what is later": Behaviour(
        lambda here: _then(here, lambda here: here.workers.exchange(here.tf.ones([3, 2]), "x")),
        _both(INVALID),
    ),
    "unequal counts": Behaviour(
        lambda here: here.workers.gather(here.tf.ones([here.workers.rank + 1]), "x"), _both(LATE)
    ),
    "another shape": Behaviour(
        lambda here: here.workers.add_up(here.tf.ones([[4], [2, 2]][here.workers.rank]), "x"),
        _both(LATE),
    ),
    "another dtype": Behaviour(
        lambda here: here.workers.add_up(
            _numbers(here, ["int32", "float32"][here.workers.rank]), "x"
        ),
        _both(LATE),
    ),
    "another order": Behaviour(lambda here: _in_order(here, "a", "b"), _both(LATE)),
    "an error, and what is later": Behaviour(
        lambda here: _then(here, lambda here: _in_order(here, "a", "b")), _both(LATE)
    ),
    "one takes no part": Behaviour(
        _rank_1(lambda here: here.sleep(20.0)), [LATE, (LATE, ABORTED, GONE)]
    ),
    "killed": Behaviour(_rank_1(lambda here: here.kill()), [ABORTED, GONE]),
    # In a sum worker 0 hears of it by the heartbeat alone.
    "killed, in a sum": Behaviour(_rank_1(lambda here: here.kill(), last=_sum), [LOST, GONE]),
    "worker 0 is killed": Behaviour(_of_rank(0, lambda here: here.kill()), [GONE, ABORTED]),
    "killed before the other one waits": Behaviour(
        _rank_1(lambda here: here.kill(), 0.1, others_sleep=3.0), [ABORTED, GONE]
    ),
    "an error of its own": Behaviour(_rank_1(_fail), [ABORTED, "ValueError"]),
    "stopped for a while": Behaviour(_rank_1(lambda here: here.stop(2.0)), _both([[0, 2], [1, 2]])),
    "stopped": Behaviour(_rank_1(lambda here: here.stop(60.0)), [LOST, GONE]),
    "worker 0 is stopped": Behaviour(_of_rank(0, lambda here: here.stop(60.0)), [GONE, LOST]),
}


class _Here:
    """A simulated worker."""

    tf = FUNCTIONS

    def __init__(self, process: Process) -> None:
        self.workers: Any = process.workers
        self._process = process
        self.sleep = process.sleep

    def kill(self) -> None:
        self._process.world.after(0.0, self._process.kill)
        self._process.sleep(1.0)

    def stop(self, seconds: float) -> None:
        self._process.stop(seconds)
        self._process.sleep(0.001)


def simulated(behaviour: Behaviour) -> list[Any]:
    """The result on each simulated worker: numbers, or the name of an error."""
    world, found = World(0), [GONE, GONE]
    world.step_timeout, world.heartbeat = STEP_TIMEOUT, HEARTBEAT
    world.faults = 1

    def run(process: Process) -> None:
        try:
            found[process.rank] = plain(behaviour.run(_Here(process)))
        except Exception as error:
            found[process.rank] = type(error).__name__
            raise

    processes = [Process(world, rank, run) for rank in (0, 1)]
    for process in processes:
        process.peers = processes
        process.workers = SimulatedWorkers(process, Tensor)
        world.after(0.0, process.start)
    # As a launcher, which ends all: who is stopped says nothing more.
    end = lambda: [process.kill() for process in processes]  # noqa: E731
    world.ended = lambda process: process.error and world.after(GRACE, end)
    try:
        world.run()
    finally:
        world.end(processes)
    return found


def plain(found: Any) -> Any:
    """Tensors as lists of numbers."""
    if isinstance(found, (list, tuple)):
        return [plain(part) for part in found if part is not None]
    return found if isinstance(found, str) else found.numpy().tolist()


def fits(expected: Any, found: Any) -> bool:
    return found in expected if isinstance(expected, tuple) else found == expected
