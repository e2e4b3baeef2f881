# SPDX-License-Identifier: Apache-2.0
"""W as an exported model keeps it for a pass over all classes: transposed, in blocks of classes."""

from __future__ import annotations

import math

import numpy as np
import tensorflow as tf

from tfx_largeout.serving.stored_rows import StoredRows, variable

_MOST_CLASSES = 2**18  # of a block: each makes a turn of a loop


class StoredColumns:
    """The columns of W^T `[D, C]`, in blocks of w classes, so that each lies in one piece.

    A few h times W^T is up to half as fast again as with the rows of W (benchmarks/serving.py).
    The last block is filled up with zeros, of less than one class a block.

    Args:
        rows: W by its rows.
    """

    def __init__(self, rows: StoredRows) -> None:
        self.num_classes = int(rows.kernel.shape[0])
        self._blocks = math.ceil(self.num_classes / _MOST_CLASSES)
        self._of_block = math.ceil(self.num_classes / self._blocks)
        self.kernel = variable(np.ascontiguousarray(self._in_blocks(rows.kernel).swapaxes(1, 2)))
        self.bias = None if rows.bias is None else variable(self._in_blocks(rows.bias))
        self.scale = None if rows.scale is None else variable(self._in_blocks(rows.scale))

    @property
    def numbers_copied(self) -> int:
        """How many numbers a class takes in the float32 copy of a block."""
        return 1 if self.kernel.dtype == tf.float32 else int(self.kernel.shape[1])

    def end_of_block(self, start: tf.Tensor) -> tf.Tensor:
        """Returns the end of the block that a class lies in."""
        return tf.minimum((start // self._of_block + 1) * self._of_block, self.num_classes)

    def logits_between(self, queries: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[B, end - start]` of queries `[B, D]` and classes of one block."""
        number, first = start // self._of_block, start % self._of_block
        # A whole block is no copy: of the last one, what fills it up is multiplied as well.
        last = tf.where(end == self.num_classes, self._of_block, first + end - start)

        def part(table: tf.Variable) -> tf.Tensor:
            return tf.convert_to_tensor(table)[number][first:last]  # LiteRT has no ellipsis

        block = tf.convert_to_tensor(self.kernel)[number][:, first:last]
        logits = tf.matmul(queries, tf.cast(block, tf.float32))
        if self.scale is not None:
            logits *= part(self.scale)
        if self.bias is not None:
            logits = tf.nn.bias_add(logits, part(self.bias))
        return logits[:, : end - start]

    def _in_blocks(self, table: tf.Variable) -> np.ndarray:
        """Returns a table `[C, ...]` as `[blocks, w, ...]`, filled up with zeros."""
        size = self._of_block
        blocks = np.zeros((self._blocks, size, *table.shape[1:]), table.dtype.as_numpy_dtype)
        for number, block in enumerate(blocks):
            some = table[number * size : (number + 1) * size].numpy()
            block[: len(some)] = some
        return blocks
