# SPDX-License-Identifier: Apache-2.0
"""Soft caps of logits, and sums over all classes of capped logits."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.exact.logit_blocks import LogitBlocks


def soft_capped(logits: tf.Tensor, cap: float | None) -> tf.Tensor:
    """Returns cap tanh(o / cap), as in Keras's `ReversibleEmbedding`; o without a cap."""
    return logits if cap is None else cap * tf.tanh(logits / cap)


def soft_capped_sums(
    hidden: tf.Tensor, kernel: Any, bias: Any, cap: float
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns log sum exp and the mean of all capped logits of each example, both `[N]`.

    Cost: O(N C D) time; memory for a few blocks of logits. Arguments: as `LogitBlocks`; a cap
    above 0.
    """
    blocks = LogitBlocks.of(tf.stop_gradient(hidden), kernel, bias)

    def visit(start, end, logits, sums):  # type: ignore[no-untyped-def]
        log_sum, total = sums
        logits = soft_capped(tf.cast(logits, tf.float64), cap)
        own = tf.reduce_logsumexp(logits, axis=1)
        log_sum = tf.reduce_logsumexp(tf.stack([log_sum, own], axis=1), axis=1)
        return log_sum, total + tf.reduce_sum(logits, axis=1)

    zeros = tf.zeros(tf.shape(hidden)[:1], tf.float64)
    log_sum, total = blocks.fold(visit, (zeros + tf.constant(float("-inf"), tf.float64), zeros))
    mean = total / tf.cast(blocks.num_classes, tf.float64)
    return tf.cast(log_sum, hidden.dtype), tf.cast(mean, hidden.dtype)
