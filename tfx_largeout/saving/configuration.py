# SPDX-License-Identifier: Apache-2.0
"""Configurations: an object keeps its arguments under their names, and is saved as them."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np

from tfx_largeout.saving.packed_array import pack_array


def kept_arguments(made: Any, base: type) -> dict[str, Any]:
    """Returns the arguments that an object keeps under their names, for its `get_config`.

    They are those of its class, and where that takes `**kwargs` those of the next one, up to
    `base`, whose own are left out. Arrays come packed, objects of Keras serialized.
    """
    config: dict[str, Any] = {}
    for kind in type(made).__mro__:
        if kind is base:
            break
        if "__init__" not in vars(kind):
            continue
        parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
        for name in (parameter.name for parameter in parameters):
            value = getattr(made, name, None)
            if hasattr(made, name) and not inspect.ismethod(value):
                config[name] = _plain(value)
        if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
            break
    return config


def with_objects(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration in which objects of Keras stand in the place of what they became."""
    return {
        name: keras.saving.deserialize_keras_object(value)
        if isinstance(value, dict) and "class_name" in value
        else value
        for name, value in config.items()
    }


def check_registered(argument: str, function: Any) -> None:
    """Refuses to save a function that is not registered with Keras; a name of one need not be."""
    if not callable(function):
        return
    name = keras.saving.get_registered_name(function)
    if keras.saving.get_registered_object(name) is None:
        raise ValueError(
            f"{argument} must be registered with keras.saving.register_keras_serializable to be "
            f"saved; got {function!r}"
        )


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return pack_array(value)
    if isinstance(value, tuple):
        return list(value)
    is_object = hasattr(value, "get_config") or inspect.isfunction(value)
    return keras.saving.serialize_keras_object(value) if is_object else value
