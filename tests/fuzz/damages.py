# SPDX-License-Identifier: Apache-2.0
"""Random damage to calls that are in order."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
from fuzz.calls import Call, Variable, registration

Rng = np.random.Generator

_TAME_FLOATS = [0.0, -1.0, 2.0]
_WILD_FLOATS = [np.nan, np.inf, -np.inf, 3e38, -1e30, 1e20, 1e-40, -1e-30]
_SIZES = [0, 1, 2, 7, 1000, 2**31, 2**40, 2**62]


def damaged(call: Call, rng: Rng) -> Call:
    """Returns the call as it is, or with one or two things changed. Not each change is an error."""
    for _ in range(rng.choice([0, 1, 2], p=[0.4, 0.5, 0.1])):
        variables = dict(call.variables())
        tensors = [name for name, value in call.inputs.items() if isinstance(value, np.generic)]
        tensors += [name for name, value in call.inputs.items() if isinstance(value, np.ndarray)]
        names = [*variables, *tensors, *call.attributes]
        if not names:
            return call
        name = str(rng.choice(names))
        if name in variables:
            call = _change_variable(call, name, variables[name], rng)
        elif name in tensors:
            call = _change_tensor(call, name, call.inputs[name], rng)
        else:
            call = _change_attribute(call, name, rng)
    return call


def _change_variable(call: Call, name: str, variable: Variable, rng: Rng) -> Call:
    kind = rng.choice(["values", "shape", "dtype", "handle"], p=[0.6, 0.2, 0.1, 0.1])
    if kind == "handle":
        handle = str(rng.choice(["no value", "no handle", "two handles", "table"]))
        changed = variable._replace(handle=handle)
        return _noted(call.replace_input(name, changed), f"{name} is {handle}")
    if kind == "dtype":
        others = [np.float32, np.float64, np.int32, np.int64, np.uint8]
        dtype = others[rng.integers(0, len(others))]
        with np.errstate(all="ignore"):
            values = np.nan_to_num(variable.values.astype(np.float64)).astype(dtype)
        changed = variable._replace(values=values)
        return _noted(call.replace_input(name, changed), f"{name} is {np.dtype(dtype)}")
    change = _with_other_values if kind == "values" else _with_other_shape
    values, note, is_tame = change(call, variable.values, rng)
    # Nothing in these may be changed alone: results then depend on how they are computed.
    is_tame = is_tame and not call.op.startswith(("TfxFactored", "TfxBounded", "TfxProbed"))
    changed = variable._replace(values=values)
    return _noted(call.replace_input(name, changed), f"{name} {note}", is_tame)


def _change_tensor(call: Call, name: str, values: np.ndarray, rng: Rng) -> Call:
    change = _with_other_values if rng.random() < 0.7 else _with_other_shape
    values, note, is_tame = change(call, np.asarray(values), rng)
    # Two of these are products of the third one.
    is_tame = is_tame and not (call.op.startswith("TfxFactoredUpdate") and "hidden" in name)
    return _noted(call.replace_input(name, values), f"{name} {note}", is_tame)


def _change_attribute(call: Call, name: str, rng: Rng) -> Call:
    attribute = next(a for a in registration(call.op).attr if a.name == name)
    value: Any
    if attribute.type == "bool":
        value = not call.attributes[name]
    elif attribute.type == "int":
        value = int(rng.choice([*_SIZES, -1, call.attributes[name] + 1]))
    elif attribute.type == "float":
        value = float(rng.choice([*_TAME_FLOATS, *_WILD_FLOATS]))
    elif attribute.type == "string":
        value = str(rng.choice([x.decode() for x in attribute.allowed_values.list.s]))
    else:
        value = tf.as_dtype(int(rng.choice(attribute.allowed_values.list.type)))
    call = call._replace(attributes={**call.attributes, name: value})
    # Composed ops read all lists, for any number of probes.
    return _noted(call, f"{name} is {value!r}", is_tame=name != "num_probed")


def _with_other_values(call: Call, values: np.ndarray, rng: Rng) -> tuple[np.ndarray, str, bool]:
    """Writes something in a place."""
    if values.size == 0:
        return values, "is empty", True
    values = np.array(values)
    place = tuple(int(rng.integers(0, size)) for size in values.shape)
    is_tame = True
    if values.dtype == np.bool_:
        number: Any = not values[place]
    elif np.issubdtype(values.dtype, np.integer):
        limits = np.iinfo(values.dtype)
        near = [x + d for x in (*values.shape, *_sizes(call)) for d in (-1, 0, 1)]
        other = values.flat[rng.integers(0, values.size)]
        pick = [limits.min, limits.max, -2, -1, 0, 1, 9, int(other), *near]
        number = int(np.clip(pick[rng.integers(0, len(pick))], limits.min, limits.max))
    else:
        is_tame = bool(rng.random() < 0.3)
        number = rng.choice(_TAME_FLOATS if is_tame else _WILD_FLOATS)
    with np.errstate(over="ignore"):
        values[place] = number
    return values, f"{list(place)} is {number}", is_tame


def _with_other_shape(call: Call, values: np.ndarray, rng: Rng) -> tuple[np.ndarray, str, bool]:
    """Makes a dimension larger, smaller or 0, or adds or drops one."""
    shape = list(values.shape)
    kind = rng.choice(["longer", "shorter", "none", "more", "fewer"])
    axis = int(rng.integers(0, max(len(shape), 1)))
    if kind == "more" or not shape:
        shape.insert(axis, int(rng.integers(0, 3)))
    elif kind == "fewer":
        del shape[axis]
    elif kind == "none":
        shape[axis] = 0
    else:
        shape[axis] = max(shape[axis] + (1 if kind == "longer" else -1), 0)
    if values.size == 0 and np.prod(shape) > 0:
        return np.ones(shape, values.dtype), f"has shape {shape}", True
    return np.resize(values, shape), f"has shape {shape}", True


def _sizes(call: Call) -> tuple[int, ...]:
    """The dimensions of the first input, which are bounds of ids."""
    first = next(iter(call.inputs.values()))
    return (first.values if isinstance(first, Variable) else first).shape


def _noted(call: Call, note: str, is_tame: bool = True) -> Call:
    return call._replace(notes=(*call.notes, note), is_tame=call.is_tame and is_tame)
