# SPDX-License-Identifier: Apache-2.0
"""The state of a Keras callback: those of its attributes that are plain values."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

_OWN_OF_KERAS = ("params", "_model")
_PLAIN = (type(None), bool, int, float, str)

Arrays = dict[str, np.ndarray]


def callback_state(callback: keras.callbacks.Callback) -> tuple[dict[str, Any], Arrays]:
    """Returns attributes as JSON can hold them, and the arrays among them; leaves out others.

    Plain are numbers, strings, None, arrays, functions of `keras.ops` (which callbacks compare
    with), and lists, tuples and dictionaries of them.
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
