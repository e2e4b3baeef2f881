# SPDX-License-Identifier: Apache-2.0
"""The best k classes of the lists near h: an inverted file."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.ops.checks import require_shape
from tfx_largeout.ops.exact.bounded_top_k import (
    CLASSES_OF_BLOCK,
    BoundedRows,
    BoundedTopK,
    every_class,
)
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES
from tfx_largeout.ops.rows.variable_rows import bare_variable


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

    Within them bounds leave a few classes over, as in `bounded_top_k`, which get their logits from
    W. Where the lists have fewer than k classes, -inf and -1 follow.

    All classes are looked at where an h is not finite or longer than 2^50; where a logit is out of
    its bounds, as it is for another W; where `ends` don't rise; and without the custom op.

    Cost: for each example L D + R D multiplications, R being the number of classes of its lists, of
    which D + 12 bytes a class are read. Memory: 20 R bytes a thread, of
    which there are at most as many as 64 MiB have room for.

    Args:
        hidden: h, `[B, D]`, floating.
        kernel: W, `[C, D]`, a variable, floating.
        bias: b, `[C]`, or None.
        bounded: What bounds the logits, of this W, in the order of the lists.
        lists: The lists.
        k: How many of the best classes to return, 0 <= k <= C; a Python int.
        num_probed: 1 to L; a Python int.
        implementation: As `row_update`; the op is for float32 and bfloat16 on the processor.

    Raises:
        ValueError: An argument has a wrong shape or value; where only the op looks at it, that is a
            tf.errors.InvalidArgumentError.
        TypeError: An argument has a wrong dtype.
        RuntimeError: `implementation="op"` and the library is not there.
        LookupError: A gradient is asked for.
    """
    k = integer_argument("k", k, at_least=0)
    num_probed = integer_argument("num_probed", num_probed, at_least=1)
    kernel = bare_variable(kernel)
    require_shape("kernel", "[C, D]", kernel, [None, None])
    (num_lists,) = lists.ends.shape
    if num_probed > num_lists:
        raise ValueError(
            f"num_probed must be at most the number of lists, {num_lists}; got {num_probed}"
        )
    hidden = tf.convert_to_tensor(hidden)
    module = op_module(implementation, "tfx_probed_top_k", "kernel", kernel, OP_DTYPES)
    tables = {**bounded._asdict(), **lists._asdict()}
    if module is None:
        _check_shapes(tables, kernel.shape[1])
        return every_class(hidden, kernel, bias, k, implementation)
    outputs = module.tfx_probed_top_k(  # which checks shapes itself, in less time
        hidden=tf.cast(hidden, tf.float32),
        bias=tf.zeros([0], kernel.dtype) if bias is None else tf.convert_to_tensor(bias),
        kernel=kernel.handle,
        **{name: table.handle for name, table in tables.items()},
        k=k,
        num_probed=num_probed,
    )
    return BoundedTopK(*outputs)


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
