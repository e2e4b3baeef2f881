# SPDX-License-Identifier: Apache-2.0
"""DenseHead: the exact full softmax, the baseline of every comparison."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.heads.base import Head, TopScores
from tfx_largeout.labels import Labels
from tfx_largeout.ops.streamed_logits import streamed_logits
from tfx_largeout.statistics import (
    ExactStatistics,
    SoftmaxStatistics,
    SphericalStatistics,
    without_gradient,
)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DenseHead(Head):
    """The full softmax layer o = W h + b, trained with all classes by the model's optimizer.

    The kernel W is `[C, D]`: a row a class, as in `tf.nn`. Both weights are ordinary trainable
    Keras weights.

    Cost: a training step O(B C D) time and O(B C) memory. Evaluation O(B C D) time, memory
    independent of C beyond the weights.

    Args:
        num_classes: The number of classes C, at least 2.
        use_bias: Whether there is a bias b `[C]`. Default True.
        kernel_initializer: Of W. Default `"glorot_uniform"`.
        bias_initializer: Of b. Default `"zeros"`.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Raises:
        ValueError: As `Head`.
    """

    statistics_type: ClassVar[type] = SoftmaxStatistics
    trains_spherical: ClassVar[bool] = True

    def __init__(
        self,
        num_classes: int,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.use_bias = use_bias
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        width = input_shape[-1]
        if width is None:
            raise ValueError(
                f"the last dimension of the hidden activations must be known; got {input_shape}"
            )
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: width})
        # No autocast: it would cast all of W wherever a few rows are gathered.
        self.kernel = self.add_weight(
            name="kernel",
            shape=(self.num_classes, width),
            initializer=self.kernel_initializer,
            autocast=False,
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.num_classes,),
                initializer=self.bias_initializer,
                autocast=False,
            )

    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        logits = self._flat_logits(flat, self.compute_dtype)
        if hidden.shape.rank == 2:
            return logits
        return tf.reshape(logits, tf.concat([tf.shape(hidden)[:-1], [self.num_classes]], axis=0))

    def statistics(self, hidden: tf.Tensor, labels: Labels) -> Any:
        # Gathering the target rows of W is quicker than gathering from the logits, whose gradient
        # would be one more [B, C] tensor (1.3 times the time of a step at C = 139,536; see
        # benchmarks/dense_head.py).
        log_partition = tf.reduce_logsumexp(self._flat_logits(hidden, "float32"), axis=-1)
        return SoftmaxStatistics(labels, self._target_logits(hidden, labels), log_partition)

    def spherical_statistics(
        self, hidden: tf.Tensor, labels: Labels, training: bool
    ) -> SphericalStatistics:
        # All logits at once, in training and outside: for comparisons with FactoredHead.
        logits = self._flat_logits(hidden, "float32")
        targets = tf.where(labels.mask, self._target_logits(hidden, labels), 0)
        squares, total = tf.reduce_sum(logits**2, axis=-1), tf.reduce_sum(logits, axis=-1)
        statistics = SphericalStatistics(labels, targets, squares, total, self.num_classes)
        return statistics if training else without_gradient(statistics)

    def exact_statistics(self, hidden: tf.Tensor, labels: Labels) -> ExactStatistics:
        exact = streamed_logits(hidden, self.kernel, self.bias, labels.ids, k=0)
        return ExactStatistics(labels, exact.target_logits, exact.logsumexp, exact.target_ranks)

    def top_k(self, hidden: tf.Tensor, k: int) -> TopScores:
        no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
        exact = streamed_logits(hidden, self.kernel, self.bias, no_labels, k=k)
        return TopScores(exact.top_scores, exact.top_ids, exact.logsumexp)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "use_bias": self.use_bias,
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
            "bias_initializer": keras.initializers.serialize(self.bias_initializer),
        }

    def _flat_logits(self, hidden: tf.Tensor, dtype: str) -> tf.Tensor:
        logits = tf.matmul(tf.cast(hidden, dtype), tf.cast(self.kernel, dtype), transpose_b=True)
        return logits if self.bias is None else logits + tf.cast(self.bias, dtype)

    def _target_logits(self, hidden: tf.Tensor, labels: Labels) -> tf.Tensor:
        rows = tf.gather(self.kernel.value, labels.safe_ids)
        logits = tf.einsum("nd,nkd->nk", tf.cast(hidden, tf.float32), tf.cast(rows, tf.float32))
        if self.bias is not None:
            logits += tf.cast(tf.gather(self.bias.value, labels.safe_ids), tf.float32)
        return logits
