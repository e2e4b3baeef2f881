# SPDX-License-Identifier: Apache-2.0
"""The exact best k of all classes for a few examples, by bounds of their logits."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.ops.checks import require_shape
from tfx_largeout.ops.exact.streamed_logits import streamed_logits
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES
from tfx_largeout.ops.rows.variable_rows import bare_variable

CLASSES_OF_BLOCK = 16


class BoundedRows(NamedTuple):
    """Rows of whole numbers q_c, in N blocks of 16 classes, and bounds of their error."""

    rows: tf.Variable
    """`[N, D, 16]` int8: row c is `rows[c // 16, :, c % 16]`, 0 behind the last class."""
    scales: tf.Variable
    """`[N, 16]` float32, s_c: w_c is near s_c q_c."""
    errors: tf.Variable
    """`[N, 16]` float32: a bound of the error of a logit where |h| = 1, that of rounding too."""


class BoundedTopK(NamedTuple):
    """What `bounded_top_k` returns."""

    top_scores: tf.Tensor
    """`[B, k]`, falling, ties by lower id."""
    top_ids: tf.Tensor
    """`[B, k]` int64."""
    num_candidates: tf.Tensor
    """`[B]` int64: how many classes got their logit from W; C where bounds were not used."""


def bounded_top_k(
    hidden: Any,
    kernel: Any,
    bias: Any,
    bounded: BoundedRows,
    k: int,
    *,
    implementation: str = "auto",
) -> BoundedTopK:
    """Returns the k best classes as `streamed_logits` does, bit by bit, and reads less for it.

    With a_c = s_c <q_c, h> + b_c and |o_c - a_c| <= e_c, t being the k-th largest a_c - e_c: a
    class with a_c + e_c < t is not among the best k, and W is read for the others alone.

    All of W is read for more than 8 examples, for k > C / 32, where an h is not finite or longer
    than 2^50, where more than C / 8 classes can't be ruled out; and without the custom op.

    Cost: B C D multiplications; D + 8 bytes a class are read. Memory: what is not
    ruled out, at most 6 B C bytes, and 60 KiB B a thread.

    Args:
        hidden: h, `[B, D]`, floating.
        kernel: W, `[C, D]`, a variable, floating.
        bias: b, `[C]`, or None.
        bounded: What bounds the logits, of this W: with another, classes may be missing.
        k: How many of the best classes to return, 0 <= k <= C; a Python int.
        implementation: As `row_update`; the op is for float32 and bfloat16 on the processor.

    Raises:
        ValueError: An argument has a wrong shape or value.
        TypeError: An argument has a wrong dtype.
        RuntimeError: `implementation="op"` and the library is not there.
        LookupError: A gradient is asked for.
    """
    k = integer_argument("k", k, at_least=0)
    kernel = bare_variable(kernel)
    require_shape("kernel", "[C, D]", kernel, [None, None])
    num_classes, width = kernel.shape
    blocks = -(-num_classes // CLASSES_OF_BLOCK)
    rule = "[ceil(C / 16), {}16] with C and D of kernel"
    require_shape("rows", rule.format("D, "), bounded.rows, [blocks, width, CLASSES_OF_BLOCK])
    for name in ("scales", "errors"):
        shape: list[int | None] = [blocks, CLASSES_OF_BLOCK]
        require_shape(name, rule.format(""), getattr(bounded, name), shape)
    hidden = tf.convert_to_tensor(hidden)
    module = op_module(implementation, "tfx_bounded_top_k", "kernel", kernel, OP_DTYPES)
    if module is None:
        return every_class(hidden, kernel, bias, k, implementation)
    outputs = module.tfx_bounded_top_k(
        hidden=tf.cast(hidden, tf.float32),
        bias=tf.zeros([0], kernel.dtype) if bias is None else tf.convert_to_tensor(bias),
        kernel=kernel.handle,
        rows=bounded.rows.handle,
        scales=bounded.scales.handle,
        errors=bounded.errors.handle,
        k=k,
    )
    return BoundedTopK(*outputs)


def every_class(
    hidden: tf.Tensor, kernel: tf.Variable, bias: Any, k: int, implementation: str
) -> BoundedTopK:
    """Returns the k best classes where all of them are looked at."""
    none = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
    best = streamed_logits(hidden, kernel, bias, none, k, implementation=implementation)
    every = tf.fill(tf.shape(hidden)[:1], tf.constant(kernel.shape[0], tf.int64))
    return BoundedTopK(best.top_scores, best.top_ids, every)
