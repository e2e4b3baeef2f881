# SPDX-License-Identifier: Apache-2.0
"""What may fail on one worker, and must then fail on all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import tensorflow as tf

from tfx_largeout.distribute.meeting import SAVE, meet
from tfx_largeout.distribute.workers import Workers

Result = TypeVar("Result")

_LONGEST = 2000  # bytes of a message that the others get
_LEFT_OUT = b" [...] "
_KINDS: tuple[type[Exception], ...] = (OSError, ValueError, TypeError, RuntimeError)


def together(workers: Workers, site: str, action: Callable[[], Result]) -> Result:
    """Runs what talks to no other worker, and waits for the others.

    Args:
        workers: The workers; alone, the action is all that happens.
        site: Who calls: the same on all workers.
        action: What to do.

    Returns:
        What the action returns, if it succeeds on all workers.

    Raises:
        Exception: The action's own. Where it has succeeded: an `OSError`, `ValueError`, `TypeError`
            or `RuntimeError`, of the kind and with the message of that of the first worker on which
            it has not.
        tf.errors.InvalidArgumentError: Other workers are at another place.
    """
    if workers.alone:
        return action()
    error: Exception | None = None
    try:
        result = action()
    except Exception as raised:
        error = raised
    kind = 0 if error is None else 1 + _kind_of(error)
    kinds = meet(workers, SAVE, site, numbers=[kind]).numpy()[:, 0]
    if kinds.any():
        told = workers.gather(_packed("" if error is None else str(error)), "messages").numpy()
        if error is None:
            rank = int(kinds.nonzero()[0][0])
            error = _KINDS[kinds[rank] - 1](f"worker {rank}: {_unpacked(told[rank])}")
        raise error
    return result


def _kind_of(error: Exception) -> int:
    fitting = [place for place, kind in enumerate(_KINDS) if isinstance(error, kind)]
    return fitting[0] if fitting else _KINDS.index(RuntimeError)


def _packed(message: str) -> tf.Tensor:
    data = message.encode()
    if len(data) > _LONGEST:  # TensorFlow says what is wrong at the end, behind the places
        data = data[: _LONGEST // 4] + _LEFT_OUT + data[len(_LEFT_OUT) - _LONGEST * 3 // 4 :]
    return tf.constant(list(data.ljust(_LONGEST, b"\0")), tf.int32)


def _unpacked(numbers: list[int]) -> str:
    return bytes(int(number) for number in numbers).rstrip(b"\0").decode(errors="replace")
