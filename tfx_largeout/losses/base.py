# SPDX-License-Identifier: Apache-2.0
"""The loss: a function of a head's statistics."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.base import HeadOutput, head_output
from tfx_largeout.labels import Labels, require_labels
from tfx_largeout.losses.class_weight import refuse_class_weight
from tfx_largeout.statistics import ExactStatistics


class HeadLoss(keras.losses.Loss):
    """A loss that asks the head behind `y_pred` for statistics, instead of reading the logits.

    To add a loss, name the family of statistics it is a function of, and write the function:

    ```python
    @keras.saving.register_keras_serializable(package="my_package")
    class SoftmaxCrossEntropy(HeadLoss):
        statistics_type = SoftmaxStatistics

        def from_statistics(self, statistics):
            return statistics.log_partition - statistics.labels.mean(statistics.target_logits)
    ```

    In a training step (`training=True` in the call of the model, as `fit` does) the loss is
    `from_statistics`. Anywhere else (`evaluate`, a plain call) it is `exact`; then nothing is
    updated, and there is no gradient. A loss whose statistics are estimates says in `exact` what
    quantity over all classes they estimate. Sample weights, masks and reductions are Keras's own.
    A loss carries configuration only and is bound to no head, so that it is saved with the model.

    Args:
        reduction: As `keras.losses.Loss`. Default `"sum_over_batch_size"`.
        name: As `keras.losses.Loss`.
        dtype: As `keras.losses.Loss`; of the reduction. Statistics are float32.
    """

    statistics_type: ClassVar[type]
    needs_labels: ClassVar[bool] = True
    takes_values: ClassVar[bool] = False  # of the targets, beside their ids

    def from_statistics(self, statistics: Any) -> tf.Tensor:
        """Returns the training loss of each example, `[N]`."""
        raise NotImplementedError

    def exact(self, statistics: ExactStatistics) -> tf.Tensor:
        """Returns the loss of each example over all classes, `[N]`.

        By default `from_statistics` of the exact statistics, which serves each loss that is a
        function of `SoftmaxStatistics`.
        """
        return self.from_statistics(statistics)

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> tf.Tensor:
        """Returns the reduced loss.

        Args:
            y_true: Labels, in any form of `normalize_labels`.
            y_pred: What a head returned.
            sample_weight: `[B]`, or for h `[B, T, D]` also `[B, T]`. Default 1.

        Raises:
            TypeError: `y_pred` comes from no head, or from a head of another family.
            ValueError: `fit` was given `class_weight` with several labels an example, which Keras
                reads wrongly (noticed when a step is traced).
        """
        output = self._output(y_pred)
        with tf.name_scope(self.name):
            values = self._values(output, y_true, _needed(output, y_pred, sample_weight))
            values = output.unflatten(values)
        if sample_weight is not None:
            refuse_class_weight(y_true, output.batch_rank)
            sample_weight = output.unflatten(example_weights(output.hidden, sample_weight, None))
        mask = getattr(y_pred, "_keras_mask", None)
        if mask is not None:
            values._keras_mask = mask
        # The base class weighs, masks and reduces; `call` hands it the values as they are.
        return super().__call__(values, values, sample_weight)

    def call(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return y_pred

    def _output(self, y_pred: Any) -> HeadOutput:
        output = head_output(y_pred)
        if output is None:
            raise TypeError(
                f"{type(self).__name__} needs the output of a head (such as DenseHead) itself as "
                f"y_pred; got {_describe(y_pred)}, which carries none. Make the head the model's "
                "last layer, with nothing (no activation, no reshape, no cast) behind it, and call "
                "model and loss in the same tf.function."
            )
        if output.training and not output.head.gives(self.statistics_type):
            raise TypeError(
                f"{type(self).__name__} is a function of {self.statistics_type.__name__}; got "
                f"{type(output.head).__name__}, which gives "
                f"{output.head.statistics_type.__name__}. Use a loss and a head of one family."
            )
        return output

    def _values(self, output: HeadOutput, y_true: Any, needed: tf.Tensor | None) -> tf.Tensor:
        if not output.training:
            return self._exact_values(output, y_true, needed)
        return self._training_values(output, self._checked(output.labels(y_true), needed))

    def _training_values(self, output: HeadOutput, labels: Labels) -> tf.Tensor:
        return self.from_statistics(output.statistics(labels))

    def _exact_values(self, output: HeadOutput, y_true: Any, needed: tf.Tensor | None) -> tf.Tensor:
        exact = output.exact(y_true)
        return self.exact(exact._replace(labels=self._checked(exact.labels, needed)))

    def _checked(self, labels: Labels, needed: tf.Tensor | None) -> Labels:
        if labels.values is not None and not self.takes_values:
            raise TypeError(
                f"{type(self).__name__} must get integer class ids as labels; got sparse targets "
                "with values of their own, which only losses such as SquaredError take"
            )
        return require_labels(labels, needed) if self.needs_labels else labels


def _needed(output: HeadOutput, y_pred: Any, sample_weight: Any) -> tf.Tensor | None:
    """Returns `[N]` bool, False where mask or weight say that an example counts for nothing."""
    mask = getattr(y_pred, "_keras_mask", None)
    if mask is None and sample_weight is None:
        return None
    return example_weights(output.hidden, sample_weight, mask) != 0


def _describe(y_pred: Any) -> str:
    if not isinstance(y_pred, tf.Tensor):
        return repr(type(y_pred).__name__)
    return f"a tensor of shape {y_pred.shape} and dtype {y_pred.dtype.name}"
