# SPDX-License-Identifier: Apache-2.0
"""Which worker it was, when another one has failed and ends this one with an error."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from types import TracebackType

import tensorflow as tf

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
_TASK = re.compile(r"/job:(\w+)(?:/replica:0)?/task:(\d+)")
_TO_THE_FIRST = "CoordinationService"  # which worker 0 runs


def failed_worker(error: BaseException, tasks: Sequence[tuple[str, int]], rank: int) -> int | None:
    """Returns the rank of the worker of whose failure an error tells, None if it tells of none.

    Args:
        error: One that TensorFlow has raised.
        tasks: The job and task of each rank, such as `("worker", 1)`.
        rank: Of this worker, whose name is in errors as the place where they are raised.
    """
    if not isinstance(error, _OF_OTHERS):
        return None
    # What was passed on from worker to worker has the first one last.
    named = [(job, int(number)) for job, number in _TASK.findall(str(error))]
    others = [tasks.index(task) for task in named if task in tasks and task != tasks[rank]]
    if others:
        return others[-1]
    return 0 if _TO_THE_FIRST in str(error) else None


def explain_at_exit(tasks: Sequence[tuple[str, int]], addresses: Sequence[str], rank: int) -> None:
    """Has Python say which worker has failed, behind the error that ends this process.

    Args:
        tasks: As `failed_worker`.
        addresses: Of each worker.
        rank: Of this one.
    """
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
