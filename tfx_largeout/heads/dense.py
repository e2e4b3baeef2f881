# SPDX-License-Identifier: Apache-2.0
"""DenseHead: the exact full softmax, the baseline of every comparison."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.distribute.data_parallel import with_parts
from tfx_largeout.heads.cosine_logits import CosineLogits
from tfx_largeout.heads.kernel_head import dense_logits
from tfx_largeout.keras_internals import calling_model
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize
from tfx_largeout.ops.exact.logit_blocks import without_logits_at
from tfx_largeout.ops.rows.unit_rows import at_norm_1, unit_rows
from tfx_largeout.statistics import (
    MarginStatistics,
    MeanLogitStatistics,
    SoftmaxStatistics,
    SphericalStatistics,
    without_gradient,
)


class UnitRows(keras.constraints.Constraint):
    """Rows of norm 1: see `at_norm_1`."""

    def __call__(self, w: Any) -> tf.Tensor:
        w = tf.convert_to_tensor(w)
        return at_norm_1(w, w.dtype)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DenseHead(CosineLogits):
    """The full softmax layer o = W h + b, trained with all classes by the model's optimizer.

    Both weights are ordinary trainable Keras weights. With a `cosine_scale` W has a constraint that
    brings its rows back to norm 1 after each step of the optimizer, O(C D).

    Cost: a training step O(B C D) time and O(B C) memory. Evaluation O(B C D) time, memory
    independent of C beyond the weights.

    Args:
        num_classes: The number of classes C, at least 2.
        use_bias: Whether there is a bias b `[C]`. Default None: without `cosine_scale`.
        kernel_initializer: The initializer of W `[C, D]` (its fan_in is C), or an array. Values
            that are random and independent are drawn in blocks of rows. Default `"glorot_uniform"`.
        bias_initializer: The initializer of b. Default `"zeros"`.
        cosine_scale: s, above 0: the logits are s cos(theta_c), theta_c being the angle between h
            and row c of W, which is kept at norm 1. There is no bias. Losses may then have margins.
            Default None: the logits are W h + b. See `CosineLogits`.
        learn_scale: Whether the model's optimizer trains log s, starting from `cosine_scale`.
            Default False.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Raises:
        TypeError, ValueError: As `Head` and `CosineLogits`. ValueError: In a call, with
            `cosine_scale`: the model's optimizer has `use_ema`.
    """

    gives: ClassVar[tuple[type, ...]] = (
        SoftmaxStatistics,
        MeanLogitStatistics,
        MarginStatistics,
        SphericalStatistics,
    )
    spreads_classes: ClassVar[bool] = True

    def call(
        self, inputs: tf.Tensor, training: bool | None = None, exclude: Any = None
    ) -> tf.Tensor:
        optimizer = getattr(calling_model(self), "optimizer", None)
        if self.cosine_scale is not None and self.trainable and optimizer is not None:
            for part in with_parts(optimizer):
                if getattr(part, "use_ema", False):
                    raise ValueError(
                        "use_ema of the model's optimizer must be False for a head with a "
                        "cosine_scale, as an average of rows of norm 1 has another norm; got the "
                        f"optimizer {part.name!r} with use_ema=True"
                    )
        return super().call(inputs, training, exclude)

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind not in DenseHead.gives:
            return super().statistics(kind, hidden, labels, training)
        # Each weight is read once. A second read is unsafe: TensorFlow's graph optimizer has run
        # the optimizer's step before it.
        kernel = self.differentiable_kernel
        bias = None if self.bias is None else tf.convert_to_tensor(self.bias)
        logits = dense_logits(hidden, kernel, bias, self.statistics_dtype)
        # Gathering the target rows of W is faster than gathering from the logits, whose gradient
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
        elif kind is MarginStatistics:
            self.require_cosines(kind)
            rows = self.rows.of(labels.ids)
            places = tf.where(rows >= 0)
            at = tf.stack([places[:, 0], tf.gather_nd(rows, places)], axis=1)
            rest = tf.reduce_logsumexp(without_logits_at(logits, at), axis=-1)
            rest = self.workers.log_sum_exp(rest, f"{self.name}/rest")
            statistics = MarginStatistics(labels, targets, rest, self.scale)
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

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`: logits and their gradient, then that gradient and dL/dW in float32.

        `gradients` is the gradient of the target rows, as large as W, to which dL/dW is added in
        place. A W in 16 bits has a float32 copy; with `cosine_scale` there are three copies.
        """
        memory = super().memory_of_step(width, step, workers)
        kernel = self.weights_of(width, workers)[0]
        rows, wide = kernel.shape[0], max(4 * math.prod(kernel.shape), kernel.num_bytes)
        copies = (wide > kernel.num_bytes) + 3 * (self.cosine_scale is not None)
        logits = tf.as_dtype(self.statistics_dtype).size * step.examples * rows
        return memory._replace(activations=copies * wide + logits + max(logits, wide))

    @property
    def differentiable_kernel(self) -> tf.Tensor:
        """As `KernelHead`: with `cosine_scale`, rows are divided by their norms (which are 1)."""
        kernel = tf.convert_to_tensor(self.kernel)
        return kernel if self.cosine_scale is None else unit_rows(kernel)

    def add_kernel(self) -> None:
        super().add_kernel()
        if self.cosine_scale is not None:
            self.kernel.constraint = UnitRows()

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
