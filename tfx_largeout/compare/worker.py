# SPDX-License-Identifier: Apache-2.0
"""The child process that trains one head, alone or as one of several workers.

It reads its `WorkerSettings` as JSON from standard input and writes events, one JSON object a line,
to standard output: `stage` while it reads the data, `options` if they are not those that it was
given, `ready`, then `progress` and `point` in turn, then `done`; or `failed`. A `note` is a
sentence for the reader of the results, at any time.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

from tfx_largeout.compare.root_message import root_message
from tfx_largeout.compare.settings import WorkerSettings

Send = Callable[..., None]


def main() -> int:
    """Trains the head of the settings on standard input; returns the exit code."""
    send = _open_channel()
    settings = WorkerSettings.from_json(json.load(sys.stdin))
    try:
        _run(settings, send)
    except BaseException as error:
        traceback.print_exc()
        send("failed", error=_one_sentence(error), data_at_fault=isinstance(error, _DataError))
        return 1
    return 0


class _DataError(Exception):
    """The data are at fault, not the head."""


def _run(settings: WorkerSettings, send: Send) -> None:
    from tfx_largeout.compare import data
    from tfx_largeout.compare.peers import PEERS, train_peer
    from tfx_largeout.compare.training import train
    from tfx_largeout.distribute import connect

    if settings.training.workers > 1:
        connect()
    try:
        train_examples, test_examples = data.load(settings.data, send)
    except (OSError, ValueError) as error:
        raise _DataError(str(error)) from error
    if settings.head in PEERS:
        train_peer(settings.head, train_examples, test_examples, send)
    else:
        train(settings, train_examples, test_examples, send)


def _open_channel() -> Send:
    """Returns what sends an event. Whatever else is printed goes to standard error."""
    channel = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    def send(event: str, **fields: Any) -> None:
        fields = {"event": event, **fields, "peak_bytes": _peak_bytes()}
        channel.write(json.dumps(fields) + "\n")

    return send


def _peak_bytes() -> int:
    """Most memory that this process held.

    On Linux `ru_maxrss` starts from the peak of the process that started this one.
    """
    if sys.platform != "linux":
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    with open("/proc/self/status", encoding="ascii", errors="replace") as lines:
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def _one_sentence(error: BaseException) -> str:
    if isinstance(error, _DataError):
        return str(error)
    return f"{type(error).__name__}: {root_message(str(error))}"
