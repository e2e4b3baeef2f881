# SPDX-License-Identifier: Apache-2.0
"""DerivedState: weights that follow from others, and can be made anew from them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.class_shards import mark_as_shard


class DerivedState(keras.layers.Layer):
    """A layer whose weights follow from those of others, such as the tables of an index from W.

    Where classes are spread over another number of workers than before, its weights are not dealt
    out, but begin anew.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._first_values: dict[str, Any] = {}

    def start_anew(self) -> None:
        """Gives all weights the values that they had when the layer was built."""
        for name, value in self._first_values.items():
            getattr(self, name).assign(_value(value))

    def add_derived(
        self, name: str, value: Any, num_classes: int = 0, class_axis: int | None = None
    ) -> Any:
        """Adds a weight, which must become the attribute of that name.

        Args:
            name: Of the weight.
            value: Its first value, an array; or a shape, for uint32 zeros.
            num_classes: C of all workers.
            class_axis: The dimension in which it is over the classes of this worker; None
                (default): there is none.
        """
        first = _value(value)
        weight = self.add_weight(
            name=name,
            shape=first.shape,
            dtype=first.dtype.name,
            initializer=lambda shape, dtype: tf.constant(_value(value), dtype),
            trainable=False,
            autocast=False,
        )
        self._first_values[name] = value
        if class_axis is not None:
            mark_as_shard(weight, num_classes, class_axis)
        return weight


def _value(value: Any) -> np.ndarray:
    return np.zeros(value, np.uint32) if isinstance(value, tuple) else np.asarray(value)
