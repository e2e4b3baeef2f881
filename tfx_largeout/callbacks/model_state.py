# SPDX-License-Identifier: Apache-2.0
"""ModelState: every variable that a training step reads or changes, found by walking the model."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.class_shard import shape_of_all, shard_of
from tfx_largeout.heads.base import Head
from tfx_largeout.indexes.derived_state import DerivedState
from tfx_largeout.keras_internals import flat_layers, own_weights, seed_generators
from tfx_largeout.ops.rows.variable_rows import bare_variable

# Keys of a head's configuration that say nothing about the meaning of its variables: they are free,
# or in variables themselves.
_FREE = frozenset(
    ("name", "seed", "dtype", "trainable", "learning_rate", "initial_log_partition")
    + ("kernel_initializer", "bias_initializer", "build_config", "shared_object_id")
)


class _Found(NamedTuple):
    kind: str
    variable: tf.Variable
    shape: list[int]  # of all workers together
    is_shard: bool  # each worker has a part of it
    derived: DerivedState | None  # the layer, if its weights may begin anew


class ModelState:
    """The state of a model: weights, optimizers, metrics and the seeds of layers.

    Keras's `model.variables` has neither optimizers (the model's, and those that heads have) nor
    metrics; its files have no seeds.

    Args:
        model: Built, with its optimizer and metrics.
        metrics: Whether those of metrics count. Default True.
        kept: Whether gradients count that heads have accumulated so far. Default True.
    """

    def __init__(self, model: keras.Model, metrics: bool = True, kept: bool = True) -> None:
        self._layers = flat_layers(model)
        found = _variables(self._layers, model.metrics if metrics else [], kept)
        self._found = list(_unique(found))

    @property
    def names(self) -> list[str]:
        """A name for each variable."""
        return [f"variables/{i:05d} {found.kind}" for i, found in enumerate(self._found)]

    def beside(self, other: ModelState) -> list[str]:
        """Returns the kinds of its variables that another state lacks."""
        known = {id(found.variable) for found in other._found}
        return [found.kind for found in self._found if id(found.variable) not in known]

    def rows(self) -> set[str]:
        """Returns the names of the variables whose rows are dealt out among workers."""
        pairs = zip(self.names, self._found, strict=True)
        return {name for name, found in pairs if found.is_shard and not found.derived}

    def arrays(self) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
        """Yields a name for each variable, and a function that reads it."""
        for name, found in zip(self.names, self._found, strict=True):
            yield name, functools.partial(_read, found.variable)

    def facts(self) -> dict[str, Any]:
        """Returns what JSON can hold: the structure, and what heads keep outside of variables."""
        return {
            "variables": [_described(found) for found in self._found],
            "heads": [_configuration(head) for head in self._heads()],
            "seeds": [getattr(head, "seed", None) for head in self._heads()],
        }

    def check(self, facts: dict[str, Any]) -> None:
        """Checks that a state has the structure of the model.

        Args:
            facts: Those of the state.

        Raises:
            ValueError: It is that of another model.
        """
        here = self.facts()
        for what in ("variables", "heads"):
            own = [_tuple(item) for item in here[what]]
            there = [_tuple(item) for item in facts[what]]
            if there != own:
                raise ValueError(_difference(what, own, there))

    def restore(
        self, facts: dict[str, Any], read: Callable[[str], np.ndarray], anew: bool = False
    ) -> bool:
        """Assigns a state that `check` has passed.

        Args:
            facts: Those of the state.
            read: Returns an array by its name.
            anew: Whether what follows from other weights, such as the tables of an index, is to
                begin anew, as where it comes from another number of workers.

        Returns:
            Whether a seed has changed that is part of a traced graph.
        """
        for name, found in zip(self.names, self._found, strict=True):
            if found.derived and anew:
                continue
            dtype = found.variable.dtype.as_numpy_dtype
            array = read(name)
            is_integer = np.dtype(dtype).kind in "iu"
            found.variable.assign(array.astype(dtype) if is_integer else array.view(dtype))
        if anew:
            for layer in self._layers:
                if isinstance(layer, DerivedState):
                    layer.start_anew()
        is_new = False
        for head, seed in zip(self._heads(), facts["seeds"], strict=True):
            if seed is not None and head.seed != seed:
                head.seed, is_new = seed, True
        return is_new

    def handles(self) -> set[int]:
        """Returns the identities of the handles of all variables, and of those of no account."""
        unsaved = [v for layer in self._layers for v in getattr(layer, "unsaved_variables", [])]
        return {id(v.handle) for v in [*(found.variable for found in self._found), *unsaved]}

    def _heads(self) -> list[Head]:
        return [layer for layer in self._layers if isinstance(layer, Head)]


def _variables(layers: list[Any], metrics: list[Any], kept: bool) -> Iterator[_Found]:
    for layer in layers:
        kind = type(layer).__name__
        derived = layer if isinstance(layer, DerivedState) else None
        for variable in own_weights(layer):
            yield _found(f"{kind}.{variable.name}", variable, derived)
        for variable in getattr(layer, "kept_variables", ()) if kept else ():
            yield _found(f"{kind}.kept", variable)
        for generator in seed_generators(layer):
            yield _found(f"{kind}.seed", generator.state)
    for metric in metrics:
        yield from _of_owner(metric)
    for layer in layers:
        for optimizer in vars(layer).values():
            if isinstance(optimizer, keras.optimizers.Optimizer):
                yield from _of_owner(optimizer)


def _of_owner(owner: Any) -> Iterator[_Found]:
    for variable in owner.variables:
        name = variable.name.rsplit("_", 1)[-1]  # before it are the names of a layer and a weight
        yield _found(f"{type(owner).__name__}.{name}", variable)


def _found(kind: str, variable: Any, derived: DerivedState | None = None) -> _Found:
    shape, is_shard = shape_of_all(variable), shard_of(variable) is not None
    return _Found(kind, bare_variable(variable), shape, is_shard, derived)


def _unique(found: Iterable[_Found]) -> Iterator[_Found]:
    seen = set()
    for item in found:
        if id(item.variable) not in seen:
            seen.add(id(item.variable))
            yield item


def _read(variable: tf.Variable) -> np.ndarray:
    array = np.asarray(variable.read_value())
    # The dtypes that NumPy does not know, such as bfloat16, are written as integers of their size.
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _described(found: _Found) -> list[Any]:
    return [found.kind, found.variable.dtype.name, found.shape]


def _configuration(head: Head) -> list[str]:
    return [type(head).__name__, json.dumps(_meaning(head.get_config()), sort_keys=True)]


def _meaning(config: Any) -> Any:
    if isinstance(config, dict):
        return {key: _meaning(value) for key, value in config.items() if key not in _FREE}
    if isinstance(config, (list, tuple)):
        return [_meaning(item) for item in config]
    return config


def _tuple(item: list[Any]) -> tuple[str, ...]:
    return tuple(str(part) for part in item)


def _difference(what: str, own: list[tuple[str, ...]], there: list[tuple[str, ...]]) -> str:
    text = (
        f"the checkpoint must be one of this model, which has {len(own)} {what}; got one with "
        f"{len(there)}. "
    )
    for number, (a, b) in enumerate(zip(own, there, strict=False)):
        if a != b:
            return text + f"Number {number} is {_short(a, b)} in the model, {_short(b, a)} there"
    longer = own if len(own) > len(there) else there
    where = "the model" if longer is own else "the checkpoint"
    return text + f"Only {where} has {_short(longer[min(len(own), len(there))], ())}"


def _short(item: tuple[str, ...], other: tuple[str, ...]) -> str:
    """Returns an item as text; of long ones, the part where they differ from the other."""
    words = " ".join(item)
    if len(words) <= _MOST_CHARACTERS:
        return words
    pairs = zip(words, " ".join(other), strict=False)
    start = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
    start = max(0, start - _MOST_CHARACTERS // 2)
    return f"... {words[start : start + _MOST_CHARACTERS]} ..."


_MOST_CHARACTERS = 160
