# SPDX-License-Identifier: Apache-2.0
"""Initializers that hold an array, such as pretrained weights: taken, and saved."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfx_largeout.saving.packed_array import pack_array, unpack_array


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
    """As `keras.initializers.get`; an array, a tensor or a `Constant` of one: a `ConstantArray`.

    Args:
        identifier: A name, an initializer, a function of shape and dtype, a configuration, an array
            or a tensor.
    """
    if isinstance(identifier, np.ndarray) or keras.ops.is_tensor(identifier):
        return ConstantArray(identifier)
    initializer = keras.initializers.get(identifier)
    if type(initializer) is not keras.initializers.Constant or np.ndim(initializer.value) == 0:
        return initializer
    value = initializer.value
    return ConstantArray(np.asarray(value) if isinstance(value, (list, tuple)) else value)
