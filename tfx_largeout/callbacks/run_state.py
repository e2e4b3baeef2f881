# SPDX-License-Identifier: Apache-2.0
"""RunState: the state of the model, of callbacks, of random generators and of a trainer."""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.callbacks.checkpoint_file import NamedArray
from tfx_largeout.callbacks.checkpoint_folder import Snapshot, StoredRun
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.distribute.workers import current
from tfx_largeout.keras_internals import global_seed, set_global_seed

_GLOBAL_SEED = "random/keras"
_OF_CALLBACKS = "callbacks/"
_OF_TRAINER = "trainer/"
_OWN_OF_KERAS = ("params", "_model")
_PLAIN = (type(None), bool, int, float, str)

Arrays = dict[str, np.ndarray]


class RunState:
    """All state that a step uses, except data; `trainer` trains the model if not None."""

    def __init__(
        self, model: keras.Model, callbacks: Sequence[keras.callbacks.Callback], trainer: Any
    ) -> None:
        self.model = ModelState(model)
        self._callbacks = callbacks
        self._trainer = trainer
        self._trainer_name = type(model if trainer is None else trainer).__name__

    def snapshot(self) -> Snapshot:
        """Returns the state; the facts of the model are the same on all workers."""
        states, arrays = [], []
        for number, callback in enumerate(self._callbacks):
            state, of_callback = callback_state(callback)
            states.append([type(callback).__name__, state])
            arrays += _named(f"{_OF_CALLBACKS}{number}/", of_callback)
        if self._trainer is not None:
            arrays += _named(_OF_TRAINER, self._trainer.get_state())
        seed = global_seed()
        if seed is not None:
            arrays += _named("", {_GLOBAL_SEED: seed})
        generators = {"python": random.getstate(), "numpy": _numpy_state()}
        return Snapshot(
            {"model": self.model.facts(), "trainer": self._trainer_name},
            {"random": generators, "callbacks": states},
            list(self.model.arrays()),
            arrays,
            self.model.rows(),
        )

    def check(self, run: StoredRun) -> None:
        """Raises a ValueError if a checkpoint belongs to another model, trainer or callbacks."""
        facts = run.facts
        self.model.check(facts["model"])
        if facts["trainer"] != self._trainer_name:
            raise ValueError(
                f"the checkpoint must come from {self._trainer_name}.fit; got one from "
                f"{facts['trainer']}.fit"
            )
        names = [type(callback).__name__ for callback in self._callbacks]
        saved = [name for name, _ in facts["callbacks"]]
        if names != saved:
            raise ValueError(f"callbacks must be as in the checkpoint, {saved}; got {names}")
        if run.is_of_others:
            self._check_for_other_workers(run)

    def restore(self, run: StoredRun) -> bool:
        """Restores a state that passed `check`; returns the result of `ModelState.restore`.

        Raises:
            RuntimeError: As `ModelState.restore`, with the name of the file.
        """
        facts, before = run.facts, None
        arrays = [_arrays_under(f"{_OF_CALLBACKS}{i}/", run) for i in range(len(self._callbacks))]
        seed = run.array(_GLOBAL_SEED) if _GLOBAL_SEED in run.names else None
        if self._trainer is not None:  # first, as it may raise an error
            before = self._trainer.get_state()
            self._trainer.set_state(_arrays_under(_OF_TRAINER, run))
        try:
            is_new = self.model.restore(facts["model"], run.array, anew=run.is_of_others)
        except RuntimeError as error:
            if before is not None:
                self._trainer.set_state(before)
            raise RuntimeError(f"the checkpoint {run.path}: {error}") from error
        for callback, (_, state), own in zip(
            self._callbacks, facts["callbacks"], arrays, strict=True
        ):
            restore_callback(callback, state, own)
        if seed is not None:
            set_global_seed(seed)
        version, words, following = facts["random"]["python"]
        random.setstate((version, tuple(words), following))
        np.random.set_state(facts["random"]["numpy"])
        return is_new

    def _check_for_other_workers(self, run: StoredRun) -> None:
        others = "where a run goes on with another number of workers, or other data_replicas, as"
        origin = f"from {run.num_workers} workers for {current().size}"
        arrays = _arrays_under(_OF_CALLBACKS, run).items()
        names = sorted({name.split("/")[1] for name, array in arrays if array.ndim})
        if names:
            raise ValueError(
                f"callbacks must keep no arrays {others} they may have rows of classes that other "
                f"workers need then; got {', '.join(names)} of "
                f"{[type(callback).__name__ for callback in self._callbacks]}, {origin}"
            )
        numbers = [int(run.array(name)) for name in self.model.counts_of_kept()]
        if any(numbers):
            raise ValueError(
                "the checkpoint must be one between two steps of gradient_accumulation_steps "
                f"{others} each worker has the part of its classes; got one with gradients of "
                f"{max(numbers)} batches, {origin}. Go on with the same workers, or remove this "
                "checkpoint to go on from an older one"
            )


def _named(prefix: str, arrays: dict[str, np.ndarray]) -> list[NamedArray]:
    return [(prefix + name, functools.partial(np.asarray, array)) for name, array in arrays.items()]


def _arrays_under(prefix: str, run: StoredRun) -> dict[str, np.ndarray]:
    names = [name for name in run.names if name.startswith(prefix)]
    return {name.removeprefix(prefix): run.array(name) for name in names}


def _numpy_state() -> list[Any]:
    state: Any = np.random.get_state()
    return [part.tolist() if isinstance(part, np.ndarray) else part for part in state]


def callback_state(callback: keras.callbacks.Callback) -> tuple[dict[str, Any], Arrays]:
    """Returns plain attributes for JSON, and arrays; leaves out others.

    Plain values are numbers, strings, None, arrays, functions of `keras.ops` (for comparison in
    callbacks), and lists, tuples and dictionaries of them.
    """
    state: dict[str, Any] = {}
    arrays: Arrays = {}
    for name, value in vars(callback).items():
        if name in _OWN_OF_KERAS:
            continue
        own: Arrays = {}
        try:
            state[name] = _packed(value, name, own)
        except TypeError:
            continue
        arrays.update(own)
    return state, arrays


def restore_callback(
    callback: keras.callbacks.Callback, state: dict[str, Any], arrays: Arrays
) -> None:
    """Sets the attributes that `callback_state` returned."""
    for name, value in state.items():
        setattr(callback, name, _unpacked(value, arrays))


def _packed(value: Any, path: str, arrays: Arrays) -> Any:
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (np.ndarray, np.generic)) and value.dtype.kind in "biuf":
        arrays[path] = np.asarray(value)
        return {"array": path, "scalar": isinstance(value, np.generic)}
    if isinstance(value, np.ndarray) and value.dtype == tf.bfloat16.as_numpy_dtype:
        arrays[path] = value.view(np.uint16)
        return {"bfloat16": path}
    if isinstance(value, (list, tuple)):
        items = [_packed(item, f"{path}/{i}", arrays) for i, item in enumerate(value)]
        return {"tuple" if isinstance(value, tuple) else "list": items}
    if isinstance(value, dict):
        keys = [_packed(key, f"{path}/key{i}", arrays) for i, key in enumerate(value)]
        items = [_packed(item, f"{path}/{i}", arrays) for i, item in enumerate(value.values())]
        return {"dict": [keys, items]}
    name = getattr(value, "__name__", None)
    if name is not None and getattr(keras.ops, name, None) is value:
        return {"keras.ops": name}
    raise TypeError(f"{value!r} is no plain value")


def _unpacked(value: Any, arrays: Arrays) -> Any:
    if not isinstance(value, dict):
        return value
    if "array" in value:
        array = arrays[value["array"]]
        return array[()] if value["scalar"] else array
    ((kind, content),) = value.items()
    if kind == "bfloat16":
        return arrays[content].view(tf.bfloat16.as_numpy_dtype)
    if kind == "keras.ops":
        return getattr(keras.ops, content)
    if kind == "dict":
        keys, items = ([_unpacked(item, arrays) for item in part] for part in content)
        return dict(zip(keys, items, strict=True))
    items = [_unpacked(item, arrays) for item in content]
    return tuple(items) if kind == "tuple" else items
