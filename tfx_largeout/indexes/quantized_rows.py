# SPDX-License-Identifier: Apache-2.0
"""Rows of W as whole numbers, with bounds of the logits: what RowBounds and InvertedFile keep."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.indexes.base import SearchIndex
from tfx_largeout.indexes.table_schedule import HOST
from tfx_largeout.ops.exact.bounded_top_k import CLASSES_OF_BLOCK, BoundedRows, BoundedTopK
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.statistics import TopScores

_MOST_QUANTUM = 127.0  # of int8
_LEAST_SCALE = 2.0**-120  # far above what a processor may take for 0
_LONGEST = 2.0**70  # of rows for which no sum overflows
_ROUNDING = 2.0**-24  # of a float32


class QuantizedRows(SearchIndex):
    """An index that finds the best classes in a quarter of the bytes of W. It does not follow W.

    To add one, write `build`, which sets `_shape` and calls `add_rows`; `rebuild`; and `top_k`.
    """

    def search(
        self,
        head: Any,
        hidden: tf.Tensor,
        k: int,
        *,
        num_found: int | None = None,
        with_partition: bool = False,
    ) -> TopScores:
        """As `SearchIndex`; by the exact pass with a partition, and over several workers."""
        is_over_rows = head.rows.shard.is_whole  # of several workers, each has others
        if is_over_rows:
            self.check_built_for(head.kernel)
        if with_partition or not is_over_rows:
            return head.top_k(hidden, k)
        best = self.top_k(hidden, head.kernel, head.bias, k)
        return TopScores(best.top_scores, best.top_ids, None)

    def top_k(self, hidden: Any, kernel: Any, bias: Any, k: int) -> BoundedTopK:
        """Returns the k best classes of each example, k <= C, for h `[N, D]`."""
        raise NotImplementedError

    def add_rows(self, blocks: int, width: int) -> None:
        """Adds the weights of `BoundedRows`. Nothing is ruled out by their first values."""
        with tf.device(HOST):
            self.quanta = self.add("quanta", (blocks, width, CLASSES_OF_BLOCK), "int8", 0)
            self.scales = self.add("scales", (blocks, CLASSES_OF_BLOCK), "float32", 0)
            self.errors = self.add("errors", (blocks, CLASSES_OF_BLOCK), "float32", float("inf"))

    def add(self, name: str, shape: tuple[int, ...], dtype: str, value: float) -> Any:
        """Adds a weight that is not trained."""
        return self.add_weight(
            name=name,
            shape=shape,
            dtype=dtype,
            initializer=keras.initializers.Constant(value),
            trainable=False,
            autocast=False,
        )

    @property
    def rows(self) -> BoundedRows:
        """The weights, as the ops take them."""
        return BoundedRows(*(bare_variable(x) for x in (self.quanta, self.scales, self.errors)))


def quantized(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns rows of float32 `[16 n, D]` as `BoundedRows` has them: numbers, scales, errors."""
    largest = tf.reduce_max(tf.abs(rows), axis=1)
    scales = tf.where(largest > _MOST_QUANTUM * _LEAST_SCALE, largest, 1) / _MOST_QUANTUM
    quanta = tf.round(rows / scales[:, tf.newaxis])
    quanta = tf.clip_by_value(quanta, -_MOST_QUANTUM, _MOST_QUANTUM)
    width = rows.shape[1]
    by_block = tf.reshape(tf.cast(quanta, tf.int8), [-1, CLASSES_OF_BLOCK, width])
    return (
        tf.transpose(by_block, [0, 2, 1]),
        tf.reshape(scales, [-1, CLASSES_OF_BLOCK]),
        tf.reshape(_errors(rows, quanta, scales), [-1, CLASSES_OF_BLOCK]),
    )


def _errors(rows: tf.Tensor, quanta: tf.Tensor, scales: tf.Tensor) -> tf.Tensor:
    """Returns what bounds the error of logits for |h| = 1: see `core/bounded_top_k.h`, `[n]`."""
    rows, quanta, scales = (tf.cast(x, tf.float64) for x in (rows, quanta, scales))
    lengths = tf.norm(rows, axis=1)
    residuals = tf.norm(rows - scales[:, tf.newaxis] * quanta, axis=1)
    rounding = (rows.shape[1] + 8) * _ROUNDING
    rounding = rounding / (1 - rounding)
    errors = (1 + rounding) * residuals + 2 * rounding * lengths
    errors = errors * (1 + 2.0**-20) + 2.0**-110
    unknown = tf.constant(float("inf"), tf.float64)
    return tf.cast(tf.where(lengths > _LONGEST, unknown, errors), tf.float32)
