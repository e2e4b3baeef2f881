# SPDX-License-Identifier: Apache-2.0
"""A call of a custom op as plain data, and how it is made: no state but the arrays in it."""

from __future__ import annotations

import functools
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
        values: Its value.
        handle: `"variable"`; or what the op gets instead: `"no value"`: a variable that has none,
            `"no handle"`: a tensor of 0 handles, `"two handles"`: one of two, `"table"`: the handle
            of a lookup table.
    """

    values: np.ndarray
    handle: str = "variable"


class Call(NamedTuple):
    """A call of an op.

    Attributes:
        op: Its name in the registration.
        inputs: By name; an array, a `Variable`, or a list of these.
        attributes: By name; dtypes as `tf.DType`.
        notes: The deliberate changes to it, as text for people.
        is_tame: All numbers are of ordinary size, so that two implementations agree on results.
    """

    op: str
    inputs: dict[str, Any]
    attributes: dict[str, Any]
    notes: tuple[str, ...] = ()
    is_tame: bool = True

    def variables(self) -> Iterator[tuple[str, Variable]]:
        """Yields the variables, each with a unique name."""
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
        """Returns everything as text, for a report."""
        lines = [f"{self.op}, {'; '.join(self.notes) or 'as it should be'}"]
        lines += [f"  {name} = {value!r}" for name, value in self.inputs.items()]
        lines += [f"  {name}: {value!r}" for name, value in self.attributes.items()]
        return "\n".join(lines)


class Outcome(NamedTuple):
    """The result of a call.

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
        """Returns the names of variables that have changed, bitwise.

        `touched_at` may be: its marks stay where W or a table is at fault.
        """
        return [
            name
            for name, old in self.before.items()
            if name != "touched_at" and not _same(old, self.after[name])
        ]


def registration(op: str) -> Any:
    """Returns the OpDef of an op of the library."""
    return registrations()[op]


@functools.cache
def registrations() -> dict[str, Any]:
    """Returns the OpDefs of all ops of the library, by name."""
    functions = [name for name in dir(library.load()) if re.fullmatch("tfx_[a-z_]+", name)]
    names = [name for name in map(_camel, functions) if op_def_registry.get(name) is not None]
    return {name: op_def_registry.get(name) for name in sorted(names)}


def run_op(call: Call) -> Outcome:
    """Calls the op itself."""
    variables = {
        name: _assigned(name, variable.values)
        for name, variable in call.variables()
        if variable.handle == "variable"
    }
    handles = {name: variable.handle for name, variable in variables.items()}
    handles |= {name: _no_handle(v) for name, v in call.variables() if name not in handles}
    inputs = {name: _input(name, value, handles) for name, value in call.inputs.items()}
    function = getattr(library.load(), _snake(call.op))
    implied = {argument.type_attr for argument in registration(call.op).input_arg}
    attributes = {name: x for name, x in call.attributes.items() if name not in implied}
    return run(lambda: function(**inputs, **attributes), call, variables)


def run(function: Any, call: Call, variables: dict[str, tf.Variable]) -> Outcome:
    """Calls a function that may change variables, which get the values of the call."""
    error, outputs = None, []
    try:
        outputs = [x.numpy() for x in tf.nest.flatten(function()) if isinstance(x, tf.Tensor)]
    except Exception as caught:  # which kinds are right is for the caller to say
        error = caught
    before = {name: v.values for name, v in call.variables() if name in variables}
    # Copies: NumPy would show the memory itself, which ops change in place.
    after = {name: np.array(variable.numpy()) for name, variable in variables.items()}
    return Outcome(error, outputs, before, after)


@functools.cache
def _variable(name: str, dtype: tf.DType) -> tf.Variable:
    """Returns a variable of any shape: new ones would take most of the time."""
    return tf.Variable(tf.zeros([], dtype), shape=tf.TensorShape(None), name=name)


def _assigned(name: str, values: np.ndarray) -> tf.Variable:
    variable = _variable(name.replace(" ", "_"), tf.as_dtype(values.dtype))
    tf.raw_ops.AssignVariableOp(resource=variable.handle, value=tf.constant(values))
    return variable


def _camel(name: str) -> str:
    return name.title().replace("_", "")


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _same(old: np.ndarray, new: np.ndarray) -> bool:
    return old.shape == new.shape and old.tobytes() == new.tobytes()


def _no_handle(variable: Variable) -> tf.Tensor:
    """Returns values that an op may get instead of a variable's handle."""
    if variable.handle == "table":
        return tf.raw_ops.AnonymousMutableHashTable(key_dtype=tf.int64, value_dtype=tf.int64)
    no_value = tf.raw_ops.VarHandleOp(dtype=tf.float32, shape=[], shared_name="never assigned")
    if variable.handle == "no value":
        return no_value
    both = tf.stack([no_value, no_value])
    return both if variable.handle == "two handles" else both[:0]


def _input(name: str, value: Any, handles: dict[str, tf.Tensor]) -> Any:
    if isinstance(value, Variable):
        return handles[name]
    if isinstance(value, list):
        return [handles[f"{name} {i}"] for i in range(len(value))]
    return tf.constant(value)
