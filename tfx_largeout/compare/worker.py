# SPDX-License-Identifier: Apache-2.0
"""The child process that trains one head.

It reads its `WorkerSettings` as JSON from standard input and writes events, one JSON object a line,
to standard output: `ready`, then `progress` and `point` in turn, then `done`; or `failed`.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import traceback
from collections.abc import Callable
from typing import Any

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
    from tfx_largeout.compare.training import train

    try:
        train_examples, test_examples = data.load(settings.data)
    except (OSError, ValueError) as error:
        raise _DataError(str(error)) from error
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
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _one_sentence(error: BaseException) -> str:
    text = str(error).strip()
    if isinstance(error, _DataError):
        return text
    first_line = text.splitlines()[0] if text else "no message"
    if len(first_line) > 300:
        first_line = first_line[:297] + "..."
    return f"{type(error).__name__}: {first_line}"
