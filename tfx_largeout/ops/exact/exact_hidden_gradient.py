# SPDX-License-Identifier: Apache-2.0
"""The gradient of the softmax cross-entropy over all classes with respect to h, block by block."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.labels import Labels
from tfx_largeout.ops.rows.variable_rows import bare_variable, fold_blocks, gather, ids_between

_BLOCK_ELEMENTS = 2**22  # logits at a time: 16 MiB


def exact_hidden_gradient(
    hidden: tf.Tensor, labels: Labels, log_partition: tf.Tensor, kernel: Any, bias: Any = None
) -> tf.Tensor:
    """Returns dL_n/dh_n of L = v (log Z - mean_y o_y), for each example; an empty mean is 0.

    dL/dh = v (sum_c p_c W[c] - mean_y W[y]),  p_c = exp(o_c - log Z)

    v is the mean weight of the example's labels, which also weighs their mean; 1 without weights.

    Cost: O(N C D) time; memory for a block of logits.

    Args:
        hidden: h, `[N, D]` float32.
        labels: N examples.
        log_partition: log Z `[N]` float32, as in `ExactStatistics`.
        kernel: W, a variable `[C, D]`.
        bias: b, a variable `[C]`, or None.

    Returns:
        `[N, D]` float32.
    """
    kernel = bare_variable(kernel)

    def add_block(start: tf.Tensor, end: tf.Tensor, total: tf.Tensor) -> tf.Tensor:
        ids = ids_between(start, end)
        rows = tf.cast(gather(kernel, ids), tf.float32)
        logits = tf.matmul(hidden, rows, transpose_b=True)
        if bias is not None:
            logits += tf.cast(gather(bare_variable(bias), ids), tf.float32)
        probabilities = tf.exp(logits - log_partition[:, tf.newaxis])
        return total + tf.matmul(probabilities, rows)

    block = tf.maximum(_BLOCK_ELEMENTS // tf.maximum(tf.shape(hidden)[0], 1), 1)
    expected = fold_blocks(kernel.shape[0], block, add_block, tf.zeros_like(hidden))
    targets = tf.cast(gather(kernel, labels.safe_ids), tf.float32)
    of_labels = 1.0 if labels.weights is None else tf.cast(labels.weights, tf.float32)
    weights = tf.where(labels.mask, of_labels, 0)
    weights = tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=1, keepdims=True))
    gradient = expected - tf.einsum("nk,nkd->nd", weights, targets)
    if labels.mean_weight is None:
        return gradient
    return tf.cast(labels.mean_weight, tf.float32)[:, tf.newaxis] * gradient
