# SPDX-License-Identifier: Apache-2.0
"""What Keras files need beyond what Keras itself writes: arrays, packed, and checks of shapes."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ConstantArray(keras.initializers.Constant):
    """A `Constant` of an array, whose configuration has the numbers packed.

    As a list, as Keras writes them, they are many times as large and slow.
    """

    def get_config(self) -> dict[str, Any]:
        """The array: its shape, and its numbers as one string."""
        array = keras.ops.convert_to_numpy(self.value)
        if array.dtype.kind == "V":  # bfloat16
            array = array.astype(np.float32)
        return {"shape": list(array.shape), "packed": pack_array(array)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> ConstantArray:
        """Returns the initializer of which this is the configuration."""
        return cls(unpack_array(config["packed"]).reshape(config["shape"]))


def get_initializer(identifier: Any) -> Any:
    """As `keras.initializers.get`; an array, a tensor or a `Constant` of one: a `ConstantArray`."""
    if isinstance(identifier, np.ndarray) or keras.ops.is_tensor(identifier):
        return ConstantArray(identifier)
    initializer = keras.initializers.get(identifier)
    if type(initializer) is not keras.initializers.Constant or np.ndim(initializer.value) == 0:
        return initializer
    value = initializer.value
    return ConstantArray(np.asarray(value) if isinstance(value, (list, tuple)) else value)


def pack_array(array: np.ndarray) -> str:
    """Returns a string that `unpack_array` turns back into an array of numbers, of one dimension.

    A list of a million numbers would make the JSON of a saved model huge.
    """
    array = array.astype(array.dtype.newbyteorder("<"))
    packed = base64.b64encode(zlib.compress(array.tobytes())).decode("ascii")
    return f"{array.dtype.str}:{packed}"


def unpack_array(text: str) -> np.ndarray:
    """Returns the array of which `pack_array` made `text`."""
    dtype, _, packed = text.partition(":")
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.dtype(dtype))
    return values.astype(values.dtype.newbyteorder("="))


def check_saved_shapes(owner: str, variables: Sequence[Any], store: Mapping[str, Any]) -> None:
    """Raises a ValueError for saved arrays of other shapes, before the first one is assigned.

    Args:
        owner: Whose variables they are, for the error.
        variables: Keras variables, in the order in which they were saved.
        store: What Keras hands to `load_own_variables`: arrays by the number of the variable.
    """
    wrong = [
        f"{variable.path} has shape {tuple(variable.shape)}, saved was {tuple(store[name].shape)}"
        for name, variable in ((str(i), variable) for i, variable in enumerate(variables))
        if name in store and tuple(store[name].shape) != tuple(variable.shape)
    ]
    if wrong:
        raise ValueError(
            f"the saved weights must have the shapes of {owner}; got {'; '.join(wrong)}: it was "
            "saved with other arguments. They are left as they were; other layers, which Keras "
            "loads apart from them, may not be."
        )
