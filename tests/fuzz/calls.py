# SPDX-License-Identifier: Apache-2.0
"""A call of a custom op as plain data, and how it is made: no state but the arrays in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry  # nothing public gives an OpDef

from tfx_largeout.ops import library


class Variable(NamedTuple):
    """A variable that an op gets the handle of.

    Attributes:
        values: What it holds.
        handle: `"variable"`; or what the op gets instead: `"no value"`: a variable that has none,
            `"no variable"`: a handle that no variable was ever made for, `"no handle"`: a tensor
            of 0 handles, `"two handles"`: one of two, `"table"`: the handle of another resource.
    """

    values: np.ndarray
    handle: str = "variable"


class Call(NamedTuple):
    """A call of an op.

    Attributes:
        op: Its name in the registration.
        inputs: By name; an array, a `Variable`, or a list of these.
        attributes: By name; dtypes as `tf.DType`.
        notes: What was done to it on purpose, for people.
        is_tame: All numbers are of ordinary size, so that two implementations agree on results.
    """

    op: str
    inputs: dict[str, Any]
    attributes: dict[str, Any]
    notes: tuple[str, ...] = ()
    is_tame: bool = True

    def variables(self) -> Iterator[tuple[str, Variable]]:
        """Yields the variables, each with a name of its own."""
        for name, value in self.inputs.items():
            if isinstance(value, Variable):
                yield name, value
            elif isinstance(value, list):
                yield from ((f"{name} {i}", variable) for i, variable in enumerate(value))

    def replace_input(self, name: str, value: Any) -> Call:
        """Returns the call with another value of an input, or of one in a list (`"bias 0"`)."""
        name, *index = name.split()
        if index:
            values = list(self.inputs[name])
            values[int(index[0])] = value
            value = values
        return self._replace(inputs={**self.inputs, name: value})

    def describe(self) -> str:
        """Says it all, for a report."""
        lines = [f"{self.op}, {'; '.join(self.notes) or 'as it should be'}"]
        lines += [f"  {name} = {value!r}" for name, value in self.inputs.items()]
        lines += [f"  {name}: {value!r}" for name, value in self.attributes.items()]
        return "\n".join(lines)


class Outcome(NamedTuple):
    """What came of a call.

    Attributes:
        error: None, or the exception.
        outputs: Arrays; none after an error.
        before: The variables, by name.
        after: Likewise.
    """

    error: Exception | None
    outputs: list[np.ndarray]
    before: dict[str, np.ndarray]
    after: dict[str, np.ndarray]

    def changed(self) -> list[str]:
        """Returns the names of variables that are not what they were, to the bit."""
        return [name for name, old in self.before.items() if not _same(old, self.after[name])]


def registration(op: str) -> Any:
    """Returns the OpDef of an op of the library."""
    return registrations()[op]


def registrations() -> dict[str, Any]:
    """Returns the OpDefs of all ops of the library, by name."""
    functions = [name for name in dir(library.load()) if re.fullmatch("tfx_[a-z_]+", name)]
    names = [name for name in map(_camel, functions) if op_def_registry.get(name) is not None]
    return {name: op_def_registry.get(name) for name in sorted(names)}


def run_op(call: Call) -> Outcome:
    """Makes a call of the op itself."""
    variables = {name: _make(variable) for name, variable in call.variables()}
    inputs = {name: _input(name, value, variables) for name, value in call.inputs.items()}
    function = getattr(library.load(), _snake(call.op))
    implied = {argument.type_attr for argument in registration(call.op).input_arg}
    attributes = {name: x for name, x in call.attributes.items() if name not in implied}
    return run(lambda: function(**inputs, **attributes), variables)


def run(function: Any, variables: dict[str, Any]) -> Outcome:
    """Calls a function that may change variables."""
    before = _arrays(variables)
    error, outputs = None, []
    try:
        outputs = [x.numpy() for x in tf.nest.flatten(function()) if isinstance(x, tf.Tensor)]
    except Exception as caught:  # which kinds are right is for the caller to say
        error = caught
    return Outcome(error, outputs, before, _arrays(variables))


def _camel(name: str) -> str:
    return name.title().replace("_", "")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _same(old: np.ndarray, new: np.ndarray) -> bool:
    return old.shape == new.shape and old.tobytes() == new.tobytes()


def _arrays(variables: dict[str, Any]) -> dict[str, np.ndarray]:
    # A copy: `numpy` may return the memory itself, which ops change in place.
    return {
        name: variable.numpy().copy()
        for name, variable in variables.items()
        if isinstance(variable, tf.Variable)
    }


def _make(variable: Variable) -> Any:
    """Returns a `tf.Variable`, or a handle that is none of one."""
    if variable.handle == "variable":
        return tf.Variable(tf.constant(variable.values))
    if variable.handle == "table":
        table = tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0)
        return table.resource_handle
    uninitialised = tf.raw_ops.VarHandleOp(
        dtype=tf.as_dtype(variable.values.dtype),
        shape=variable.values.shape,
        shared_name=f"fuzz_{id(variable)}_{np.random.default_rng().integers(2**62)}",
    )
    if variable.handle == "no value":
        return uninitialised
    if variable.handle == "two handles":
        return tf.stack([uninitialised, uninitialised])
    if variable.handle == "no handle":
        return tf.stack([uninitialised])[:0]
    raise ValueError(f"handle is {variable.handle!r}")


def _input(name: str, value: Any, variables: dict[str, Any]) -> Any:
    if isinstance(value, Variable):
        return _handle(variables[name])
    if isinstance(value, list):
        return [_handle(variables[f"{name} {i}"]) for i in range(len(value))]
    return tf.constant(value)


def _handle(variable: Any) -> tf.Tensor:
    return variable.handle if isinstance(variable, tf.Variable) else variable
