# SPDX-License-Identifier: Apache-2.0
"""The logits of all classes block by block, never all at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.devices import is_on_gpu
from tfx_largeout.ops.rows.variable_rows import bare_variable, fold_blocks, gather, ids_between

PRODUCTS = ("float32", "bfloat16")
"""What products are of: float32, or bfloat16 summed in float32."""

NO_LOGIT = -1e30
"""What stands for the logit of a class that is not there: beside any other, exp of it is 0."""

# Logits per block. On a CPU 4 MiB in float32, which fit into caches; on a GPU 256 MiB, since each
# block costs the time of about twenty launches.
_BLOCK_ELEMENTS, _BLOCK_ELEMENTS_ON_GPU = 2**20, 2**26
_MIN_BLOCK = 64


class LogitBlocks(NamedTuple):
    """Logits o = W h + b of all classes, computed from W one block at a time.

    Attributes:
        hidden: h, `[B, D]`, of the dtype to compute in.
        kernel: W, `[C, D]`, a variable or a tensor. It is read in blocks and never copied.
        bias: b, `[C]`, likewise, or None.
        products: One of `PRODUCTS`. With `"bfloat16"`, h and W are rounded to it first.
        left_out: `[B, K]` int64, rows of W, or below 0: classes whose logits are `NO_LOGIT`. Or
            None.
    """

    hidden: tf.Tensor
    kernel: tf.Tensor | tf.Variable
    bias: tf.Tensor | tf.Variable | None
    products: str = "float32"
    left_out: tf.Tensor | None = None

    @classmethod
    def of(cls, hidden: tf.Tensor, kernel: Any, bias: Any) -> LogitBlocks:
        """Creates it from variables, also Keras variables."""
        return cls(hidden, bare_variable(kernel), None if bias is None else bare_variable(bias))

    @property
    def num_classes(self) -> tf.Tensor:
        """C, `[]` int32."""
        return shape_of(self.kernel)[0]

    @property
    def block(self) -> tf.Tensor:
        """The number of classes per block, `[]` int32."""
        return classes_of_block(self.hidden, self.kernel)

    def logits(self, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Returns the logits of classes [start, end), int32, `[B, end - start]`."""
        hidden, dtype = self.hidden, self.hidden.dtype
        weights = rounded_for(self.products, tf.cast(_rows(self.kernel, start, end), dtype))
        logits = tf.matmul(rounded_for(self.products, hidden), weights, transpose_b=True)
        if self.bias is not None:
            logits += tf.cast(_rows(self.bias, start, end), dtype)
        if self.left_out is None:
            return logits
        first, last = tf.cast(start, tf.int64), tf.cast(end, tf.int64)
        places = tf.where((self.left_out >= first) & (self.left_out < last))
        columns = tf.gather_nd(self.left_out, places) - first
        return without_logits_at(logits, tf.stack([places[:, 0], columns], axis=1))

    def fold(
        self,
        visit: Callable[..., Any],
        result: Any,
        shapes: Any = None,
        block: tf.Tensor | None = None,
    ) -> Any:
        """Calls `result = visit(start, end, logits, result)` block by block: see `fold_blocks`."""
        return fold_blocks(
            self.num_classes,
            self.block if block is None else block,
            lambda start, end, result: visit(start, end, self.logits(start, end), result),
            result,
            shapes,
        )


def without_logits_at(logits: tf.Tensor, places: tf.Tensor) -> tf.Tensor:
    """Returns logits `[B, n]` with `NO_LOGIT` at `[m, 2]` places, which then have no gradient."""
    nothing = tf.fill(tf.shape(places)[:1], tf.constant(NO_LOGIT, logits.dtype))
    return tf.tensor_scatter_nd_update(logits, places, nothing)


def rounded_for(products: str, factor: tf.Tensor) -> tf.Tensor:
    """Returns a factor, rounded to bfloat16 if products are bfloat16, in its dtype."""
    if products == "float32":
        return factor
    return tf.cast(tf.cast(factor, tf.bfloat16), factor.dtype)


def classes_of_block(hidden: tf.Tensor, kernel: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns the number of classes of W `[C, D]` in a block for h `[B, D]`, `[]` int32.

    Their logits `[B, n]` and their rows of W `[n, D]` are small.
    """
    return _classes_of(hidden, _BLOCK_ELEMENTS_ON_GPU if is_on_gpu(kernel) else _BLOCK_ELEMENTS)


def classes_of_small_block(hidden: tf.Tensor) -> tf.Tensor:
    """As `classes_of_block` on a CPU, even if W is on a GPU."""
    return _classes_of(hidden, _BLOCK_ELEMENTS)


def shape_of(table: tf.Tensor | tf.Variable) -> tf.Tensor:
    """Returns the dynamic shape of a matrix, int32, without reading a variable."""
    if isinstance(table, tf.Variable):
        return tf.raw_ops.VariableShape(input=table.handle, out_type=tf.int32)
    return tf.shape(table)


def _classes_of(hidden: tf.Tensor, elements: int) -> tf.Tensor:
    larger = tf.reduce_max(tf.shape(hidden))
    return tf.maximum(elements // tf.maximum(larger, 1), _MIN_BLOCK)


def _rows(table: tf.Tensor | tf.Variable, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
    if not isinstance(table, tf.Variable):
        return table[start:end]
    return gather(table, ids_between(start, end))
