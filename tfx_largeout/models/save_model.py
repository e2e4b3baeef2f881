# SPDX-License-Identifier: Apache-2.0
"""save_model: writes a model that several workers train to a Keras file."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import flag_argument
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.distribute.meeting import agree, together
from tfx_largeout.distribute.workers import ALONE, Workers, current, set_current
from tfx_largeout.keras_internals import made_again, names_forgotten, whole_config
from tfx_largeout.memory import Weight
from tfx_largeout.written_whole import written_whole

_SITE = "save_model"
_BLOCK = 2**22  # numbers that a worker sends at once
_SENT_AS_THEY_ARE = ("float16", "float32", "float64", "int32", "int64")
_WEIGHTS = ".weights.h5"
_OF_WEIGHT = 2**12  # HDF5's overhead per weight in bytes, about


def save_model(model: keras.Model, filepath: str | Path, overwrite: bool = True) -> None:
    """Writes a model that several workers train to an ordinary Keras file.

    All workers call it, with the same arguments; worker 0 writes. A single process loads the file
    by `keras.saving.load_model`, and so do workers, each its rows of W. The tables of a hash index
    are not in it: they are rebuilt from W when needed. In one process this is `model.save`, or
    `model.save_weights`, except that the file appears whole or not at all: even if the process is
    killed, an older file stays until the new one is on the disk.

    State that differs between workers, such as BatchNorm's averages, is taken from worker 0.

    Cost: W, b and their slots are gathered; worker 0 needs memory for the whole model, for a copy
    of its largest variable, and for Keras.

    Args:
        model: A built model of registered classes, as for any `.keras` file.
        filepath: Ends with `.keras`, or with `.weights.h5` for only the weights.
        overwrite: Whether to replace an existing file. Default True.

    Raises:
        TypeError: `model` is not a Keras model.
        ValueError: `filepath` has another ending, or `overwrite` is not a boolean; arguments or
            models differ between workers.
        FileExistsError: The file exists, and `overwrite` is False.
        OSError: Worker 0 can't write the file.
        Exception: Keras's error if it can't rebuild the model from its configuration; with several
            workers, on all of them (a `RuntimeError` on other workers if the type is not common).
    """
    path, workers = Path(filepath), current()
    overwrite = flag_argument("overwrite", overwrite)
    if not isinstance(model, keras.Model):
        raise TypeError(f"model must be a Keras model; got {model!r}")
    facts = {"the path of save_model": str(filepath), "overwrite of save_model": int(overwrite)}
    agree(workers, _SITE, facts)
    _on_first(workers, lambda: _check_path(path, overwrite))
    workers.pick(_write, _write_gathered)(model, path)


def _write_gathered(model: keras.Model, path: Path) -> None:
    """Writes a model whose rows are spread over workers; worker 0 writes."""
    workers = current()
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)  # as after loading the file
    state = ModelState(model, metrics=False, kept=False)
    described = state.facts()["variables"]
    agree(workers, "a model of " + _SITE, {"the list of variables": described})
    whole = _on_first(workers, lambda: _begun(model, state))
    error = _gather(workers.group, state, whole)

    def write() -> None:
        if error is not None:
            raise error
        _write(whole, path)

    _on_first(workers, write)


def _check_path(path: Path, overwrite: bool) -> None:
    if not path.name.endswith((".keras", _WEIGHTS)):
        raise ValueError(f"filepath must end with .keras or {_WEIGHTS}; got {str(path)!r}")
    if path.exists() and not overwrite:
        raise FileExistsError(f"filepath must be free with overwrite=False; got {str(path)!r}")


def _begun(model: keras.Model, state: ModelState) -> keras.Model:
    """Returns the model as in a single process, without the values of its variables."""
    with _alone(), _as_if_nothing_was_made():
        whole = made_again(whole_config(model))
        if model.optimizer is not None:
            whole.optimizer.build(whole.trainable_variables)
    ModelState(whole, metrics=False, kept=False).check(state.facts())
    return whole


def _gather(workers: Workers, state: ModelState, whole: keras.Model | None) -> Exception | None:
    """Gathers all rows, and assigns them to the whole model on worker 0.

    Returns the error of worker 0, which still takes part to the end.
    """
    arrays, facts = dict(state.arrays()), state.facts()
    shapes = {name: shape for name, (_, _, shape) in zip(arrays, facts["variables"], strict=True)}
    left = [name for name in arrays if name in state.rows()]
    error: Exception | None = None

    def read(name: str) -> np.ndarray:
        if name not in left:
            return arrays[name]()
        own = arrays[name]()
        rows = np.empty(shapes[name], own.dtype)
        left.remove(name)
        _gather_rows(workers, own, shapes[name][0], rows)
        return rows

    if whole is not None:
        try:
            ModelState(whole, metrics=False, kept=False).restore(facts, read, anew=True)
        except Exception as raised:
            error = raised
    for name in left:
        _gather_rows(workers, arrays[name](), shapes[name][0], None)
    return error


def _gather_rows(
    workers: Workers, own: np.ndarray, num_classes: int, whole: np.ndarray | None
) -> None:
    """Gathers rows block by block; `whole`, if given, receives the rows of all classes."""
    sent = own.dtype if own.dtype.name in _SENT_AS_THEY_ARE else np.dtype(np.int32)
    shards = [ClassShard(rank, workers.size, num_classes) for rank in range(workers.size)]
    most = shards[0].num_rows
    size = max(_BLOCK // max(int(np.prod(own.shape[1:])), 1), 1)
    for first in range(0, most, size):
        block = np.zeros([min(size, most - first), *own.shape[1:]], sent)
        here = own[first : first + len(block)]
        block[: len(here)] = here
        every = workers.gather(tf.constant(block), "block").numpy()
        if whole is not None:
            for shard, rows in zip(shards, every, strict=True):
                target = shard.own(whole)[first : first + len(block)]
                target[...] = rows[: len(target)]


def _write(model: keras.Model, path: Path) -> None:
    # HDF5 can kill the process on a full disk, so check the space first.
    size = sum(Weight.of(weight).num_bytes + _OF_WEIGHT for weight in model.weights)
    with written_whole(path, size) as unfinished, _alone():
        save = model.save_weights if path.name.endswith(_WEIGHTS) else model.save
        save(unfinished)


def _on_first(workers: Workers, action: Callable[[], Any]) -> Any:
    """Runs a function on worker 0 only; all workers wait for it."""
    return together(workers, _SITE, action if workers.rank == 0 else lambda: None)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """A context in which layers are built as in a single process."""
    workers = current()
    set_current(ALONE)
    try:
        yield
    finally:
        set_current(workers)


@contextlib.contextmanager
def _as_if_nothing_was_made() -> Iterator[None]:
    """A context after which seeds and names continue as if nothing had been created in it.

    Other workers create nothing, and later objects must be the same on all of them.
    """
    drawn = random.getstate()
    try:
        with names_forgotten():
            yield
    finally:
        random.setstate(drawn)
