# SPDX-License-Identifier: Apache-2.0
"""Meetings: workers compare their places and data, so that all get an error, or none."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import tensorflow as tf

from tfx_largeout.devices import on_host
from tfx_largeout.distribute.workers import Workers

AGREE, TRAIN, EVALUATE, TOP_K, END_OF_FIT, SAVE = range(6)
_PHASES = (
    "0 start, 1 a training step, 2 an evaluation step, 3 a top-k step, 4 the end of fit or an "
    "epoch, 5 a checkpoint or a file"
)
_SAME = 4  # phase, site, step, form
_NUMBERS = 8  # per worker at a meeting
_LONGEST = 2000  # bytes of a message to the others
_LEFT_OUT = b" [...] "
_KINDS: tuple[type[Exception], ...] = (OSError, ValueError, TypeError, RuntimeError)

Result = TypeVar("Result")


@on_host
def meet(
    workers: Workers, phase: int, site: str, step: Any = 0, form: int = 0, numbers: Any = ()
) -> tf.Tensor:
    """Checks that all workers are at the same place, and returns the numbers of each.

    All places share this one collective, so that workers at different places meet here instead of
    waiting for each other in different collectives. If their places differ, all of them get an
    `InvalidArgumentError`.

    Args:
        workers: The workers; alone, there is nothing to compare.
        phase: One of the constants of this module.
        site: The caller, such as the name of a head.
        step: The number of the step, `[]`.
        form: The form of this worker's data, as one number; it must be the same everywhere.
        numbers: Up to four numbers, which may differ; returned as `[R, len(numbers)]` int64.
    """
    if workers.alone:
        return tf.zeros([1, 0], tf.int64) if not numbers else tf.stack([[*map(_int64, numbers)]])
    said = [phase, zlib.crc32(site.encode()), step, form, *numbers]
    said = [_int64(number) for number in [*said, *[0] * (_NUMBERS - len(said))]]
    heard = workers.gather(tf.stack(said), "meeting")
    check = tf.debugging.Assert(
        tf.reduce_all(heard[:, :_SAME] == heard[:1, :_SAME]),
        [
            "workers must all be at the same place; got [phase, head or call, step, weights, mask "
            "and values of labels] by worker",
            heard[:, :_SAME],
            f"phases: {_PHASES}. At {site!r} here. Give all workers data sets of equally many "
            "batches, and let all of them call the same methods",
        ],
        summarize=256,
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(heard[:, _SAME : _SAME + len(numbers)])


def agree(workers: Workers, site: str, facts: dict[str, Any]) -> None:
    """Raises an error on all workers if facts differ between workers. Runs eagerly.

    Args:
        workers: The workers; alone, nothing happens.
        site: The caller.
        facts: Values that must be the same, by name: at most four, always the same names for a
            site. The error shows integers below 2^63; other values are only compared. Functions are
            called for values that take long to compute.

    Raises:
        ValueError: A fact differs.
        RuntimeError: It is called in a graph that is not a function's, such as in a model that
            Keras builds in `fit`.
        tf.errors.InvalidArgumentError: Other workers are at another place.
    """
    if workers.alone:
        return
    with tf.init_scope():
        if not tf.executing_eagerly():  # such as where Keras infers shapes
            raise RuntimeError(
                f"{site} must be built before the model is called in a graph, where several "
                "workers train it; got a model that fit builds. Begin it with keras.Input(...)"
            )
        facts = {name: fact() if callable(fact) else fact for name, fact in facts.items()}
        numbers = [_number(value) for value in facts.values()]
        heard = meet(workers, AGREE, site, numbers=numbers).numpy()
    for place, (name, value) in enumerate(facts.items()):
        values = heard[:, place].tolist()
        if len(set(values)) > 1:
            told = f"; here it is {value!r}" if not isinstance(value, int) else ""
            raise ValueError(
                f"{name} of {site} must be the same on all workers; got {values} by worker "
                f"(this is worker {workers.rank}{told})"
            )


def _int64(number: Any) -> tf.Tensor:
    if isinstance(number, int):
        return tf.constant(number, tf.int64)
    return tf.cast(tf.convert_to_tensor(number), tf.int64)


def _number(value: Any) -> int:
    if isinstance(value, int):
        return value
    return zlib.crc32(json.dumps(value, sort_keys=True, default=str).encode())


def check_alike(workers: Workers, variables: Sequence[Any]) -> None:
    """Raises an error if Keras variables differ between workers. A collective of 8 bytes.

    Raises:
        tf.errors.InvalidArgumentError: They differ; raised on all workers.
    """
    if not variables:
        return
    heard = workers.gather(bits_of(variables), "trunk/check")
    rule = "weights that all workers share must be the same on all of them; got sums of their bits"
    check_same_bits(heard, [f"{rule} by worker", heard])


def check_same_bits(bits: tf.Tensor, message: list[Any]) -> list[tf.Operation]:
    """Returns a check, in a graph, that workers' sums of bits `[R]` are the same."""
    cause = "Something has set them on one worker alone, such as an assignment or a callback"
    is_alike = tf.reduce_all(bits == bits[0])
    check = tf.debugging.Assert(is_alike, [*message, cause], summarize=64)
    return [] if check is None else [check]


def bits_of(variables: Sequence[Any]) -> tf.Tensor:
    """Returns the sum of `sum_of_bits` over Keras variables, at least one; their order counts."""
    values = map(tf.convert_to_tensor, variables)
    return tf.add_n([sum_of_bits(value, place) for place, value in enumerate(values)])


def sum_of_bits(value: tf.Tensor, place: int) -> tf.Tensor:
    """Returns a hash of the bits, `[]` int64.

    Args:
        value: A tensor of numbers.
        place: The place of the weight in a list, from 0; it changes the hash.
    """
    if value.dtype == tf.bool:
        value = tf.cast(value, tf.int8)
    integer = {8: tf.int64, 4: tf.int32, 2: tf.int16, 1: tf.int8}[value.dtype.size]
    bits = value if value.dtype.is_integer else tf.bitcast(value, integer)
    return tf.reduce_sum(tf.cast(bits, tf.int64)) * (2 * place + 1)


def together(workers: Workers, site: str, action: Callable[[], Result]) -> Result:
    """Runs an action that does not communicate, waits for the others, and returns its result.

    Raises:
        Exception: The error of the action. Where it succeeded here: an `OSError`, `ValueError`,
            `TypeError` or `RuntimeError`, with the kind and message of the first worker on which it
            failed.
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
    if len(data) > _LONGEST:  # the end of TensorFlow's messages has the cause
        data = data[: _LONGEST // 4] + _LEFT_OUT + data[len(_LEFT_OUT) - _LONGEST * 3 // 4 :]
    return tf.constant(list(data.ljust(_LONGEST, b"\0")), tf.int32)


def _unpacked(numbers: list[int]) -> str:
    return bytes(int(number) for number in numbers).rstrip(b"\0").decode(errors="replace")
