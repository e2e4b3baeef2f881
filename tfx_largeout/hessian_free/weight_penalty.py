# SPDX-License-Identifier: Apache-2.0
"""WeightPenalty: the regularizers of a model's weights."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.hessian_free.flat_parameters import FlatParameters


class WeightPenalty:
    """P(theta), the sum of what the regularizers of the trainable weights add to the loss.

    It depends on no data: it is added once, to what workers have summed up. The curvature is its
    own Hessian, by two reverse passes.

    Cost: a few passes over the weights.

    Args:
        variables: The model's trainable Keras variables.
    """

    def __init__(self, variables: Any) -> None:
        self._terms = [(v.regularizer, v) for v in variables if v.regularizer is not None]
        self._parameters = FlatParameters(variables)
        vector = tf.TensorSpec([self._parameters.size], self._parameters.dtype)
        self._value = tf.function(self._sum)
        self._gradient = tf.function(self._traced_gradient)
        self._product = tf.function(self._traced_product, input_signature=[vector])

    def __len__(self) -> int:
        return len(self._terms)

    def value(self) -> float:
        """Returns P(theta)."""
        return float(self._value()) if self._terms else 0.0

    def add_gradient(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns a vector `[n]` plus the gradient of P."""
        return vector + self._gradient() if self._terms else vector

    def add_product(self, to: tf.Tensor, vector: tf.Tensor) -> tf.Tensor:
        """Returns a vector `[n]` plus the Hessian of P times `vector`."""
        return to + self._product(vector) if self._terms else to

    def _sum(self) -> tf.Tensor:
        return tf.add_n([tf.cast(penalty(v), tf.float64) for penalty, v in self._terms])

    def _traced_gradient(self) -> tf.Tensor:
        with tf.GradientTape() as tape:
            value = self._sum()
        return self._parameters.join(tape.gradient(value, self._parameters.variables))

    def _traced_product(self, vector: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            slope = tf.reduce_sum(self._traced_gradient() * vector)
        return self._parameters.join(tape.gradient(slope, self._parameters.variables))
