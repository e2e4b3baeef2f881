# SPDX-License-Identifier: Apache-2.0
"""DenseHead: the exact full softmax, the baseline of every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.heads.kernel_head import KernelHead, dense_logits
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import (
    MeanLogitStatistics,
    SoftmaxStatistics,
    SphericalStatistics,
    without_gradient,
)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DenseHead(KernelHead):
    """The full softmax layer o = W h + b, trained with all classes by the model's optimizer.

    Both weights are ordinary trainable Keras weights.

    Cost: a training step O(B C D) time and O(B C) memory. Evaluation O(B C D) time, memory
    independent of C beyond the weights.

    Args:
        num_classes: The number of classes C, at least 2.
        use_bias: Whether there is a bias b `[C]`. Default True.
        kernel_initializer: The initializer of W `[C, D]`, or an array. Values that are random and
            independent are drawn in blocks of rows. Default `"glorot_uniform"`.
        bias_initializer: The initializer of b. Default `"zeros"`.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Raises:
        ValueError: As `Head`.
    """

    gives: ClassVar[tuple[type, ...]] = (
        SoftmaxStatistics,
        MeanLogitStatistics,
        SphericalStatistics,
    )
    spreads_classes: ClassVar[bool] = True

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind not in DenseHead.gives:
            return super().statistics(kind, hidden, labels, training)
        # Each weight is read once. The gradient need not depend on a second read, and TensorFlow's
        # graph optimizer has let the optimizer's step overtake one.
        kernel = tf.convert_to_tensor(self.kernel)
        bias = None if self.bias is None else tf.convert_to_tensor(self.bias)
        logits = dense_logits(hidden, kernel, bias, self.statistics_dtype)
        # Gathering the target rows of W is quicker than gathering from the logits, whose gradient
        # would be one more [B, C] tensor (1.3 times the time of a step at C = 139,536; see
        # benchmarks/dense_head.py).
        targets = self._target_logits(hidden, kernel, bias, labels)
        statistics: Any
        if kind is SphericalStatistics:
            targets = tf.where(labels.mask, targets, 0)
            squares, total = tf.reduce_sum(logits**2, axis=-1), tf.reduce_sum(logits, axis=-1)
            squares = self.workers.sum(squares, f"{self.name}/squares")
            total = self.workers.sum(total, f"{self.name}/total")
            statistics = SphericalStatistics(labels, targets, squares, total, self.num_classes)
        else:
            log_partition = tf.reduce_logsumexp(logits, axis=-1)
            log_partition = self.workers.log_sum_exp(log_partition, f"{self.name}/log_partition")
            statistics = SoftmaxStatistics(labels, targets, log_partition)
            if kind is MeanLogitStatistics:
                mean = self.rows.share * tf.reduce_mean(logits, axis=-1)
                mean = self.workers.sum(mean, f"{self.name}/mean")
                statistics = MeanLogitStatistics(
                    labels, targets, log_partition, mean, self.num_classes
                )
        return statistics if training else without_gradient(statistics)

    def _target_logits(
        self, hidden: tf.Tensor, kernel: tf.Tensor, bias: tf.Tensor | None, labels: Labels
    ) -> tf.Tensor:
        safe_places = tf.maximum(self.rows.of(labels.ids), 0)
        rows = tf.gather(kernel, safe_places)
        dtype = self.statistics_dtype
        logits = tf.einsum("nd,nkd->nk", tf.cast(hidden, dtype), tf.cast(rows, dtype))
        if bias is not None:
            logits += tf.cast(tf.gather(bias, safe_places), dtype)
        return self.rows.of_owners(labels.ids, logits, "targets")
