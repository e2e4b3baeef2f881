# SPDX-License-Identifier: Apache-2.0
"""Initialization of a huge weight in blocks of rows, without temporaries of its size."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

_BLOCK_ELEMENTS = 2**22  # values drawn at a time: 16 MiB in float32


def initialize_by_blocks(
    initializer: Any,
    shape: tuple[int, int],
    dtype: Any,
    last_column: tf.Tensor | None = None,
    first: int = 0,
    stride: int = 1,
) -> tf.Tensor:
    """Returns what `initializer` gives for `[C, D]`, drawn block after block.

    Each block has a seed of its own, so that the values are not those of one draw, and variance
    scaling (such as Glorot's) goes by the whole shape. An initializer that is neither random with
    independent values nor constant is called once, for the whole shape.

    Cost: O(C D); memory for the result and a block.

    Args:
        initializer: A Keras initializer, or a function of shape and dtype.
        shape: `(C, D)`.
        dtype: The dtype of the result.
        last_column: `[C]`, of that dtype: appended as one more column. Default: none.
        first: Of the rows, those from here on are returned. Default 0.
        stride: Each how-many-th of them. Default 1: all.
    """
    rows_a_block = max(_BLOCK_ELEMENTS // max(shape[1], 1), 1)
    if type(initializer) not in _INDEPENDENT or shape[0] <= rows_a_block:
        whole = _append(tf.convert_to_tensor(initializer(shape, dtype=dtype)), last_column)
        return whole if stride == 1 else whole[first::stride]
    width = shape[1] + (last_column is not None)
    kept = len(range(first, shape[0], stride))
    result = tf.raw_ops.Empty(shape=(kept, width), dtype=tf.as_dtype(dtype))
    end = 0
    for block, start in enumerate(range(0, shape[0], rows_a_block)):
        rows = min(rows_a_block, shape[0] - start)
        own = _of_block(initializer, block, shape, (rows, shape[1]))
        column = None if last_column is None else last_column[start : start + rows]
        values = _append(own((rows, shape[1]), dtype=dtype), column)
        values = values[(first - start) % stride :: stride]
        begin, end = end, end + values.shape[0]
        # The output is the input's own memory.
        result = tf.raw_ops.InplaceUpdate(x=result, i=tf.range(begin, end), v=values)
    return result


def _append(values: tf.Tensor, column: tf.Tensor | None) -> tf.Tensor:
    return values if column is None else tf.concat([values, column[:, tf.newaxis]], axis=1)


_CONSTANT = (keras.initializers.Zeros, keras.initializers.Ones, keras.initializers.Constant)
_SCALING = (
    keras.initializers.VarianceScaling,
    keras.initializers.GlorotNormal,
    keras.initializers.GlorotUniform,
    keras.initializers.HeNormal,
    keras.initializers.HeUniform,
    keras.initializers.LecunNormal,
    keras.initializers.LecunUniform,
)
_RANDOM = (
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)
_INDEPENDENT = frozenset((*_CONSTANT, *_SCALING, *_RANDOM))


def _of_block(
    initializer: Any, block: int, shape: tuple[int, int], block_shape: tuple[int, int]
) -> Any:
    """Returns the initializer of a block: with its own seed, and scaled for the whole shape."""
    if isinstance(initializer, _CONSTANT):
        return initializer
    seed = (int(initializer.seed) + block) if isinstance(initializer.seed, int) else None
    if not isinstance(initializer, _SCALING):
        return type(initializer)(**{**initializer.get_config(), "seed": seed})
    ratio = _fan(initializer.mode, block_shape) / _fan(initializer.mode, shape)
    return keras.initializers.VarianceScaling(
        initializer.scale * ratio, initializer.mode, initializer.distribution, seed
    )


def _fan(mode: str, shape: tuple[int, int]) -> float:
    fans = {"fan_in": shape[0], "fan_out": shape[1], "fan_avg": sum(shape) / 2}
    return fans[mode]
