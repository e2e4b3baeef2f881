# SPDX-License-Identifier: Apache-2.0
"""save_model: a file of Keras, of a model that several workers train."""

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
_BLOCK = 2**22  # numbers that a worker sends at a time
_SENT_AS_THEY_ARE = ("float16", "float32", "float64", "int32", "int64")
_WEIGHTS = ".weights.h5"
_OF_WEIGHT = 2**12  # bytes that HDF5 takes beside its numbers, about


def save_model(model: keras.Model, filepath: str | Path, overwrite: bool = True) -> None:
    """Writes a model that several workers train to an ordinary Keras file.

    All workers call it, with the same arguments; worker 0 writes. A single process loads the file
    by `keras.saving.load_model`, and so do workers, each its rows of W. The tables of a hash
    index are not in it: they are built from W when they are needed. In one process this is
    `model.save`, or `model.save_weights`, but that the file appears whole or not at all: whatever
    ends the process, an older file stays until the new one is on the disk.

    What differs between workers, such as BatchNorm's averages, is taken from worker 0.

    Cost: W, b and their slots are gathered; on worker 0 memory for all of the model, and once more
    for its largest variable and what Keras needs.

    Args:
        model: Built, and made of registered classes, as for any `.keras` file.
        filepath: Ends with `.keras`, or with `.weights.h5` for the weights alone.
        overwrite: Whether a file that is there is replaced. Default True.

    Raises:
        TypeError: `model` is no Keras model.
        ValueError: `filepath` ends otherwise, or `overwrite` is no flag; arguments or models differ
            between workers.
        FileExistsError: The file is there, and `overwrite` is False.
        OSError: Worker 0 can't write the file.
        Exception: What Keras raises where it can't make the model again from its configuration;
            over workers on all of them, as a `RuntimeError` on others than worker 0 if it is of no
            common kind.
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
    """Writes a model of which each worker has some rows: worker 0 does."""
    workers = current()
    if model.optimizer is not None and not model.optimizer.built:
        model.optimizer.build(model.trainable_variables)  # as it will be where the file is loaded
    state = ModelState(model, metrics=False, kept=False)
    described = state.facts()["variables"]
    agree(workers, "a model of " + _SITE, {"the list of variables": described})
    whole = _on_first(workers, lambda: _begun(model, state))
    error = _gather(workers, state, whole)

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
    """Returns the model as one process would have it, except for the values of its variables."""
    with _alone(), _as_if_nothing_was_made():
        whole = made_again(whole_config(model))
        if model.optimizer is not None:
            whole.optimizer.build(whole.trainable_variables)
    ModelState(whole, metrics=False, kept=False).check(state.facts())
    return whole


def _gather(workers: Workers, state: ModelState, whole: keras.Model | None) -> Exception | None:
    """Gathers all rows, and gives them to the whole model of worker 0.

    Returns the error that it met on worker 0, which takes part to the end all the same.
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
    """Gathers rows block by block; `whole`, if there is one, gets those of all classes."""
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
    # HDF5 can end the process where a disk is full: it is not to find that out.
    size = sum(Weight.of(weight).num_bytes + _OF_WEIGHT for weight in model.weights)
    with written_whole(path, size) as unfinished, _alone():
        save = model.save_weights if path.name.endswith(_WEIGHTS) else model.save
        save(unfinished)


def _on_first(workers: Workers, action: Callable[[], Any]) -> Any:
    """Runs what only worker 0 does; all wait for it."""
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
    """A context behind which seeds and names are drawn as if nothing had been made in it.

    Other workers make nothing, and what is made later must be the same on all of them.
    """
    drawn = random.getstate()
    try:
        with names_forgotten():
            yield
    finally:
        random.setstate(drawn)
