# SPDX-License-Identifier: Apache-2.0
"""DenseHead: the exact full softmax, the baseline of every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import SoftmaxStatistics, SphericalStatistics, without_gradient


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DenseHead(KernelHead):
    """The full softmax layer o = W h + b, trained with all classes by the model's optimizer.

    Both weights are ordinary trainable Keras weights.

    Cost: a training step O(B C D) time and O(B C) memory. Evaluation O(B C D) time, memory
    independent of C beyond the weights.

    Args and errors: as `KernelHead`.
    """

    statistics_type: ClassVar[type] = SoftmaxStatistics
    trains_spherical: ClassVar[bool] = True

    def statistics(self, hidden: tf.Tensor, labels: Labels) -> Any:
        # Gathering the target rows of W is quicker than gathering from the logits, whose gradient
        # would be one more [B, C] tensor (1.3 times the time of a step at C = 139,536; see
        # benchmarks/dense_head.py).
        log_partition = tf.reduce_logsumexp(self.flat_logits(hidden, "float32"), axis=-1)
        return SoftmaxStatistics(labels, self._target_logits(hidden, labels), log_partition)

    def spherical_statistics(
        self, hidden: tf.Tensor, labels: Labels, training: bool
    ) -> SphericalStatistics:
        # All logits at once, in training and outside: for comparisons with FactoredHead.
        logits = self.flat_logits(hidden, "float32")
        targets = tf.where(labels.mask, self._target_logits(hidden, labels), 0)
        squares, total = tf.reduce_sum(logits**2, axis=-1), tf.reduce_sum(logits, axis=-1)
        statistics = SphericalStatistics(labels, targets, squares, total, self.num_classes)
        return statistics if training else without_gradient(statistics)

    def _target_logits(self, hidden: tf.Tensor, labels: Labels) -> tf.Tensor:
        rows = tf.gather(self.kernel.value, labels.safe_ids)
        logits = tf.einsum("nd,nkd->nk", tf.cast(hidden, tf.float32), tf.cast(rows, tf.float32))
        if self.bias is not None:
            logits += tf.cast(tf.gather(self.bias.value, labels.safe_ids), tf.float32)
        return logits
