# SPDX-License-Identifier: Apache-2.0
"""Rows of W as integers, with bounds of the logits: for RowBounds and InvertedFile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.devices import HOST
from tfx_largeout.indexes.base import SearchIndex, filled
from tfx_largeout.ops.exact.bounded_top_k import (
    CLASSES_OF_BLOCK,
    BoundedRows,
    BoundedTopK,
    bounded_top_k,
)
from tfx_largeout.ops.rows.variable_rows import (
    bare_variable,
    fold_blocks,
    gather,
    ids_between,
    scatter_update,
)
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.statistics import TopScores

_MOST_QUANTUM = 127.0  # of int8
_LEAST_SCALE = 2.0**-120  # far above subnormal numbers
_LONGEST = 2.0**70  # longest row for which no sum overflows
_ROUNDING = 2.0**-24  # rounding unit of float32
_BLOCK_ELEMENTS = 2**18  # weights quantized at a time: 2 MiB in float64


class QuantizedRows(SearchIndex):
    """An index that finds the best classes by reading a quarter of W's bytes. It does not follow W.

    To add one, implement `build`, which sets `_shape` and calls `add_rows`; `rebuild`; `top_k`.
    """

    def search(
        self,
        head: Any,
        hidden: tf.Tensor,
        k: int,
        *,
        num_found: int | None = None,
        with_partition: bool = False,
        allowed: ClassFilter | None = None,
    ) -> TopScores:
        """As `SearchIndex`; uses the exact pass with a partition, and with several workers.

        Also if the number of classes to search is unknown: with groups, or with an unknown number
        of excluded classes.
        """
        is_over_rows = head.rows.shard.is_whole  # several workers have different rows
        if is_over_rows:
            self.check_built_for(head.kernel)
        if with_partition or not is_over_rows:
            return head.top_k(hidden, k) if allowed is None else head.top_k(hidden, k, allowed)
        if allowed is None:
            best = self.top_k(hidden, head.kernel, head.bias, k)
            return TopScores(best.top_scores, best.top_ids, None)
        num_excluded = allowed.excluded.shape[1]
        if allowed.groups is not None or num_excluded is None:
            return head.top_k(hidden, k, allowed)
        more = min(k + num_excluded, head.num_classes)
        best = self.top_k(hidden, head.kernel, head.bias, more)
        return TopScores(*allowed.best_left(best.top_scores, best.top_ids, k), None)

    def top_k(self, hidden: Any, kernel: Any, bias: Any, k: int) -> BoundedTopK:
        """Returns the k best classes of each example, k <= C, for h `[N, D]`."""
        raise NotImplementedError

    def add_rows(self, blocks: int, width: int) -> None:
        """Adds the weights of `BoundedRows`. Their initial values rule out nothing."""
        of_rows, of_blocks = (blocks, width, CLASSES_OF_BLOCK), (blocks, CLASSES_OF_BLOCK)
        with tf.device(HOST):
            self.quanta = self.add_derived("quanta", filled(of_rows, np.int8))
            self.scales = self.add_derived("scales", filled(of_blocks, np.float32))
            self.errors = self.add_derived("errors", filled(of_blocks, np.float32, np.inf))

    @property
    def rows(self) -> BoundedRows:
        """The weights, in the form for the ops."""
        return BoundedRows(*(bare_variable(x) for x in (self.quanta, self.scales, self.errors)))


def quantized(rows: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns float32 rows `[16 n, D]` in the form of `BoundedRows`: integers, scales, errors."""
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
    """Returns the error bounds of logits for |h| = 1, `[n]`: see `core/bounded_top_k.h`."""
    rows, quanta, scales = (tf.cast(x, tf.float64) for x in (rows, quanta, scales))
    lengths = tf.norm(rows, axis=1)
    residuals = tf.norm(rows - scales[:, tf.newaxis] * quanta, axis=1)
    rounding = (rows.shape[1] + 8) * _ROUNDING
    rounding = rounding / (1 - rounding)
    errors = (1 + rounding) * residuals + 2 * rounding * lengths
    errors = errors * (1 + 2.0**-20) + 2.0**-110
    unknown = tf.constant(float("inf"), tf.float64)
    return tf.cast(tf.where(lengths > _LONGEST, unknown, errors), tf.float32)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowBounds(QuantizedRows):
    """W as int8 with error bounds: a faster exact search for the best classes, for few queries.

    Filter and refine. A row is stored as integers q_c = round(w_c / s_c), s_c = max_d |w_cd| /
    127. With the residual r_c = w_c - s_c q_c, the logit o_c = w_c . h + b_c is near a_c =
    s_c (q_c . h) + b_c, since by Cauchy and Schwarz

        |o_c - a_c| <= e_c = |r_c| |h| + rounding,

    where `rounding` bounds the float32 rounding errors of a_c and o_c: (n u / (1 - n u)) (2 |w_c| +
    |r_c|) |h|, with n = D + 8 and u = 2^-24, and a few u |b_c|. Let t be the k-th largest a_c -
    e_c. A class with a_c + e_c < t is not among the best k. For the others, usually few, logits are
    computed from W. `TopK(head, k, index=index)` returns the scores and ids of `TopK(head, k)`, bit
    for bit.

    **It does not follow W.** The bounds are for W at the last `rebuild`: call it after training,
    and after any other change of W. Otherwise classes may be missing. If a computed logit is out of
    its bounds, all of W is read; but a small change of W may not be detected. The bias may change:
    its present values are used.

    It helps for a few examples, for which reading W takes most of the time. The exact pass over all
    of W runs instead for more than 8 examples; k > C / 32; an h that is not finite, or longer than
    2^50; if more than C / 8 classes can't be ruled out; without the custom ops, on a GPU, for W of
    float16 or float64, and if classes are spread over several workers.

    Cost: D + 8 bytes per class, as weights on the processor that are saved with the model; a query
    reads these, with B C D multiplications; `rebuild` O(C D) in blocks.

    Args:
        **kwargs: `name`, as for any Keras layer.

    Raises:
        RuntimeError: It is used before `build` or `rebuild` has run.
        ValueError: The shape of W differs from the first one.

    References:
        Cauchy's and Schwarz's inequality; Seidl, Kriegel 1998, Optimal multi-step k-nearest
        neighbor search (filter and refine); Higham 2002, Accuracy and stability of numerical
        algorithms, section 3.1 (rounding of inner products).
    """

    def build(self, input_shape: tuple[int, int]) -> None:
        """Allocates memory for W `[C, D]`. Nothing is ruled out before `rebuild` has run."""
        num_classes, width = input_shape
        self._shape = (num_classes, width)
        self.add_rows(-(-num_classes // CLASSES_OF_BLOCK), width)
        self.built = True

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Computes all bounds from W `[C, D]`. The bias is not used.

        Raises:
            ValueError: The shape of W differs from the first one.
            tf.errors.InvalidArgumentError: W is not finite. The bounds are unchanged then.
        """
        kernel = bare_variable(kernel)
        if self.built:
            self.check_built_for(kernel)
        with tf.device(HOST), after([_check_finite_rows(kernel)]):
            if not self.built:
                self.build(tuple(kernel.shape))
            _fold_rows(kernel, self._store, tf.constant(0, tf.int64))

    def top_k(self, hidden: Any, kernel: Any, bias: Any, k: int) -> BoundedTopK:
        """Returns the best k classes, 0 <= k <= C, of h `[N, D]`: see `bounded_top_k`."""
        self.check_built_for(kernel)
        return bounded_top_k(hidden, kernel, bias, self.rows, k)

    def _store(self, first: tf.Tensor, rows: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
        """Stores the bounds of rows from `first` on; returns the number of blocks so far."""
        bounds = quantized(rows)
        ids = first // CLASSES_OF_BLOCK + tf.range(tf.shape(bounds[0], tf.int64)[0])
        for variable, values in zip(self.rows, bounds, strict=True):
            scatter_update(variable, ids, values)
        return blocks + tf.size(ids, tf.int64)


def _check_finite_rows(kernel: tf.Variable) -> Check:
    """Returns a check that W is finite in float32, read in blocks."""
    none = tf.constant(kernel.shape[0], tf.int64)

    def first_wrong(first: tf.Tensor, rows: tf.Tensor, so_far: tf.Tensor) -> tf.Tensor:
        is_wrong = tf.reduce_any(~tf.math.is_finite(rows), axis=1)
        return tf.reduce_min(tf.concat([[so_far], first + tf.where(is_wrong)[:, 0]], axis=0))

    wrong = _fold_rows(kernel, first_wrong, none)
    return Check(
        wrong >= none, lambda: ["kernel must be finite; got one that is not in row", wrong]
    )


def _fold_rows(
    kernel: tf.Variable, visit: Callable[..., tf.Tensor], result: tf.Tensor
) -> tf.Tensor:
    """Calls `result = visit(first, rows, result)` for blocks of rows, as float32 `[16 n, D]`.

    `first` is the class of the first row, int64. After the last row of W there are zeros.
    """
    num_classes, width = kernel.shape
    size = max(_BLOCK_ELEMENTS // (CLASSES_OF_BLOCK * max(width, 1)), 1) * CLASSES_OF_BLOCK

    def of_block(start: tf.Tensor, end: tf.Tensor, result: tf.Tensor) -> tf.Tensor:
        rows = tf.cast(gather(kernel, ids_between(start, end)), tf.float32)
        rows = tf.pad(rows, [[0, (start - end) % CLASSES_OF_BLOCK], [0, 0]])
        return visit(tf.cast(start, tf.int64), rows, result)

    return fold_blocks(num_classes, size, of_block, result)
