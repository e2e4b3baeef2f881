# SPDX-License-Identifier: Apache-2.0
"""Checks that all processes agree, so that Hessian-free training takes the same steps."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.distribute.meeting import agree, bits_of, meet, together
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.heads.base import heads_of
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.keras_internals import flat_layers

SITE = "hessian_free.Trainer"

# The arguments of a trainer.
_NUMBERS = ("batch_size", "max_cg_iterations", "seed")
_OTHERS = ("preconditioner", "gradient_sample", "cg_sample", "damping", "line_search_split")
_SAME_VALIDATION = 1e-3


def refuse_heads(workers: Workers, model: keras.Model) -> None:
    """Raises an error for a model with a head: its classes would be spread over workers."""
    heads = heads_of(model)
    if heads:
        workers.refuse_several(
            "the model of hessian_free.Trainer must be whole on each worker; got "
            f"{full_name(heads[0])}, whose classes are spread over {workers.size} workers. End the "
            "model with keras.layers.Dense, and compile it with a loss of Keras"
        )


def agree_on_arguments(workers: Workers, trainer: Any, fit: dict[str, int]) -> None:
    """Raises an error if arguments of a `Trainer` or its `fit` differ between workers."""
    numbers = {name: getattr(trainer, name) for name in _NUMBERS}
    others = {name: _described(getattr(trainer, name)) for name in _OTHERS}
    agree(workers, SITE, {**numbers, f"one of {', '.join(_OTHERS)}": others})
    agree(workers, f"{SITE}.fit", fit)


def agree_on_problem(
    workers: Workers, model: keras.Model, examples: Examples, held_out: Examples, sharded: bool
) -> None:
    """Raises an error if models or data differ between workers (for sharded data: in kind).

    Cost: if all workers have the same data, a pass over it.
    """
    layers = [layer for layer in flat_layers(model) if layer is not model]
    config = model.get_compile_config()
    facts = {
        "the number of weights": model.count_params(),
        "the list of weights": [
            (str(v.dtype), list(v.shape), v.trainable, _named(v.regularizer)) for v in model.weights
        ],
        "the list of layers": [
            (type(layer).__name__, _named(getattr(layer, "activation", None))) for layer in layers
        ],
        "the loss or one of the metrics": [
            config.get(name) for name in ("loss", "metrics", "weighted_metrics")
        ],
    }
    agree(workers, "the model of " + SITE, facts)
    facts = {
        "the number of examples for gradients (0: sharded)": 0 if sharded else len(examples),
        "the number of examples for the line search (0: sharded)": 0 if sharded else len(held_out),
        "the list of shapes and dtypes": str(examples.spec),
        "the list of values (of all examples, unless sharded=True)": (
            [] if sharded else [examples.digest(), held_out.digest()]
        ),
    }
    agree(workers, "the data of " + SITE, facts)


def same_start(
    workers: Workers, model: keras.Model, state: Callable[[], dict[str, np.ndarray]]
) -> None:
    """Copies the weights of worker 0 to all; raises an error if trainers' states differ."""

    def check_sum() -> int:
        digest = 0
        for name, array in sorted(state().items()):
            digest = zlib.crc32(array.tobytes(), zlib.crc32(name.encode(), digest))
        return digest

    agree(workers, "the state of " + SITE, {"a check sum": check_sum})
    for place, variable in enumerate(model.weights):
        value = tf.convert_to_tensor(variable)
        variable.assign(workers.first(value, f"hessian_free/start/{place}"))


def check_alike(
    workers: Workers, phase: int, model: keras.Model, iteration: int, longest: float
) -> None:
    """Waits for the other workers; raises an error if weights are not the same, bit for bit.

    The longest step, phase and iteration must be the same, too (see `meet`).
    """
    (longest_bits,) = struct.unpack("q", struct.pack("d", longest))
    numbers = [bits_of(model.weights), longest_bits]
    heard = meet(workers, phase, SITE, iteration, numbers=numbers).numpy()
    for name, said in zip(("weights", "the longest step"), heard.T.tolist(), strict=True):
        if len(set(said)) > 1:
            raise RuntimeError(
                f"{name} must be the same on all workers; got sums of their bits {said} by worker "
                f"(this is worker {workers.rank}). Either something has set them on one worker "
                "alone, such as a callback, or the workers round otherwise: give all of them the "
                "same kind of processor and as many threads"
            )


def same_validation(workers: Workers, evaluate: Callable[[], dict[str, float]]) -> dict[str, float]:
    """Returns the logs of worker 0; raises an error if another worker's logs differ."""
    logs = together(workers, SITE, evaluate)
    return workers.pick(lambda: logs, lambda: _of_first(workers, logs))()


def _of_first(workers: Workers, logs: dict[str, float]) -> dict[str, float]:
    if not logs:
        return logs
    found = tf.constant(list(logs.values()), tf.float64)
    heard = workers.gather(found, "hessian_free/validation").numpy()
    if not np.allclose(heard, heard[0], rtol=_SAME_VALIDATION, equal_nan=True):
        raise ValueError(
            "validation_data must be the same on all workers, and whole; got "
            f"{heard.tolist()} by worker for {', '.join(logs)}"
        )
    return dict(zip(logs, heard[0].tolist(), strict=True))


def _described(value: Any) -> Any:
    """Returns a description of an argument that can be compared between processes."""
    if value is None or isinstance(value, (int, float, str)):
        return value
    attributes = getattr(value, "__dict__", {}).items()
    numbers = [item for item in attributes if isinstance(item[1], (int, float, str))]
    return [type(value).__name__, numbers]


def _named(value: Any) -> Any:
    """Returns the name and the configuration, if any, of an activation or a regularizer."""
    name = getattr(value, "__name__", type(value).__name__)
    try:
        return [name, value.get_config() if hasattr(value, "get_config") else None]
    except NotImplementedError:
        return [name, None]
