# SPDX-License-Identifier: Apache-2.0
"""The gradient of the softmax cross-entropy over all classes with respect to h, block by block."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.labels import Labels

_BLOCK_ELEMENTS = 2**22  # logits at a time: 16 MiB


def exact_hidden_gradient(
    hidden: tf.Tensor, labels: Labels, log_partition: tf.Tensor, kernel: Any, bias: Any = None
) -> tf.Tensor:
    """Returns dL_n/dh_n of L = log Z - mean_y o_y, for each example; a mean of none is 0.

    dL/dh = sum_c p_c W[c] - mean_y W[y],  p_c = exp(o_c - log Z)

    Cost: O(N C D) time; memory for a block of logits.

    Args:
        hidden: h, `[N, D]` float32.
        labels: N examples.
        log_partition: log Z `[N]` float32, as `ExactStatistics` has it.
        kernel: W, a variable `[C, D]`.
        bias: b, a variable `[C]`, or None.

    Returns:
        `[N, D]` float32.
    """
    num_classes = kernel.shape[0]
    block = tf.maximum(_BLOCK_ELEMENTS // tf.maximum(tf.shape(hidden)[0], 1), 1)

    def add_block(start: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        ids = tf.range(start, tf.minimum(start + block, num_classes))
        rows, biases = _rows(kernel, bias, ids)
        logits = tf.matmul(hidden, rows, transpose_b=True) + biases
        probabilities = tf.exp(logits - log_partition[:, tf.newaxis])
        return start + block, total + tf.matmul(probabilities, rows)

    begin = (tf.constant(0), tf.zeros_like(hidden))
    expected = tf.while_loop(
        lambda start, _: start < num_classes, add_block, begin, parallel_iterations=1
    )[1]
    targets = tf.cast(tf.gather(kernel.value, labels.safe_ids), tf.float32)
    counts = tf.cast(labels.counts, tf.float32)[:, tf.newaxis]
    weights = tf.math.divide_no_nan(tf.cast(labels.mask, tf.float32), counts)
    return expected - tf.einsum("nk,nkd->nd", weights, targets)


def _rows(kernel: Any, bias: Any, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor | float]:
    rows = tf.cast(tf.gather(kernel.value, ids), tf.float32)
    return rows, 0.0 if bias is None else tf.cast(tf.gather(bias.value, ids), tf.float32)
