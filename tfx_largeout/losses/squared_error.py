# SPDX-License-Identifier: Apache-2.0
"""SquaredError: the distance to a sparse target vector."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.statistics import SphericalStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SquaredError(SphericalLoss):
    """The squared error over all C outputs against a target t that is 0 but at the labels.

    loss = sum_c (o_c - t_c)^2 = q - 2 sum_k t_k a_k + sum_k t_k^2

    Labels that are ids have the target value `target_value`. Real values of their own come as a
    `tf.SparseTensor` of floats `[B, C]`: the targets themselves. A row of these without entries is
    a target of zeros; an example whose labels are ids, and that has none, is ignored.

    With `class_weights` the loss of an example is multiplied by the mean weight of its labels.

    Args:
        target_value: t at the labels, finite. Default 1.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `target_value` is not finite.

    References:
        Vincent, de Brébisson, Bouthillier 2015, arXiv 1412.7091.
    """

    takes_values: ClassVar[bool] = True

    def __init__(self, target_value: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**{"name": "squared_error", **kwargs})
        self.target_value = number_argument("target_value", target_value)

    def from_statistics(self, statistics: SphericalStatistics) -> tf.Tensor:
        labels, targets = statistics.labels, statistics.target_logits
        if labels.values is None:
            values = tf.fill(tf.shape(targets), tf.constant(self.target_value, targets.dtype))
        else:
            values = tf.cast(labels.values, targets.dtype)
        terms = tf.where(labels.mask, values * (values - 2 * targets), 0)
        return statistics.sum_of_squares + tf.reduce_sum(terms, axis=-1)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "target_value": self.target_value}
