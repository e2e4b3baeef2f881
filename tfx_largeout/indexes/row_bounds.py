# SPDX-License-Identifier: Apache-2.0
"""RowBounds: rows of W as whole numbers, with bounds of the logits, for the exact best classes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.indexes.quantized_rows import QuantizedRows, quantized
from tfx_largeout.indexes.table_schedule import HOST
from tfx_largeout.ops.exact.bounded_top_k import CLASSES_OF_BLOCK, BoundedTopK, bounded_top_k
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather, scatter_update
from tfx_largeout.run_time_checks import Check, after

_BLOCK_ELEMENTS = 2**18  # how many weights are made whole numbers at a time: 2 MiB in float64


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowBounds(QuantizedRows):
    """Rows of W in a quarter of their bytes, and how far off they are: exact best classes, sooner.

    Filter and refine. A row is kept as whole numbers q_c = round(w_c / s_c), s_c = max_d |w_cd| /
    127. With the residual r_c = w_c - s_c q_c, the logit o_c = w_c . h + b_c is near a_c =
    s_c (q_c . h) + b_c, since by Cauchy and Schwarz

        |o_c - a_c| <= e_c = |r_c| |h| + rounding,

    where `rounding` bounds what float32 does to both a_c and o_c: (n u / (1 - n u)) (2 |w_c| +
    |r_c|) |h|, with n = D + 8 and u = 2^-24, and a few u |b_c|. Let t be the k-th largest
    a_c - e_c. A class with a_c + e_c < t is none of the best k. The others, few as a rule, get
    their logits from W. `TopK(head, k, index=index)` returns the scores and ids of `TopK(head, k)`,
    bit by bit.

    **It does not follow W.** The bounds are those of the W of the last `rebuild`: call it after
    training, and after each other change of W. With an older W classes may be missing. Where a
    logit that is looked at is out of its bounds, all of W is read after all; after a small change
    there may be none. The bias may change: it is read as it is.

    It pays for a few examples, which are bound by how fast W is read. The exact pass over all of W
    runs instead for more than 8 examples; k > C / 32; an h that is not finite, or longer than 2^50;
    where more than C / 8 classes can't be ruled out; without the custom ops, on a GPU, for W of
    float16 or float64, and where classes are spread over several workers.

    Cost: D + 8 bytes a class, which are weights on the processor and saved with the model; a query
    reads these, and multiplies B C D times; `rebuild` O(C D) in blocks.

    Args:
        **kwargs: `name`, as for any Keras layer.

    Raises:
        RuntimeError: It is asked before `build` or `rebuild` has run.
        ValueError: W has another shape than at first.

    References:
        Cauchy's and Schwarz's inequality; Seidl, Kriegel 1998, Optimal multi-step k-nearest
        neighbor search (filter and refine); Higham 2002, Accuracy and stability of numerical
        algorithms, section 3.1 (rounding of inner products).
    """

    def build(self, input_shape: tuple[int, int]) -> None:
        """Makes room. Nothing is ruled out before `rebuild` has run.

        Args:
            input_shape: (C, D), the shape of W.
        """
        num_classes, width = input_shape
        self._shape = (num_classes, width)
        self.add_rows(-(-num_classes // CLASSES_OF_BLOCK), width)
        self.built = True

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Makes all bounds anew from W.

        Args:
            kernel: W `[C, D]`.
            bias: b `[C]`, or None: as other indexes take it. It is not looked at.

        Raises:
            ValueError: W has another shape than at first.
            tf.errors.InvalidArgumentError: W is not finite. The bounds are as before then.
        """
        kernel = bare_variable(kernel)
        if self.built:
            self.check_built_for(kernel)
        with tf.device(HOST), after([_check_finite_rows(kernel)]):
            if not self.built:
                self.build(tuple(kernel.shape))
            _fold_blocks(kernel, self._store, tf.constant(0, tf.int64))

    def top_k(self, hidden: Any, kernel: Any, bias: Any, k: int) -> BoundedTopK:
        """Returns the best k classes of each example: see `bounded_top_k`.

        Args:
            hidden: `[N, D]`.
            kernel: W `[C, D]`, as `rebuild` got it.
            bias: b `[C]`, or None.
            k: The number of classes, 0 <= k <= C.
        """
        self.check_built_for(kernel)
        return bounded_top_k(hidden, kernel, bias, self.rows, k)

    def _store(self, first: tf.Tensor, rows: tf.Tensor, blocks: tf.Tensor) -> tf.Tensor:
        """Stores the bounds of rows from `first` on; returns how many blocks there are so far."""
        bounds = quantized(rows)
        ids = first // CLASSES_OF_BLOCK + tf.range(tf.shape(bounds[0], tf.int64)[0])
        for variable, values in zip((self.quanta, self.scales, self.errors), bounds, strict=True):
            scatter_update(bare_variable(variable), ids, values)
        return blocks + tf.size(ids, tf.int64)


def _check_finite_rows(kernel: tf.Variable) -> Check:
    """Returns a check that W is finite in float32, read in blocks."""
    none = tf.constant(kernel.shape[0], tf.int64)

    def first_wrong(first: tf.Tensor, rows: tf.Tensor, so_far: tf.Tensor) -> tf.Tensor:
        is_wrong = tf.reduce_any(~tf.math.is_finite(rows), axis=1)
        return tf.reduce_min(tf.concat([[so_far], first + tf.where(is_wrong)[:, 0]], axis=0))

    wrong = _fold_blocks(kernel, first_wrong, none)
    return Check(
        wrong >= none, lambda: ["kernel must be finite; got one that is not in row", wrong]
    )


def _fold_blocks(
    kernel: tf.Variable, visit: Callable[..., tf.Tensor], start: tf.Tensor
) -> tf.Tensor:
    """Calls `result = visit(first, rows, result)` for blocks of rows, as float32 `[16 n, D]`.

    Args:
        kernel: W `[C, D]`.
        visit: Gets the class of the first row. Behind the last row of W there are zeros.
        start: The first result, int64.
    """
    num_classes, width = kernel.shape
    size = max(_BLOCK_ELEMENTS // (CLASSES_OF_BLOCK * max(width, 1)), 1) * CLASSES_OF_BLOCK

    def body(first: tf.Tensor, result: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        end = tf.minimum(first + size, num_classes)
        rows = tf.cast(gather(kernel, tf.range(first, end)), tf.float32)
        rows = tf.pad(rows, [[0, (first - end) % CLASSES_OF_BLOCK], [0, 0]])
        return end, visit(first, rows, result)

    return tf.while_loop(
        lambda first, _: first < num_classes,
        body,
        (tf.constant(0, tf.int64), start),
        parallel_iterations=1,
    )[1]
