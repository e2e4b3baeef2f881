# SPDX-License-Identifier: Apache-2.0
"""The backward step of the softmax over all classes, in TensorFlow's own ops alone."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.exact.products import rounded_for
from tfx_largeout.ops.exact.streamed_logits_composed import (
    classes_of_block,
    ids_between,
    logits_of_block,
)
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update_composed import step_on_rows
from tfx_largeout.ops.rows.variable_rows import gather


def softmax_update_composed(
    arguments: CandidateArguments,
    slots: tuple[Sequence[tf.Variable], Sequence[tf.Variable]],
    logsumexp: tf.Tensor,
    target_gradient: tf.Tensor,
    logsumexp_gradient: tf.Tensor,
    mean_gradient: tf.Tensor | None,
    rule: RowRule,
    learning_rate: tf.Tensor,
    products: str,
    update: bool,
) -> tf.Tensor:
    """Same results as the custom op of `softmax_update`, by a loop over blocks of classes.

    Arguments, result and errors: those of `softmax_update`.
    """
    if mean_gradient is None:
        mean_gradient = tf.zeros_like(logsumexp)
    kernel, bias, hidden, labels = arguments[:4]
    rounded_hidden = rounded_for(products, hidden)
    block, num_classes = classes_of_block(hidden, kernel), tf.constant(arguments.num_classes)
    of_all = mean_gradient[:, tf.newaxis] / arguments.num_classes

    def body(start, hidden_gradient):  # type: ignore[no-untyped-def]
        end = start + tf.minimum(block, num_classes - start)
        ids = ids_between(start, end)
        logits = logits_of_block(hidden, kernel, bias, start, end, products)
        excess = tf.minimum(logits - logsumexp[:, tf.newaxis], 0)
        gradient = logsumexp_gradient[:, tf.newaxis] * tf.exp(excess)
        gradient += of_all + _of_targets(labels, target_gradient, start, end)
        factor = rounded_for(products, gradient)
        rows = rounded_for(products, tf.cast(gather(kernel, ids), hidden.dtype))
        hidden_gradient += tf.matmul(factor, rows)
        if update:
            kernel_gradient = tf.matmul(factor, rounded_hidden, transpose_a=True)
            with tf.control_dependencies([hidden_gradient]):  # which is that of the old W
                ids = tf.identity(ids)
            step_on_rows(kernel, slots[0], ids, kernel_gradient, rule, learning_rate)
            if bias is not None:
                of_bias = tf.reduce_sum(gradient, axis=0)
                step_on_rows(bias, slots[1], ids, of_bias, rule, learning_rate)
        return end, hidden_gradient

    _, hidden_gradient = tf.while_loop(
        lambda start, _: start < num_classes,
        body,
        (tf.zeros([], tf.int32), tf.zeros_like(hidden)),
        parallel_iterations=1,
    )
    return tf.ensure_shape(hidden_gradient, hidden.shape)


def _of_targets(
    labels: tf.Tensor, gradient: tf.Tensor, start: tf.Tensor, end: tf.Tensor
) -> tf.Tensor:
    """Returns the gradients `[B, K]` at their labels, as columns of classes [start, end)."""
    size, batch = end - start, tf.shape(labels, tf.int64)[0]
    column = labels - tf.cast(start, tf.int64)
    is_here = (column >= 0) & (column < tf.cast(size, tf.int64))
    example = tf.broadcast_to(tf.range(batch)[:, tf.newaxis], tf.shape(labels))
    # A label of another block adds 0 to the first class of this one.
    indices = tf.stack([example, tf.where(is_here, column, 0)], axis=-1)
    shape = tf.stack([batch, tf.cast(size, tf.int64)])
    return tf.scatter_nd(indices, tf.where(is_here, gradient, 0), shape)
