# SPDX-License-Identifier: Apache-2.0
"""The partition function over all classes, and a few entries of the softmax that stand for it."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import choice_argument, integer_argument
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.checks import check_dtypes, require_shape
from tfx_largeout.ops.exact.products import PRODUCTS
from tfx_largeout.ops.exact.softmax_selection_composed import softmax_selection_composed
from tfx_largeout.ops.implementation import op_module
from tfx_largeout.ops.rows.row_rule import OP_DTYPES


class SoftmaxSelection(NamedTuple):
    """What `softmax_selection` returns; floats are float32, or float64 for a float64 kernel."""

    logsumexp: tf.Tensor
    """`[B]`: log Z = log sum_c exp(o_c), over all classes."""
    target_logits: tf.Tensor
    """`[B, K]`: o at the labels; 0 at padding."""
    ids: tf.Tensor
    """`[B, S']` int64: the classes that are kept, rising, labels left out; -1 at padding."""
    probabilities: tf.Tensor
    """`[B, S']`: their weights max(p, 1 / S); 0 at padding."""


def num_selected_argument(num_selected: int, num_classes: int, at_least: int = 1) -> int:
    """Returns S as an int.

    Raises:
        ValueError: It is no integer in [at_least, C].
    """
    num_selected = integer_argument("num_selected", num_selected, at_least)
    if num_selected > num_classes:
        raise ValueError(
            f"num_selected must be at most num_classes={num_classes}; got {num_selected}"
        )
    return num_selected


def softmax_selection(
    kernel: Any,
    bias: Any,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    num_selected: int,
    seed: tf.Tensor,
    *,
    products: str = "float32",
    implementation: str = "auto",
) -> SoftmaxSelection:
    """Computes log Z exactly, and keeps entries of the softmax that estimate it without bias.

    With p_ic = exp(o_ic) / Z_i, o = W h + b, each entry (i, c) is kept with probability
    min(1, S p_ic), independently of others, and gets the weight max(p_ic, 1 / S): its expectation
    is p_ic. At most S entries of an example are expected. With S = C all are kept, with p_ic
    itself, unless that underflows. Labels are left out: their p_ic is known from the target logits.

    The choice is a function of the seed, the place i in the batch, c and p_ic: neither of the
    number of threads nor, but for the rounding of p_ic, of the implementation.

    Cost: O(B C D) time, W read once; memory O(B (D + T S log C)) for T threads at most.

    Args:
        kernel: W, `[C, D]`: `tf.Variable` or `keras.Variable`, float32, bfloat16 or float64
            (composed only). It is read in place and never copied.
        bias: b, `[C]`, likewise, of the same dtype; or None.
        hidden: h, `[B, D]`, finite; float32, or float64 beside a float64 kernel.
        labels: `[B, K]` int64, padded with -1.
        num_selected: S, in [0, C]. With 0 none is kept.
        seed: `[2]` int64.
        products: `"float32"`; or `"bfloat16"`: W and h are rounded to bfloat16 (relative error
            2^-8 at most), a block at a time, and their products, which are exact then, summed in
            float32. That is faster on a processor with AVX512-BF16, and slower on others.
        implementation: As `row_update`.

    Returns:
        A `SoftmaxSelection`. No gradient is defined.

    Raises:
        ValueError: A static shape is wrong, `num_selected` is out of range, or `products` unknown.
        TypeError: A dtype is wrong.
        RuntimeError: `implementation="op"` and the library is not there.
        tf.errors.InvalidArgumentError: h is not finite, a label is out of range, or shapes
            disagree.
    """
    no_candidates = tf.zeros([0], tf.int64)
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, no_candidates)
    num_selected = num_selected_argument(num_selected, arguments.num_classes, at_least=0)
    choice_argument("products", products, PRODUCTS)
    check_dtypes(tf.int64, seed=seed)
    require_shape("seed", "[2]", seed, [2])
    module = op_module(
        implementation, "tfx_softmax_selection", "kernel", arguments.kernel, OP_DTYPES
    )
    if module is None:
        composed = softmax_selection_composed(arguments, num_selected, seed, products)
        return SoftmaxSelection(*composed)
    return SoftmaxSelection(
        *module.tfx_softmax_selection(
            kernel=arguments.kernel.handle,
            bias=[] if arguments.bias is None else [arguments.bias.handle],
            hidden=hidden,
            labels=labels,
            seed=seed,
            num_selected=num_selected,
            products=products,
            dtype=arguments.kernel.dtype,
        )
    )
