# SPDX-License-Identifier: Apache-2.0
"""The backward step of the softmax over all classes: updates every row of W and b."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.devices import is_on_gpu
from tfx_largeout.memory import StepSize
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.checks import (
    check_dtypes,
    check_finite,
    check_shape,
    finite_gradients,
    require_shape,
)
from tfx_largeout.ops.exact.logit_blocks import PRODUCTS, LogitBlocks, rounded_for
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import RowStep
from tfx_largeout.ops.rows.variable_rows import gather, ids_between

_BY_EXAMPLE, _BY_LABEL = "[B] with the B of hidden", "[B, K] as labels"


def softmax_update(
    kernel: Any,
    bias: Any,
    kernel_slots: Sequence[Any],
    bias_slots: Sequence[Any],
    hidden: tf.Tensor,
    labels: tf.Tensor,
    logsumexp: tf.Tensor,
    target_gradient: tf.Tensor,
    logsumexp_gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: Any,
    *,
    mean_gradient: tf.Tensor | None = None,
    products: str = "float32",
    update: bool = True,
    implementation: str = "auto",
) -> tf.Tensor:
    """Takes a step on all rows of W and b, and returns dL/dh, for a loss L of statistics of o.

    The statistics are log Z, the target logits and the mean logit. With o = W h + b, p_ic =
    exp(o_ic) / Z_i, a = dL/d log Z, m = dL/d mean_c o_c and t_ik = dL/do at label k of i,

        g_ic = dL/do_ic = a_i p_ic + m_i / C + sum over k with y_ik = c of t_ik,
        dL/dh_i = sum_c g_ic W[c],   dL/dW[c] = sum_i g_ic h_i,   dL/db_c = sum_i g_ic.

    Blocks of rows are updated one after the other: o and g `[B, C]` and dL/dW `[C, D]` are never
    built. The result does not depend on the number of threads.

    Cost: 6 B C D FLOP; W and its slots are read and written once. Memory: up to 64 partial sums of
    O(B D) (at most 32 MiB, or 8 sums; no more threads than sums), and up to 2 MiB or some hundred
    rows per thread.

    Args:
        kernel: W, `[C, D]`, changed in place: as in `CandidateArguments`, like the other arguments
            in it.
        bias: b, `[C]`, likewise, or None.
        kernel_slots: The variables of `rule.slots` for W; changed in place.
        bias_slots: The slots for b; empty without a bias.
        hidden: h, `[B, D]`.
        labels: `[B, K]`.
        logsumexp: log Z, `[B]`, finite, for the same W, b and `products`.
        target_gradient: t, `[B, K]`, finite; ignored at padding.
        logsumexp_gradient: a, `[B]`, finite.
        rule: The update of a row.
        learning_rate: eta, a scalar of at least 0; eta weight_decay must be below 1.
        mean_gradient: m, `[B]`, finite. Default None: 0.
        products: `"float32"`; or `"bfloat16"`: W, h and g are rounded to it for all three products,
            and sums are float32. See `softmax_selection`.
        update: Whether to take the step; False: only the gradient.
        implementation: See `ops`, which has the errors, too.

    Returns:
        dL/dh at the W before the step, `[B, D]`, of the dtype of `hidden`.
    """
    choice_argument("products", products, PRODUCTS)
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, tf.zeros([0], tf.int64))
    step = RowStep.of(*arguments[:2], kernel_slots, bias_slots, rule, learning_rate)
    by_example = {"logsumexp": logsumexp, "logsumexp_gradient": logsumexp_gradient}
    if mean_gradient is not None:
        by_example["mean_gradient"] = mean_gradient
    check_dtypes(hidden.dtype, **by_example, target_gradient=target_gradient)
    batch = hidden.shape[0]
    for name, tensor in by_example.items():
        require_shape(name, _BY_EXAMPLE, tensor, [batch])
    require_shape("target_gradient", _BY_LABEL, target_gradient, [batch, labels.shape[1]])
    module = arguments.op_module(implementation, "tfx_softmax_update", rule)
    if module is None or is_on_gpu(arguments.kernel):  # which can't raise for bad values
        arguments, target_gradient = _checked(arguments, by_example, target_gradient, step)
    gradients = target_gradient, logsumexp_gradient, mean_gradient
    if module is None:
        return _composed(arguments, step, logsumexp, *gradients, products, update)
    return module.tfx_softmax_update(
        **arguments.inputs,
        **step.inputs,
        logsumexp=logsumexp,
        target_gradient=target_gradient,
        logsumexp_gradient=logsumexp_gradient,
        mean_gradient=tf.zeros([0]) if mean_gradient is None else mean_gradient,
        products=products,
        update=update,
    )


def _checked(
    arguments: CandidateArguments,
    by_example: dict[str, tf.Tensor],
    target_gradient: tf.Tensor,
    step: RowStep,
) -> tuple[CandidateArguments, tf.Tensor]:
    """Returns the arguments and the target gradients, 0 at padding, after all checks."""
    batch, by_label = tf.shape(arguments.hidden)[:1], tf.shape(arguments.labels)
    arguments = arguments.checked(
        [
            *(check_shape(name, _BY_EXAMPLE, x, batch) for name, x in by_example.items()),
            check_shape("target_gradient", _BY_LABEL, target_gradient, by_label),
            *(check_finite(name, x) for name, x in by_example.items()),
            step.check_rate(),
        ]
    )
    return arguments, finite_gradients(target_gradient=(arguments.labels, target_gradient))[0]


def softmax_workspace(width: int, step: StepSize) -> int:
    """Returns the bytes that a call of the custom op needs, as in `core/softmax_update.cc`."""
    of_hidden = step.examples * width
    sums = min(max(2**23 // max(of_hidden, 1), 8), 64)
    return 4 * (2 + sums) * of_hidden + 24 * step.examples * step.labels


def _composed(
    arguments: CandidateArguments,
    step: RowStep,
    logsumexp: tf.Tensor,
    target_gradient: tf.Tensor,
    logsumexp_gradient: tf.Tensor,
    mean_gradient: tf.Tensor | None,
    products: str,
    update: bool,
) -> tf.Tensor:
    """Same results as the custom op of `softmax_update`, by a loop over blocks of classes."""
    if mean_gradient is None:
        mean_gradient = tf.zeros_like(logsumexp)
    kernel, bias, hidden, labels = arguments[:4]
    rounded_hidden = rounded_for(products, hidden)
    of_all = mean_gradient[:, tf.newaxis] / arguments.num_classes

    def visit(start, end, logits, hidden_gradient):  # type: ignore[no-untyped-def]
        ids = ids_between(start, end)
        excess = tf.minimum(logits - logsumexp[:, tf.newaxis], 0)
        gradient = logsumexp_gradient[:, tf.newaxis] * tf.exp(excess)
        gradient += of_all + gradient_of_targets(labels, target_gradient, start, end)
        factor = rounded_for(products, gradient)
        rows = rounded_for(products, tf.cast(gather(kernel, ids), hidden.dtype))
        hidden_gradient += tf.matmul(factor, rows)
        if update:
            of_kernel = tf.matmul(factor, rounded_hidden, transpose_a=True)
            step.take(ids, of_kernel, tf.reduce_sum(gradient, axis=0), hidden_gradient)
        return hidden_gradient

    blocks = LogitBlocks(hidden, kernel, bias, products)
    return tf.ensure_shape(blocks.fold(visit, tf.zeros_like(hidden)), hidden.shape)


def gradient_of_targets(
    labels: tf.Tensor, gradient: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tf.Tensor:
    """Returns the gradients `[B, K]` at their labels, as columns of classes [start, end)."""
    size, batch = end - start, tf.shape(labels, tf.int64)[0]
    column = labels - tf.cast(start, tf.int64)
    is_here = (column >= 0) & (column < tf.cast(size, tf.int64))
    example = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], tf.shape(labels))
    # A label of another block adds 0 to the first class of this block.
    indices = tf.stack([example, tf.where(is_here, column, 0)], axis=-1)
    shape = tf.stack([batch, tf.cast(size, tf.int64)])
    return tf.scatter_nd(indices, tf.where(is_here, gradient, 0), shape)
