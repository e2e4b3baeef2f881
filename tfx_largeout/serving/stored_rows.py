# SPDX-License-Identifier: Apache-2.0
"""W as stored in an exported model, by rows or by columns, and the search for the best classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.devices import HOST
from tfx_largeout.ops.exact.ranks_from_logits import best_columns, best_pairs
from tfx_largeout.ops.rows.large_variables import blocks_of_rows, fill_rows, read_rows
from tfx_largeout.statistics import TopScores

DTYPES = ("float32", "bfloat16", "int8")

_LARGEST = 127.0  # of int8
_MOST_CLASSES = 2**18  # largest block of columns; a loop iteration per block
_BLOCK_ELEMENTS = 2**22  # numbers per loop iteration: 16 MiB
_LEAST_BLOCK = 64
_LEAST_READ = 2**14  # rows transposed at a time
_GROUP = 32  # columns per group in the first comparison
_INFINITY = float("inf")


class StoredRows(NamedTuple):
    """W `[R, D]` and b `[R]` in variables; logits are computed in float32.

    With `"int8"` row c is stored as round(w_c / s_c), s_c = max_d |w_cd| / 127.

    Attributes:
        kernel: `[R, D]`.
        scale: s, `[R]` float32, or None.
        bias: b, `[R]` float32, or None.
    """

    kernel: tf.Variable
    bias: tf.Variable | None
    scale: tf.Variable | None = None

    @property
    def width(self) -> int:
        return int(self.kernel.shape[1])

    @property
    def variables(self) -> list[tf.Variable]:
        return [table for table in self if table is not None]

    def logits_at(self, queries: tf.Tensor, rows: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[B, n]` of queries `[B, D]` and separate rows `[B, n]` for each."""
        return self._logits_of(queries, lambda table: tf.gather(tf.convert_to_tensor(table), rows))

    def logits_of_lists(self, queries: tf.Tensor, lists: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the logits `[n, length]` of queries `[n, D]` and a list of rows for each.

        `lists` is `[n]`; list l has the rows from l `length` on.
        """

        def take(table: tf.Variable) -> tf.Tensor:
            by_list = tf.reshape(tf.convert_to_tensor(table), [-1, length, *table.shape[1:]])
            return tf.gather(by_list, lists)

        return self._logits_of(queries, take)

    def _logits_of(self, queries: tf.Tensor, take: Callable[[tf.Variable], tf.Tensor]) -> tf.Tensor:
        rows = tf.cast(take(self.kernel), tf.float32)
        # A row times a matrix is faster than a matrix times a column.
        logits = tf.matmul(queries[:, tf.newaxis], rows, transpose_b=True)[:, 0]
        if self.scale is not None:
            logits *= take(self.scale)
        return logits if self.bias is None else logits + take(self.bias)


class StoredColumns:
    """The columns of W^T `[D, C]`, in contiguous blocks of w classes.

    For a few h this is up to 1.5 times as fast as with the rows of W (benchmarks/serving.py). The
    last block is padded with zeros, fewer than one class per block.

    Args:
        num_classes: C.
        kernel: `[blocks, D, w]`.
        bias: `[blocks, w]` float32, or None.
        scale: `[blocks, w]` float32, or None.
    """

    def __init__(
        self,
        num_classes: int,
        kernel: tf.Variable,
        bias: tf.Variable | None,
        scale: tf.Variable | None,
    ) -> None:
        self.num_classes, self._of_block = num_classes, int(kernel.shape[2])
        self.kernel, self.bias, self.scale = kernel, bias, scale

    @property
    def variables(self) -> list[tf.Variable]:
        return [table for table in (self.kernel, self.bias, self.scale) if table is not None]

    def best(
        self,
        queries: tf.Tensor,
        k: int,
        log_partition: bool,
        _: Any,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """Returns the k best of all classes for queries `[B, D]` float32, ties by lower id.

        Cost: O(B C D) time; memory for a few blocks of 2^22 numbers, or of 64 classes.
        """
        batch = tf.shape(queries)[0]
        copied = numbers_copied(int(self.kernel.shape[1]), self.kernel.dtype)
        block = tf.maximum(_BLOCK_ELEMENTS // tf.maximum(batch, copied), _LEAST_BLOCK)

        def body(start, scores, ids, *sums):  # type: ignore[no-untyped-def]
            end = tf.minimum(start + block, self._end_of_block(start))
            logits = self._logits_between(queries, start, end)
            found = logits if allowed is None else allowed.masked(logits, start, end)
            best = best_of_many_columns(found, tf.minimum(k, end - start))
            scores = tf.concat([scores, tf.gather(found, best, batch_dims=1)], axis=1)
            ids = tf.concat([ids, tf.cast(best + start, tf.int64)], axis=1)
            # Earlier blocks come first, so the lower position has the lower id here, too.
            best = best_columns(scores, tf.minimum(k, tf.shape(scores)[1]))
            scores, ids = (tf.gather(each, best, batch_dims=1) for each in (scores, ids))
            return end, scores, ids, *(_add_exponentials(total, logits) for total in sums)

        start = [tf.zeros([], tf.int32), tf.zeros([batch, 0]), tf.zeros([batch, 0], tf.int64)]
        shapes = [tf.TensorShape([]), tf.TensorShape([None, None]), tf.TensorShape([None, None])]
        if log_partition:
            start.append(tf.fill([batch], tf.constant(float("-inf"), tf.float64)))
            shapes.append(tf.TensorShape([None]))
        _, scores, ids, *sums = tf.while_loop(
            lambda start, *_: start < self.num_classes,
            body,
            start,
            shape_invariants=shapes,
            parallel_iterations=1,
        )
        for each in (scores, ids):
            each.set_shape([queries.shape[0], k])  # no op, since LiteRT has none for it
        if allowed is not None:
            scores, ids = allowed.best_left(scores, ids, k)
        return TopScores(scores, ids, tf.cast(sums[0], tf.float32) if sums else None)

    def _end_of_block(self, start: tf.Tensor) -> tf.Tensor:
        return tf.minimum((start // self._of_block + 1) * self._of_block, self.num_classes)

    def _logits_between(self, queries: tf.Tensor, start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        """Returns the logits `[B, end - start]` of queries `[B, D]` and classes of one block."""
        number, first = start // self._of_block, start % self._of_block
        # A whole block is not copied, so the last one's padding is multiplied, too.
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


def numbers_copied(width: int, dtype: tf.DType) -> int:
    """Returns how many numbers per class are converted to float32 for the product."""
    return 1 if dtype == tf.float32 else max(width, 1)


def blocks_of_columns(num_classes: int, width: int, dtype: tf.DType) -> tuple[int, int]:
    """Returns the number of blocks of `StoredColumns`, and the number of classes per block.

    For rounded numbers, a block is the size of a loop iteration for a few examples: slicing a
    larger block would cost over 50% more (benchmarks/serving.py).
    """
    of_turn = max(_BLOCK_ELEMENTS // numbers_copied(width, dtype), _LEAST_BLOCK)
    blocks = math.ceil(num_classes / min(_MOST_CLASSES, of_turn))
    return blocks, math.ceil(num_classes / blocks)


def store_columns(kernel: tf.Variable, bias: tf.Variable | None, dtype: str) -> StoredColumns:
    """Returns W and b by columns, stored in a dtype. Cost: memory for them and a block."""
    num_classes, width = map(int, kernel.shape)
    blocks, size = blocks_of_columns(num_classes, width, tf.as_dtype(dtype))
    with tf.device(HOST):
        made = variable(tf.raw_ops.Empty(shape=[blocks, width, size], dtype=tf.as_dtype(dtype)))
    scales = np.zeros((blocks, size), np.float32)
    for number in range(blocks):
        block = np.zeros((1, width, size), made.dtype.as_numpy_dtype)
        for first in range(number * size, min((number + 1) * size, num_classes), _LEAST_READ):
            end = min(first + _LEAST_READ, (number + 1) * size, num_classes)
            place = slice(first - number * size, end - number * size)
            rows = read_rows(kernel, first, end).astype(np.float32)
            rounded, scale = _rounded(rows, dtype)
            block[0, :, place] = rounded.T
            if scale is not None:
                scales[number, place] = scale
        fill_rows(made, number, block)
    biases = None
    if bias is not None:
        filled = np.zeros(blocks * size, np.float32)
        filled[:num_classes] = bias.numpy().astype(np.float32)
        biases = variable(filled.reshape(blocks, size))
    return StoredColumns(num_classes, made, biases, variable(scales) if dtype == "int8" else None)


def best_of_many_columns(logits: tf.Tensor, k: int | tf.Tensor) -> tf.Tensor:
    """Returns the same as `best_columns`, faster for many columns, `[B, n]`.

    The k largest numbers are in the k groups of neighbours with the largest maxima.
    """
    batch, number = tf.unstack(tf.shape(logits))
    groups = -(-number // _GROUP)
    filled_up = [[0, 0], [0, groups * _GROUP - number]]
    by_group = tf.reshape(
        tf.pad(logits, filled_up, constant_values=-_INFINITY), [batch, groups, _GROUP]
    )
    best = best_columns(tf.reduce_max(by_group, axis=2), tf.minimum(k, groups))
    best = tf.sort(best, axis=1)  # then the lower position has the lower column
    found = tf.gather(by_group, best, batch_dims=1)
    places = best_columns(tf.reshape(found, [batch, tf.shape(best)[1] * _GROUP]), k)
    return tf.gather(best, places // _GROUP, batch_dims=1) * _GROUP + places % _GROUP


def best_of_any_order(
    scores: tf.Tensor, ids: tf.Tensor, k: int | tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the k best scores and their ids, ties by lower id, -1 last; -inf if too few."""
    missing = [[0, 0], [0, tf.maximum(k - tf.shape(ids)[1], 0)]]
    scores = tf.pad(scores, missing, constant_values=-_INFINITY)
    ids = tf.pad(tf.where(ids < 0, tf.int64.max, ids), missing, constant_values=tf.int64.max)
    scores, ids = best_pairs(scores, ids, k)
    return scores, tf.where(tf.equal(ids, tf.int64.max), tf.constant(-1, tf.int64), ids)


def in_turns(
    count: tf.Tensor,
    size: int,
    part: Callable[[tf.Tensor, tf.Tensor], Sequence[tf.Tensor]],
    results: Sequence[tuple[tf.DType, Any]],
    parallel_iterations: int = 10,
) -> list[tf.Tensor]:
    """Concatenates `part(begin, end)` over blocks of `size` of `count` rows.

    `results` are the dtypes and shapes of a part's results.
    """
    turns = -(-count // size)

    def body(turn: tf.Tensor, *made: tf.TensorArray) -> tuple[tf.Tensor, ...]:
        given = part(turn * size, tf.minimum((turn + 1) * size, count))
        return turn + 1, *(a.write(turn, one) for a, one in zip(made, given, strict=True))

    made = [
        tf.TensorArray(dtype, turns, infer_shape=False, element_shape=shape)
        for dtype, shape in results
    ]
    made = tf.while_loop(
        lambda turn, *_: turn < turns, body, (0, *made), parallel_iterations=parallel_iterations
    )[1:]
    return [each.concat() for each in made]


def scored_again(queries: tf.Tensor, rows: StoredRows, best: TopScores, k: int) -> TopScores:
    """Returns the k best of given classes by other rows of W; ids of -1 stay last.

    In the log partition the new terms of these classes replace the old ones.
    """
    scores = rows.logits_at(queries, tf.maximum(best.ids, 0))
    scores = tf.where(best.ids < 0, tf.constant(-_INFINITY), scores)
    sums = best.log_partition
    if sums is not None:
        sums = _exchanged(sums, best.scores, scores)
    return TopScores(*best_of_any_order(scores, best.ids, k), sums)


def store_rows(kernel: tf.Variable, bias: tf.Variable | None, dtype: str) -> StoredRows:
    """Returns the rows of W and b, stored in a dtype.

    Cost: none if W is float32 and is stored so; else memory for the result and a block of rows.
    """
    if kernel.dtype.name == dtype == "float32":
        return StoredRows(variable(kernel.read_value()), _as_float32(bias))
    return store_blocks(_blocks(kernel), tuple(kernel.shape), _as_float32(bias), dtype)


def store_blocks(
    blocks: Iterable[np.ndarray], shape: tuple[int, int], bias: tf.Variable | None, dtype: str
) -> StoredRows:
    """Returns rows of W, passed block by block, stored in a dtype, and b."""
    kernel = np.empty(shape, tf.as_dtype(dtype).as_numpy_dtype)
    scale = np.ones(shape[0], np.float32) if dtype == "int8" else None
    first = 0
    for block in blocks:
        place = slice(first, first + len(block))
        kernel[place], of_block = _rounded(block.astype(np.float32), dtype)
        if scale is not None:
            scale[place] = of_block
        first += len(block)
    return StoredRows(variable(kernel), bias, None if scale is None else variable(scale))


def _rounded(rows: np.ndarray, dtype: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Returns float32 rows in the stored dtype, and for int8 their scales."""
    if dtype != "int8":
        return rows, None
    largest = np.abs(rows).max(axis=1)
    scale = (np.where(largest > 0, largest, 1) / _LARGEST).astype(np.float32)
    return np.rint(rows / scale[:, np.newaxis]), scale


def check_finite_rows(kernel: tf.Variable, bias: tf.Variable | None) -> None:
    """Raises an error if W or b has a NaN or an infinity, which can't be ranked."""
    for name, table in (("W", kernel), ("b", bias)):
        if table is not None and not all(
            np.isfinite(block.astype(np.float32)).all() for block in _blocks(table)
        ):
            raise ValueError(f"{name} of the head must be finite; got a NaN or an infinity")


def variable(values: Any) -> tf.Variable:
    """Returns a variable with these values in host memory; a tensor is not copied."""
    with tf.device(HOST):
        return tf.Variable(values, trainable=False)


def _blocks(table: tf.Variable) -> Iterator[np.ndarray]:
    for first, end in blocks_of_rows(table):
        yield read_rows(table, first, end)


def _as_float32(bias: tf.Variable | None) -> tf.Variable | None:
    return None if bias is None else variable(bias.numpy().astype(np.float32))


def _exchanged(log_partition: tf.Tensor, old: tf.Tensor, new: tf.Tensor) -> tf.Tensor:
    """Returns log(exp(log_partition) - sum exp(old) + sum exp(new)), `[B]`; old, new `[B, n]`."""
    shares = tf.exp(old - log_partition[:, tf.newaxis])
    shares = tf.where(old == -_INFINITY, tf.zeros_like(shares), shares)  # also if lists are empty
    rest = log_partition + tf.math.log(tf.maximum(1 - tf.reduce_sum(shares, axis=1), 0))
    return tf.reduce_logsumexp(tf.concat([rest[:, tf.newaxis], new], axis=1), axis=1)


def _add_exponentials(total: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    # The sum over blocks is float64, so that rounding errors don't add up.
    block = tf.cast(tf.reduce_logsumexp(logits, axis=1), tf.float64)
    return tf.reduce_logsumexp(tf.stack([total, block], axis=1), axis=1)
