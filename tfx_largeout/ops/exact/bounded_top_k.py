# SPDX-License-Identifier: Apache-2.0
"""The best k classes for a few examples, by bounds of logits: of all, or of lists near h."""

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
    """Rows of integers q_c, in N blocks of 16 classes, and bounds of their error."""

    rows: tf.Variable
    """`[N, D, 16]` int8: row c is `rows[c // 16, :, c % 16]`, 0 behind the last class."""
    scales: tf.Variable
    """`[N, 16]` float32, s_c: w_c is near s_c q_c."""
    errors: tf.Variable
    """`[N, 16]` float32: a bound of the error of a logit, rounding included, if |h| = 1."""


class BoundedTopK(NamedTuple):
    """The result of `bounded_top_k`."""

    top_scores: tf.Tensor
    """`[B, k]`, falling, ties by lower id."""
    top_ids: tf.Tensor
    """`[B, k]` int64."""
    num_candidates: tf.Tensor
    """`[B]` int64: how many classes got their logit from W; C where bounds were not used."""


class ClassesOfLists(NamedTuple):
    """L lists of classes, one after the other, each in whole blocks of `BoundedRows`."""

    classes: tf.Variable
    """`[N, 16]` int32: whose rows they are; -1 for none."""
    centers: tf.Variable
    """`[ceil(L / 16), D, 16]` float32."""
    offsets: tf.Variable
    """`[ceil(L / 16), 16]` float32."""
    penalties: tf.Variable
    """`[ceil(L / 16), 16]` float32: list l is as close to h as <center_l, h> + offset_l -
    |(h, 1)| penalty_l."""
    ends: tf.Variable
    """`[L]` int32: the block behind the last one of a list."""


def bounded_top_k(
    hidden: Any,
    kernel: Any,
    bias: Any,
    bounded: BoundedRows,
    k: int,
    *,
    implementation: str = "auto",
) -> BoundedTopK:
    """Returns the k best classes of `streamed_logits`, bit for bit, but reads less memory.

    With a_c = s_c <q_c, h> + b_c and |o_c - a_c| <= e_c, and t the k-th largest a_c - e_c: a class
    with a_c + e_c < t is not among the best k, and W is read only for the others.

    All of W is read for more than 8 examples, for k > C / 32, if an h is not finite or longer than
    2^50, if more than C / 8 classes can't be ruled out, and without the custom op.

    Cost: B C D multiplications; D + 8 bytes per class are read. Memory: for classes not ruled out
    at most 6 B C bytes, and 60 KiB B per thread.

    Args:
        hidden: h, `[B, D]`, floating.
        kernel: W, `[C, D]`, a variable, floating.
        bias: b, `[C]`, or None.
        bounded: The bounds of the logits for this W: with another W, classes may be missing.
        k: The number of best classes, 0 <= k <= C; a Python int.
        implementation: See `ops`, which has the errors, too. The op is for float32 and bfloat16 on
            the processor.
    """
    hidden, kernel, k = _checked(hidden, kernel, k)
    num_classes, width = kernel.shape
    blocks = -(-num_classes // CLASSES_OF_BLOCK)
    rule = "[ceil(C / 16), {}16] with C and D of kernel"
    require_shape("rows", rule.format("D, "), bounded.rows, [blocks, width, CLASSES_OF_BLOCK])
    for name in ("scales", "errors"):
        shape: list[int | None] = [blocks, CLASSES_OF_BLOCK]
        require_shape(name, rule.format(""), getattr(bounded, name), shape)
    module = op_module(implementation, "tfx_bounded_top_k", "kernel", kernel, OP_DTYPES)
    if module is None:
        return _every_class(hidden, kernel, bias, k, implementation)
    inputs = _inputs(hidden, kernel, bias, bounded._asdict())
    return BoundedTopK(*module.tfx_bounded_top_k(**inputs, k=k))


def probed_top_k(
    hidden: Any,
    kernel: Any,
    bias: Any,
    bounded: BoundedRows,
    lists: ClassesOfLists,
    k: int,
    num_probed: int,
    *,
    implementation: str = "auto",
) -> BoundedTopK:
    """Returns the k best classes of the `num_probed` lists closest to each example.

    Within them bounds rule out most classes, as in `bounded_top_k`; the logits of the others are
    computed from W. If the lists have fewer than k classes, -inf and -1 follow.

    All classes are read if an h is not finite or longer than 2^50; if a logit is out of its bounds,
    as for another W; if `ends` don't rise; and without the custom op.

    Cost: per example L D + R D multiplications, with R the number of classes in its lists; D + 12
    bytes are read per class. Memory: 20 R bytes per thread; the number of threads is limited so
    that this is at most 64 MiB.

    Args:
        hidden: h, `[B, D]`, floating.
        kernel: W, `[C, D]`, a variable, floating.
        bias: b, `[C]`, or None.
        bounded: The bounds of the logits for this W, in the order of the lists.
        lists: The lists.
        k: As `bounded_top_k`.
        num_probed: 1 to L; a Python int.
        implementation: As `bounded_top_k`.
    """
    hidden, kernel, k = _checked(hidden, kernel, k)
    num_probed = integer_argument("num_probed", num_probed, at_least=1)
    (num_lists,) = lists.ends.shape
    if num_probed > num_lists:
        raise ValueError(
            f"num_probed must be at most the number of lists, {num_lists}; got {num_probed}"
        )
    module = op_module(implementation, "tfx_probed_top_k", "kernel", kernel, OP_DTYPES)
    tables = {**bounded._asdict(), **lists._asdict()}
    if module is None:
        _check_shapes(tables, kernel.shape[1])
        return _every_class(hidden, kernel, bias, k, implementation)
    inputs = _inputs(hidden, kernel, bias, tables)  # the op checks shapes itself, faster
    return BoundedTopK(*module.tfx_probed_top_k(**inputs, k=k, num_probed=num_probed))


def _checked(hidden: Any, kernel: Any, k: int) -> tuple[tf.Tensor, tf.Variable, int]:
    kernel = bare_variable(kernel)
    require_shape("kernel", "[C, D]", kernel, [None, None])
    return tf.convert_to_tensor(hidden), kernel, integer_argument("k", k, at_least=0)


def _inputs(
    hidden: tf.Tensor, kernel: tf.Variable, bias: Any, tables: dict[str, tf.Variable]
) -> dict[str, tf.Tensor]:
    return {
        "hidden": tf.cast(hidden, tf.float32),
        "bias": tf.zeros([0], kernel.dtype) if bias is None else tf.convert_to_tensor(bias),
        "kernel": kernel.handle,
        **{name: table.handle for name, table in tables.items()},
    }


def _check_shapes(tables: dict[str, tf.Variable], width: int) -> None:
    blocks, lists = tables["rows"].shape[0], -(-tables["ends"].shape[0] // CLASSES_OF_BLOCK)
    shapes: dict[str, list[int | None]] = {
        "rows": [blocks, width, CLASSES_OF_BLOCK],
        "scales": [blocks, CLASSES_OF_BLOCK],
        "errors": [blocks, CLASSES_OF_BLOCK],
        "classes": [blocks, CLASSES_OF_BLOCK],
        "centers": [lists, width, CLASSES_OF_BLOCK],
        "offsets": [lists, CLASSES_OF_BLOCK],
        "penalties": [lists, CLASSES_OF_BLOCK],
    }
    for name, shape in shapes.items():
        require_shape(name, "in blocks of 16, with D of kernel", tables[name], shape)


def _every_class(
    hidden: tf.Tensor, kernel: tf.Variable, bias: Any, k: int, implementation: str
) -> BoundedTopK:
    """Returns the k best classes by reading all of them."""
    none = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
    best = streamed_logits(hidden, kernel, bias, none, k, implementation=implementation)
    every = tf.fill(tf.shape(hidden)[:1], tf.constant(kernel.shape[0], tf.int64))
    return BoundedTopK(best.top_scores, best.top_ids, every)
