# SPDX-License-Identifier: Apache-2.0
"""Additions to Keras files: configurations, packed arrays, checks of shapes."""

from __future__ import annotations

import base64
import inspect
import warnings
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfx_largeout.keras_internals import calling_model, is_functional, was_called

_PACKAGE = "tfx_largeout"
_FROM_CONFIG = "_tfx_largeout_from_config"


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ConstantArray(keras.initializers.Constant):
    """A `Constant` of an array; its configuration has the numbers packed.

    Keras writes a list, which is many times as large and slow.
    """

    def get_config(self) -> dict[str, Any]:
        """The array: its shape, and its numbers as one string."""
        array = keras.ops.convert_to_numpy(self.value)
        if array.dtype.kind == "V":  # bfloat16
            array = array.astype(np.float32)
        return {"shape": list(array.shape), "packed": pack_array(array)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ConstantArray:
        """Creates the initializer from a configuration."""
        return cls(unpack_array(config["packed"]).reshape(config["shape"]))


def get_initializer(identifier: Any) -> Any:
    """As `keras.initializers.get`; an array, a tensor or its `Constant` gives a `ConstantArray`."""
    if isinstance(identifier, np.ndarray) or keras.ops.is_tensor(identifier):
        return ConstantArray(identifier)
    initializer = keras.initializers.get(identifier)
    if type(initializer) is not keras.initializers.Constant or np.ndim(initializer.value) == 0:
        return initializer
    value = initializer.value
    return ConstantArray(np.asarray(value) if isinstance(value, (list, tuple)) else value)


def pack_array(array: np.ndarray) -> str:
    """Packs a one-dimensional array of numbers into a string; `unpack_array` reverses it.

    A list of a million numbers would make the JSON of a saved model huge.
    """
    array = array.astype(array.dtype.newbyteorder("<"))
    packed = base64.b64encode(zlib.compress(array.tobytes())).decode("ascii")
    return f"{array.dtype.str}:{packed}"


def unpack_array(text: str) -> np.ndarray:
    """Returns the array that `pack_array` packed into `text`."""
    dtype, _, packed = text.partition(":")
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.dtype(dtype))
    return values.astype(values.dtype.newbyteorder("="))


def check_saved_shapes(owner: str, variables: Sequence[Any], store: Mapping[str, Any]) -> None:
    """Raises a ValueError if saved arrays have other shapes or kinds, before any is assigned.

    Floating-point numbers and integers may have another width, as in Keras.

    Args:
        owner: The owner of the variables, for the error.
        variables: Keras variables, in the order in which they were saved.
        store: What Keras passes to `load_own_variables`: arrays by the number of the variable.
    """
    named = ((str(number), variable) for number, variable in enumerate(variables))
    pairs = [(variable, store[name]) for name, variable in named if name in store]
    found = {
        "the shapes": [
            f"{variable.path} has shape {tuple(variable.shape)}, saved was {tuple(saved.shape)}"
            for variable, saved in pairs
            if tuple(saved.shape) != tuple(variable.shape)
        ],
        "the kinds of numbers": [
            f"{variable.path} has dtype {variable.dtype}, saved was {saved.dtype}"
            for variable, saved in pairs
            if not _is_alike(variable.dtype, saved.dtype)
        ],
    }
    for rule, wrong in found.items():
        if wrong:
            raise ValueError(
                f"the saved weights must have {rule} of {owner}; got {'; '.join(wrong)}: it was "
                "saved with other arguments. They are left as they were; other layers, which Keras "
                "loads separately, may not be."
            )


def _is_alike(own: str, saved: np.dtype) -> bool:
    kinds = "iu" if "int" in own else "b" if own == "bool" else "fV"  # V: bfloat16, float8
    return saved.kind in kinds


def kept_arguments(made: Any, base: type) -> dict[str, Any]:
    """Returns the arguments stored as attributes of the same name, for `get_config`.

    They include the arguments of the object's class in this package and, if it takes `**kwargs`, of
    its base classes up to `base` (excluded). A class outside of the package adds its arguments in
    its `get_config`. Arrays are packed, Keras objects serialized.
    """
    config: dict[str, Any] = {}
    for kind in type(made).__mro__:
        if kind is base:
            break
        if "__init__" not in vars(kind) or kind.__module__.partition(".")[0] != _PACKAGE:
            continue
        parameters = inspect.signature(vars(kind)["__init__"]).parameters.values()
        takes_others = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters)
        names = [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
        for name in names[1:]:
            # Each once: for Keras, an object that is written twice is shared.
            if name not in config and hasattr(made, name):
                config[name] = _plain(getattr(made, name))
        if not takes_others:
            break
    return config


def with_objects(config: dict[str, Any]) -> dict[str, Any]:
    """Returns a configuration with serialized Keras objects deserialized; layers are marked."""
    objects = {
        name: keras.saving.deserialize_keras_object(value)
        if isinstance(value, dict) and "class_name" in value
        else value
        for name, value in config.items()
    }
    for value in objects.values():
        if isinstance(value, keras.layers.Layer):
            setattr(value, _FROM_CONFIG, True)
    return objects


def shared_config(layer: keras.layers.Layer) -> dict[str, Any]:
    """Returns the configuration of a layer that is shared with a later layer of the model.

    Keras marks shared layers, but in a nested configuration it marks only a copy of the first.
    """
    return {**keras.saving.serialize_keras_object(layer), "shared_object_id": id(layer)}


def warn_of_lost_tie(
    layer: keras.layers.Layer, name: str, tied: keras.layers.Layer, training: bool | None
) -> None:
    """Warns if a model's file would lose a tie to `tied`, or a clone that is trained has lost it.

    From two configurations, one nested in another model, Keras creates two layers. A clone calls
    neither of them.
    """
    graphs = list(_graphs(calling_model(layer)))
    of_layer, of_tied = (
        [model for model in graphs if any(each is one for each in model.layers)]
        for one in (layer, tied)
    )
    if not of_layer or any(one is other for one in of_layer for other in of_tied):
        return
    if of_tied:
        got = (
            f"one of {of_tied[0].name}. A .keras file does not keep such a tie; save_weights and "
            "load_weights do."
        )
    elif training and getattr(tied, _FROM_CONFIG, False) and not was_called(tied):
        got = (
            "one that was never called, as in a model of keras.models.clone_model, whose tied "
            "layers have separate weights. Use copy.deepcopy(model)."
        )
    else:
        return
    rule = f"{name} of {layer.name} should be a layer of the same model, {of_layer[0].name}; got "
    warnings.warn(rule + got, RuntimeWarning, stacklevel=2)


def _graphs(model: Any) -> Iterator[Any]:
    if is_functional(model):
        yield model
        for layer in model.layers:
            yield from _graphs(layer)


def check_registered(argument: str, function: Any) -> None:
    """Raises an error for a function that is not registered with Keras; names are not checked."""
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
