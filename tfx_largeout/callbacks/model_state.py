# SPDX-License-Identifier: Apache-2.0
"""ModelState: every variable that a training step reads or changes, found by walking the model."""

from __future__ import annotations

import functools
import itertools
import json
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.class_shard import shape_of_all, shard_of
from tfx_largeout.distribute.data_parallel import with_parts
from tfx_largeout.heads.base import Head
from tfx_largeout.indexes.base import DerivedState
from tfx_largeout.keras_internals import flat_layers, own_weights, seed_generators
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.tensorflow_internals import is_stateful

# Keys of a head's configuration that say nothing about the meaning of its variables: they may
# change, or their values are variables themselves.
_FREE = frozenset(
    ("name", "seed", "dtype", "trainable", "learning_rate", "initial_log_partition")
    + ("kernel_initializer", "bias_initializer", "build_config", "shared_object_id")
    + ("module", "device")  # where a class, or a weight, is: may change
)

_KEPT = ".kept"
_PUT_BACK = 2**30  # bytes of variables kept to undo a failed `restore`


class _Found(NamedTuple):
    kind: str
    variable: tf.Variable
    shape: list[int]  # of all workers together
    is_shard: bool  # each worker has a part of it
    derived: DerivedState | None  # the layer, if its weights may be computed again


class ModelState:
    """The state of a built model: weights, optimizers, metrics and the seeds of layers.

    Keras's `model.variables` has neither optimizers (of the model and of heads) nor metrics;
    Keras's files have no seeds. `kept` says whether gradients that heads have accumulated are part
    of the state.
    """

    def __init__(self, model: keras.Model, metrics: bool = True, kept: bool = True) -> None:
        self._layers = flat_layers(model)
        unique: dict[int, _Found] = {}
        for found in _variables(self._layers, model.metrics if metrics else [], kept):
            unique.setdefault(id(found.variable), found)
        self._found = {
            f"variables/{i:05d} {found.kind}": found for i, found in enumerate(unique.values())
        }

    @property
    def names(self) -> list[str]:
        """A name for each variable."""
        return list(self._found)

    def beside(self, other: ModelState) -> list[str]:
        """Returns the kinds of variables that another state lacks."""
        known = {id(found.variable) for found in other._found.values()}
        return [found.kind for found in self._found.values() if id(found.variable) not in known]

    def names_of(self, variables: Iterable[Any]) -> set[str]:
        """Returns the names of given variables that are in the state."""
        wanted = {id(bare_variable(variable)) for variable in variables}
        return {name for name, found in self._found.items() if id(found.variable) in wanted}

    def rows(self) -> set[str]:
        """Returns the names of the variables whose rows are spread over workers."""
        return {name for name, found in self._found.items() if found.is_shard and not found.derived}

    def counts_of_kept(self) -> list[str]:
        """Returns the names of the numbers of passes that heads have accumulated."""
        return [n for n, f in self._found.items() if f.kind.endswith(_KEPT) and not f.shape]

    def arrays(self) -> Iterator[tuple[str, Callable[[], np.ndarray]]]:
        """Yields a name for each variable, and a function that reads it."""
        for name, found in self._found.items():
            yield name, functools.partial(_read, found.variable)

    def facts(self) -> dict[str, Any]:
        """Returns facts for JSON: the structure, and state of heads outside of variables."""
        return {
            "variables": [
                [found.kind, found.variable.dtype.name, found.shape]
                for found in self._found.values()
            ],
            "heads": [_configuration(head) for head in self._heads()],
            "seeds": [getattr(each, "seed", None) for each in self._seeded()],
        }

    def check(self, facts: dict[str, Any]) -> None:
        """Raises a ValueError if a state with these facts belongs to another model."""
        here = self.facts()
        heads = [[kind, _without_free(json.loads(config))] for kind, config in facts["heads"]]
        facts = {**facts, "heads": heads}
        for what in ("variables", "heads"):
            own = [_tuple(item) for item in here[what]]
            there = [_tuple(item) for item in facts[what]]
            if there != own:
                raise ValueError(_difference(what, own, there))

    def restore(
        self, facts: dict[str, Any], read: Callable[[str], np.ndarray], anew: bool = False
    ) -> bool:
        """Assigns a state that passed `check`; `read` returns its arrays by name.

        With `anew`, state that is derived from weights, such as the tables of an index, is rebuilt:
        for a state of another number of workers.

        Returns:
            Whether a seed that is part of a traced graph has changed.

        Raises:
            RuntimeError: An array can't be read or assigned, perhaps for lack of memory. Up to 1
                GiB of variables is then unchanged; the message says if larger ones are mixed.
        """
        some = {name: f for name, f in self._found.items() if not (f.derived and anew)}
        # Without kept gradients, which have any number of rows.
        num_bytes = sum(v.dtype.size * (v.shape.num_elements() or 0) for _, v, *_ in some.values())
        is_put_back, before = num_bytes <= _PUT_BACK, []
        for name, found in some.items():
            try:
                array = read(name)
                if is_put_back:
                    before.append((found.variable, found.variable.read_value()))
                _assign(found.variable, array)
            except Exception as error:
                for variable, value in before:
                    variable.assign(value)
                done = list(some).index(name)
                state = "all variables are as they were"
                if not is_put_back:
                    state = f"{done} of {len(some)} variables have been: build the model anew"
                raise RuntimeError(
                    f"{name} {list(found.variable.shape)} could not be restored "
                    f"({type(error).__name__}: {error}); {state}"
                ) from error
        if anew:
            for layer in self._layers:
                if isinstance(layer, DerivedState):
                    layer.start_anew()
        is_new = False
        for each, seed in zip(self._seeded(), facts["seeds"], strict=True):
            if seed is not None and each.seed != seed:
                each.seed, is_new = seed, True
        return is_new

    def not_saved(self, graph: Any) -> Iterator[str]:
        """Yields state of a training step, given as a graph, that is not in this state."""
        unsaved = [v for layer in self._layers for v in getattr(layer, "unsaved_variables", [])]
        known = {
            id(v.handle) for v in [*(found.variable for found in self._found.values()), *unsaved]
        }
        captured = {id(tensor) for tensor, _ in graph.captures} - known
        unknown = sorted(v.name for v in graph.variables if id(v.handle) in captured)
        if unknown:
            yield f"variables that no layer has: {', '.join(unknown)}"
        definition = graph.as_graph_def()
        functions = [function.node_def for function in definition.library.function]
        nodes = [node for nodes in (definition.node, *functions) for node in nodes]
        seeded = {node.op for node in nodes if {"seed", "seed2"} <= set(node.attr)}
        ops = sorted(filter(is_stateful, seeded))
        if ops:
            yield f"random numbers from a state within ops: {', '.join(ops)}"

    def _heads(self) -> list[Head]:
        return [layer for layer in self._layers if isinstance(layer, Head)]

    def _seeded(self) -> list[Any]:
        """Returns heads and optimizers, which may have a seed."""
        optimizers = [each for layer in self._layers for each in _optimizers(layer)]
        return [*self._heads(), *(part for each in optimizers for part in with_parts(each))]


def _variables(layers: list[Any], metrics: list[Any], kept: bool) -> Iterator[_Found]:
    for layer in layers:
        kind = type(layer).__name__
        derived = layer if isinstance(layer, DerivedState) else None
        for variable in own_weights(layer):
            yield _found(f"{kind}.{variable.name}", variable, derived)
        for variable in getattr(layer, "kept_variables", ()) if kept else ():
            yield _found(kind + _KEPT, variable)
        for generator in seed_generators(layer):
            yield _found(f"{kind}.seed", generator.state)
    for metric in metrics:
        yield from _of_owner(metric)
    for layer in layers:
        for optimizer in _optimizers(layer):
            yield from _of_owner(optimizer)


def _optimizers(layer: Any) -> list[Any]:
    return [each for each in vars(layer).values() if isinstance(each, keras.optimizers.Optimizer)]


def _of_owner(owner: Any) -> Iterator[_Found]:
    for variable in owner.variables:
        name = variable.name.rsplit("_", 1)[-1]  # before it are the names of a layer and a weight
        yield _found(f"{type(owner).__name__}.{name}", variable)


def _found(kind: str, variable: Any, derived: DerivedState | None = None) -> _Found:
    shape, is_shard = shape_of_all(variable), shard_of(variable) is not None
    return _Found(kind, bare_variable(variable), shape, is_shard, derived)


def _read(variable: tf.Variable) -> np.ndarray:
    array = np.asarray(variable.read_value())
    # Dtypes that NumPy does not have, such as bfloat16, are written as integers of their size.
    return array if array.dtype.isbuiltin == 1 else array.view(f"u{array.dtype.itemsize}")


def _assign(variable: tf.Variable, array: np.ndarray) -> None:
    dtype = variable.dtype.as_numpy_dtype
    is_integer = np.dtype(dtype).kind in "iu"
    variable.assign(array.astype(dtype) if is_integer else array.view(dtype))


def _configuration(head: Head) -> list[str]:
    return [type(head).__name__, _without_free(head.get_config())]


def _without_free(config: Any) -> str:
    return json.dumps(_meaning(config), sort_keys=True)


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
    pairs = itertools.zip_longest(own, there, fillvalue=("none",))
    number, (a, b) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return text + f"Number {number} is {_short(a, b)} in the model, {_short(b, a)} there"


def _short(item: tuple[str, ...], other: tuple[str, ...]) -> str:
    """Returns an item as text; if long, the part that differs from the other."""
    words = " ".join(item)
    if len(words) <= _MOST_CHARACTERS:
        return words
    pairs = zip(words, " ".join(other), strict=False)
    start = next((i for i, (a, b) in enumerate(pairs) if a != b), 0)
    start = max(0, start - _MOST_CHARACTERS // 2)
    return f"... {words[start : start + _MOST_CHARACTERS]} ..."


_MOST_CHARACTERS = 160
