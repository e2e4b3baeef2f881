# SPDX-License-Identifier: Apache-2.0
"""Meetings: workers say where they are, so that those at different places get an error."""

from __future__ import annotations

import json
import zlib
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.workers import Workers

AGREE, TRAIN, EVALUATE, TOP_K, END_OF_FIT, SAVE = range(6)
_PHASES = (
    "0 start, 1 a training step, 2 an evaluation step, 3 a top-k step, 4 the end of fit or an "
    "epoch, 5 a checkpoint or a file"
)
_SAME = 4  # phase, site, step, form
_NUMBERS = 8  # of each worker at a meeting


def meet(
    workers: Workers, phase: int, site: str, step: Any = 0, form: int = 0, numbers: Any = ()
) -> tf.Tensor:
    """Checks that all workers are at the same place, and tells each what the others say.

    There is one such collective for all places, so that workers at different ones hear of each
    other here, instead of waiting for each other in different collectives.

    Args:
        workers: More than one.
        phase: One of the constants of this module.
        site: Who calls, such as the name of a head.
        step: The number of the step, `[]`.
        form: What this worker has, as one number; it must be the same everywhere.
        numbers: Up to four, which may differ.

    Returns:
        `[R, len(numbers)]` int64.

    Raises:
        tf.errors.InvalidArgumentError: They are not at the same place. Raised on all workers.
    """
    said = [phase, zlib.crc32(site.encode()), step, form, *numbers]
    said = [_int64(number) for number in [*said, *[0] * (_NUMBERS - len(said))]]
    heard = workers.gather(tf.stack(said), "meeting")
    check = tf.debugging.Assert(
        tf.reduce_all(heard[:, :_SAME] == heard[:1, :_SAME]),
        [
            "workers must all be at the same place; got [phase, head or call, step, weights and "
            "mask] by worker",
            heard[:, :_SAME],
            f"phases: {_PHASES}. At {site!r} here. Give all workers data sets of equally many "
            "batches, and let all of them call the same methods",
        ],
        summarize=256,
    )
    with tf.control_dependencies([] if check is None else [check]):
        return tf.identity(heard[:, _SAME : _SAME + len(numbers)])


def agree(workers: Workers, site: str, facts: dict[str, Any]) -> None:
    """Refuses what is not the same on all workers, on all workers. Runs eagerly.

    Args:
        workers: The workers; alone, nothing happens.
        site: Who calls.
        facts: What must be the same, by name: of each kind of call always the same names, four at
            most. Integers below 2^63 are told in the error, anything else is compared only.

    Raises:
        ValueError: A fact differs.
        RuntimeError: It is called in a graph that is not a function's, as within a model that Keras
            builds in `fit`.
        tf.errors.InvalidArgumentError: Other workers are at another place.
    """
    if workers.alone:
        return
    with tf.init_scope():
        if not tf.executing_eagerly():  # as where Keras finds out shapes
            raise RuntimeError(
                f"{site} must be built before the model is called in a graph, where several "
                "workers train it; got a model that fit builds. Begin it with keras.Input(...)"
            )
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
