# SPDX-License-Identifier: Apache-2.0
"""Initialization of a huge weight in blocks of rows, without temporaries of its size."""

from __future__ import annotations

import zlib
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.memory import Weight
from tfx_largeout.saving import ConstantArray

_BLOCK_ELEMENTS = 2**22  # values drawn at a time: 16 MiB in float32
_KERNEL = "kernel_initializer"  # the argument, in errors
_BLOCKS_AT_ONCE = 6  # temporaries of an initializer and its scaling, in blocks, measured


def initialize_by_blocks(
    initializer: Any,
    shape: tuple[int, int],
    dtype: Any,
    last_column: tf.Tensor | None = None,
    shard: ClassShard | None = None,
    of_rows: Callable[[tf.Tensor], tf.Tensor] = tf.identity,
) -> tf.Tensor:
    """Returns the values of `initializer` for `[C, D]`, created in blocks if possible.

    An initializer with random, independent values is called for blocks of rows with different
    seeds, so the values differ from a single call; variance scaling (such as Glorot's) uses the
    whole shape. For a `Constant`, a number or an array, each block has its rows. Any other
    initializer, such as `Orthogonal` or a function, is called once, for the whole shape.

    Cost: O(C D); memory for the result and a block, or for the temporaries of a single call.

    Args:
        initializer: A Keras initializer, or a function of shape and dtype.
        shape: `(C, D)`.
        dtype: The dtype of the result.
        last_column: `[C]`, of that dtype: appended as one more column. Default: none.
        shard: The classes whose rows are returned. Default None: all.
        of_rows: A function of rows, applied to blocks. Default None.

    Raises:
        ValueError: The initializer returns another shape.
    """
    shard = shard or ClassShard(num_classes=shape[0])
    rows_a_block = max(_BLOCK_ELEMENTS // max(shape[1], 1), 1)
    if type(initializer) not in _BY_ROWS or shape[0] <= rows_a_block:
        values = of_rows(initial_values(initializer, shape, dtype, _KERNEL))
        return shard.own(_append(values, last_column))
    _check_constant(initializer, shape, _KERNEL)
    width = shape[1] + (last_column is not None)
    result = tf.raw_ops.Empty(shape=(shard.num_rows, width), dtype=tf.as_dtype(dtype))
    end = 0
    for block, start in enumerate(range(0, shape[0], rows_a_block)):
        rows = min(rows_a_block, shape[0] - start)
        own = _of_block(initializer, block, start, shape, (rows, shape[1]))
        column = None if last_column is None else last_column[start : start + rows]
        drawn = of_rows(own((rows, shape[1]), dtype=dtype))
        values = shard.own(_append(drawn, column), start)
        begin, end = end, end + values.shape[0]
        # The output uses the input's memory.
        result = tf.raw_ops.InplaceUpdate(x=result, i=tf.range(begin, end), v=values)
    return result


def bytes_of_blocks(weight: Weight) -> int:
    """Returns the largest temporary memory of `initialize_by_blocks`."""
    return _BLOCKS_AT_ONCE * min(4 * _BLOCK_ELEMENTS, weight.num_bytes)


def initial_values(initializer: Any, shape: tuple[int, ...], dtype: Any, name: str) -> tf.Tensor:
    """Returns the values of `initializer` for a shape, in a dtype, in one call.

    Arguments and errors: as `initialize_by_blocks`.
    """
    _check_constant(initializer, shape, name)
    values = tf.cast(initializer(shape, dtype=dtype), dtype)
    _check_shape(values.shape == shape, shape, name, values.shape)
    return values


def _append(values: tf.Tensor, column: tf.Tensor | None) -> tf.Tensor:
    return values if column is None else tf.concat([values, column[:, tf.newaxis]], axis=1)


_CONSTANT = (
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.Constant,
    ConstantArray,
)
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
_BY_ROWS = frozenset((*_CONSTANT, *_SCALING, *_RANDOM))


def _of_block(
    initializer: Any, block: int, start: int, shape: tuple[int, int], block_shape: tuple[int, int]
) -> Any:
    """Returns the initializer of a block of rows that begins at `start`."""
    if isinstance(initializer, _CONSTANT):
        rows: Any = getattr(getattr(initializer, "value", None), "shape", ())
        if len(rows) < 2 or rows[0] == 1:
            return initializer  # the same for each row
        return ConstantArray(initializer.value[start : start + block_shape[0]])
    seed = initializer.seed  # a generator gives the next block other values
    if isinstance(seed, int) and block > 0:
        # Not seed + block, which may be another layer's seed.
        seed = zlib.crc32(f"block {block} of seed {seed}".encode()) >> 1
    if not isinstance(initializer, _SCALING):
        return type(initializer)(**{**initializer.get_config(), "seed": seed})
    ratio = _fan(initializer.mode, block_shape) / _fan(initializer.mode, shape)
    return keras.initializers.VarianceScaling(
        initializer.scale * ratio, initializer.mode, initializer.distribution, seed
    )


def _check_constant(initializer: Any, shape: tuple[int, ...], name: str) -> None:
    """Raises an error for an array of a wrong shape, before Keras does."""
    if isinstance(initializer, ConstantArray):
        own = tuple(initializer.value.shape)
        there = shape[max(len(shape) - len(own), 0) :]
        fits = len(own) <= len(shape) and all(n in (1, m) for n, m in zip(own, there, strict=True))
        _check_shape(fits, shape, name, own)


def _check_shape(fits: bool, shape: tuple[int, ...], name: str, got: Any) -> None:
    if not fits:
        raise ValueError(
            f"{name} must give values of shape {tuple(shape)}, a row per class or node; got values "
            f"of shape {tuple(got)}"
        )


def _fan(mode: str, shape: tuple[int, int]) -> float:
    fans = {"fan_in": shape[0], "fan_out": shape[1], "fan_avg": sum(shape) / 2}
    return fans[mode]
