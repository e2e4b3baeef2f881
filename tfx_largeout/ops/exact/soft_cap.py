# SPDX-License-Identifier: Apache-2.0
"""Soft caps of logits, and the sums over all classes of those that have one."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.exact.streamed_logits_composed import (
    classes_of_block,
    logits_of_block,
    num_rows_of,
)
from tfx_largeout.ops.rows.variable_rows import bare_variable


def soft_capped(logits: tf.Tensor, cap: float | None) -> tf.Tensor:
    """Returns cap tanh(o / cap), as Keras's `ReversibleEmbedding` does; o without a cap."""
    return logits if cap is None else cap * tf.tanh(logits / cap)


def soft_capped_sums(
    hidden: tf.Tensor, kernel: Any, bias: Any, cap: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log sum exp and the mean of all capped logits of each example, both `[N]`.

    Cost: O(N C D) time; memory for a few blocks of logits.

    Args:
        hidden: h, `[N, D]`, of the dtype to compute in.
        kernel: W, `[C, D]`, a variable.
        bias: b, `[C]`, a variable, or None.
        cap: Above 0.
    """
    kernel, bias = bare_variable(kernel), None if bias is None else bare_variable(bias)
    hidden = tf.stop_gradient(hidden)
    num_classes, block = num_rows_of(kernel), classes_of_block(hidden, kernel)

    def body(start: tf.Tensor, log_sum: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, ...]:
        end = tf.minimum(start + block, num_classes)
        logits = tf.cast(logits_of_block(hidden, kernel, bias, start, end), tf.float64)
        logits = soft_capped(logits, cap)
        own = tf.reduce_logsumexp(logits, axis=1)
        log_sum = tf.reduce_logsumexp(tf.stack([log_sum, own], axis=1), axis=1)
        return end, log_sum, total + tf.reduce_sum(logits, axis=1)

    zeros = tf.zeros(tf.shape(hidden)[:1], tf.float64)
    _, log_sum, total = tf.while_loop(
        lambda start, *_: start < num_classes,
        body,
        (tf.zeros([], tf.int32), zeros + tf.constant(float("-inf"), tf.float64), zeros),
        parallel_iterations=1,
    )
    mean = total / tf.cast(num_classes, tf.float64)
    return tf.cast(log_sum, hidden.dtype), tf.cast(mean, hidden.dtype)
