# SPDX-License-Identifier: Apache-2.0
"""The smallest self-updating head: a full softmax with plain SGD."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.heads import DenseHead
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.self_updating import SelfUpdatingHead
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import SoftmaxStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout_tests")
class SelfUpdatingDense(SelfUpdatingHead, DenseHead):
    """o = W h + b; backward, W <- W - eta dW and b <- b - eta db."""

    gives = (SoftmaxStatistics,)
    trainable_kernel = False

    def __init__(self, num_classes, learning_rate=0.5, **kwargs):
        super().__init__(num_classes, **kwargs)
        self.learning_rate = learning_rate

    def forward(self, kind, hidden, labels):
        hidden = tf.debugging.check_numerics(hidden, "h must be finite")
        statistics = DenseHead.statistics(self, SoftmaxStatistics, hidden, labels, training=True)
        logits = tf.cast(self.logits(hidden), tf.float32)
        return (statistics.target_logits, statistics.log_partition), logits

    def backward(self, hidden, labels, logits, gradients, update):
        target_gradient, partition_gradient = (
            tf.debugging.check_numerics(g, "gradients must be finite") for g in gradients
        )
        wide = tf.cast(hidden, tf.float32)
        targets = (
            tf.one_hot(labels.safe_ids, self.num_classes)
            * tf.cast(labels.mask, tf.float32)[..., tf.newaxis]
        )
        error = tf.nn.softmax(logits) * partition_gradient[:, tf.newaxis]
        error += tf.einsum("nk,nkc->nc", target_gradient, targets)
        hidden_gradient = tf.matmul(error, tf.cast(self.kernel, tf.float32))
        if update:
            # The gradient is taken before the weights change.
            rate = self.followed(self.learning_rate)
            with tf.control_dependencies([hidden_gradient]):
                step = rate * tf.matmul(error, wide, transpose_a=True)
                self.kernel.assign_sub(tf.cast(step, self.kernel.dtype))
                step = rate * tf.reduce_sum(error, axis=0)
                self.bias.assign_sub(tf.cast(step, self.bias.dtype))
        return tf.cast(hidden_gradient, hidden.dtype)

    def pack(self, gone):
        return gone.hidden, gone.labels.ids, gone.residuals, *gone.gradients

    def unpack(self, parts):
        hidden, ids, logits, *gradients = parts
        return BackwardPass(hidden, Labels(ids), logits, tuple(gradients))

    def get_config(self):
        return {**super().get_config(), "learning_rate": self.learning_rate}
