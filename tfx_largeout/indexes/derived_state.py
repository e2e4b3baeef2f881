# SPDX-License-Identifier: Apache-2.0
"""DerivedState: weights that follow from others, and can be made anew from them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard, mark_as_shard


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
        self, name: str, value: Any, shard: ClassShard | None = None, class_axis: int = 0
    ) -> Any:
        """Adds a weight, which must become the attribute of that name.

        Args:
            name: Of the weight.
            value: Its first value, an array; or a shape, for uint32 zeros.
            shard: The classes of this worker, if it is over them. Default None.
            class_axis: The dimension in which it is. Default 0.
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
        if shard is not None:
            mark_as_shard(weight, shard, class_axis)
        return weight


def _value(value: Any) -> np.ndarray:
    return np.zeros(value, np.uint32) if isinstance(value, tuple) else np.asarray(value)
