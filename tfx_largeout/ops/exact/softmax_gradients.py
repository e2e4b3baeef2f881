# SPDX-License-Identifier: Apache-2.0
"""The gradients of the softmax over all classes, as tensors, without all logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.checks import check_finite, finite_gradients
from tfx_largeout.ops.exact.logit_blocks import LogitBlocks, rounded_for
from tfx_largeout.ops.exact.soft_cap import soft_capped
from tfx_largeout.ops.exact.softmax_update import gradient_of_targets
from tfx_largeout.ops.rows.variable_rows import gather, ids_between
from tfx_largeout.run_time_checks import after


def softmax_gradients(
    kernel: Any,
    bias: Any,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    logsumexp: tf.Tensor,
    target_gradient: tf.Tensor,
    logsumexp_gradient: tf.Tensor,
    mean_gradient: tf.Tensor | None = None,
    *,
    soft_cap: float | None = None,
    products: str = "float32",
) -> RowGradients:
    """Returns dL/dh, and dL/dW and dL/db of all classes: the gradients of `softmax_update`.

    By TensorFlow's ops, one block of classes at a time. With capped logits, L is a function of cap
    tanh(o / cap), whose derivative is 1 - tanh(o / cap)^2.

    Cost: 6 B C D FLOP. Memory: the result, twice, and blocks `[B, n]` of logits.

    Arguments as in `softmax_update`; log Z is of capped logits.
    """
    by_example = {"logsumexp": logsumexp, "logsumexp_gradient": logsumexp_gradient}
    if mean_gradient is not None:
        by_example["mean_gradient"] = mean_gradient
    with after([check_finite(name, x) for name, x in by_example.items()]):
        (target_gradient,) = finite_gradients(target_gradient=(labels, target_gradient))
    blocks = LogitBlocks.of(hidden, kernel, bias)._replace(products=products)
    rounded_hidden = rounded_for(products, hidden)
    of_all: Any = 0
    if mean_gradient is not None:
        of_all = (mean_gradient / tf.cast(blocks.num_classes, hidden.dtype))[:, tf.newaxis]

    def visit(start, end, logits, result):  # type: ignore[no-untyped-def]
        of_hidden, of_kernel, of_bias = result
        capped = soft_capped(logits, soft_cap)
        excess = tf.minimum(capped - logsumexp[:, tf.newaxis], 0)
        gradient = logsumexp_gradient[:, tf.newaxis] * tf.exp(excess) + of_all
        gradient += gradient_of_targets(labels, target_gradient, start, end)
        if soft_cap is not None:
            gradient *= 1 - (capped / soft_cap) ** 2
        factor, place = rounded_for(products, gradient), start // block
        rows = tf.cast(gather(blocks.kernel, ids_between(start, end)), hidden.dtype)
        of_hidden += tf.matmul(factor, rounded_for(products, rows))
        rows = tf.matmul(factor, rounded_hidden, transpose_a=True)
        of_bias = of_bias.write(place, tf.reduce_sum(gradient, axis=0))
        return of_hidden, of_kernel.write(place, rows), of_bias

    block, dtype = blocks.block, hidden.dtype
    number = (blocks.num_classes + block - 1) // block
    shapes = [None, hidden.shape[1]], [None]
    rows = (
        tf.TensorArray(dtype, number, infer_shape=False, element_shape=shape) for shape in shapes
    )
    of_hidden, of_kernel, of_bias = blocks.fold(visit, (tf.zeros_like(hidden), *rows))
    ids = ids_between(tf.constant(0), blocks.num_classes)
    return RowGradients(ids, of_hidden, of_kernel.concat(), of_bias.concat())
