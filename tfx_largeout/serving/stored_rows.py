# SPDX-License-Identifier: Apache-2.0
"""Rows of W as an exported model keeps them: float32, or rounded to a half or a quarter."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import tensorflow as tf

DTYPES = ("float32", "bfloat16", "int8")

_LARGEST = 127.0  # of int8
_BLOCK_ELEMENTS = 2**22


class StoredRows:
    """W `[R, D]` and b `[R]` in variables; logits are computed in float32.

    With `"int8"` row c is kept as round(w_c / s_c), s_c = max_d |w_cd| / 127.

    Attributes:
        kernel: `[R, D]`.
        scale: s, `[R]` float32, or None.
        bias: b, `[R]` float32, or None.
    """

    def __init__(
        self, kernel: tf.Variable, bias: tf.Variable | None, scale: tf.Variable | None = None
    ) -> None:
        self.kernel, self.bias, self.scale = kernel, bias, scale

    @property
    def width(self) -> int:
        return int(self.kernel.shape[1])

    def logits_at(self, queries: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[B, n]` of queries `[B, D]` and rows `[B, n]` of their own."""

        def take(table: tf.Variable) -> tf.Tensor:
            return tf.gather(table, rows)

        return self._logits_of(queries, take)

    def logits_of_lists(self, queries: tf.Tensor, lists: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the logits `[n, length]` of queries `[n, D]` and a list of rows for each.

        Args:
            queries: One for each list.
            lists: `[n]`; list l is the rows from l length on.
            length: Of all lists.
        """

        def take(table: tf.Variable) -> tf.Tensor:
            by_list = tf.reshape(tf.convert_to_tensor(table), [-1, length, *table.shape[1:]])
            return tf.gather(by_list, lists)

        return self._logits_of(queries, take)

    def _logits_of(self, queries: tf.Tensor, take: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        rows = tf.cast(take(self.kernel), tf.float32)
        # As a row times a matrix it is faster than as a matrix times a column.
        logits = tf.matmul(queries[:, tf.newaxis], rows, transpose_b=True)[:, 0]
        if self.scale is not None:
            logits *= take(self.scale)
        return logits if self.bias is None else logits + take(self.bias)


def store_rows(kernel: tf.Variable, bias: tf.Variable | None, dtype: str) -> StoredRows:
    """Returns the rows of W and b, kept in a dtype.

    Cost: none for W that is float32 and is to be; else memory for the result and a block of rows.
    """
    if kernel.dtype.name == dtype == "float32":
        return StoredRows(kernel, _as_float32(bias))
    return store_blocks(_blocks(kernel), tuple(kernel.shape), _as_float32(bias), dtype)


def store_blocks(
    blocks: Iterable[np.ndarray], shape: tuple[int, int], bias: tf.Variable | None, dtype: str
) -> StoredRows:
    """Returns rows of W, which come block by block, kept in a dtype, and b."""
    kernel = np.empty(shape, tf.as_dtype(dtype).as_numpy_dtype)
    scale = np.ones(shape[0], np.float32) if dtype == "int8" else None
    first = 0
    for block in blocks:
        place = slice(first, first + len(block))
        block = block.astype(np.float32)
        if scale is not None:
            largest = np.abs(block).max(axis=1)
            scale[place] = np.where(largest > 0, largest, 1) / _LARGEST
            block = np.rint(block / scale[place, np.newaxis])
        kernel[place] = block
        first += len(block)
    return StoredRows(variable(kernel), bias, None if scale is None else variable(scale))


def check_finite_rows(kernel: tf.Variable, bias: tf.Variable | None) -> None:
    """Refuses W or b with a NaN or an infinity, of which there is no order."""
    for name, table in (("W", kernel), ("b", bias)):
        if table is not None and not all(
            np.isfinite(block.astype(np.float32)).all() for block in _blocks(table)
        ):
            raise ValueError(f"{name} of the head must be finite; got a NaN or an infinity")


def variable(values: np.ndarray) -> tf.Variable:
    """Returns a variable that holds values, in the memory of the host."""
    with tf.device("CPU:0"):
        return tf.Variable(values, trainable=False)


def _blocks(table: tf.Variable) -> Iterator[np.ndarray]:
    rows = max(_BLOCK_ELEMENTS // math.prod(table.shape[1:]), 1)
    for first in range(0, int(table.shape[0]), rows):
        yield table[first : first + rows].numpy()


def _as_float32(bias: tf.Variable | None) -> tf.Variable | None:
    if bias is None or bias.dtype == tf.float32:
        return bias
    return variable(bias.numpy().astype(np.float32))
