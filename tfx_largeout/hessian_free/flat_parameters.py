# SPDX-License-Identifier: Apache-2.0
"""The trainable weights of a model as one vector, and the penalty of their regularizers."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from tfx_largeout.ops.rows.variable_rows import bare_variable


class FlatParameters:
    """Reads and writes variables as one vector theta `[n]`, one variable after the other.

    The vector is float64 if all variables (Keras or TensorFlow) are, else float32. Each read or
    write copies all weights.
    """

    def __init__(self, variables: Any) -> None:
        self.variables: list[tf.Variable] = [bare_variable(variable) for variable in variables]
        if not self.variables:
            raise ValueError("the model must have at least one trainable weight; got none")
        every_float64 = all(variable.dtype == tf.float64 for variable in self.variables)
        self.dtype = tf.float64 if every_float64 else tf.float32
        self._sizes = [math.prod(variable.shape) for variable in self.variables]

    @property
    def size(self) -> int:
        """The number n of weights."""
        return sum(self._sizes)

    def read(self) -> tf.Tensor:
        """Returns theta, `[n]`."""
        return self.join([tf.convert_to_tensor(variable) for variable in self.variables])

    def assign(self, vector: tf.Tensor) -> None:
        """Sets the variables to theta, `[n]`."""
        for variable, part in zip(self.variables, self.split(vector), strict=True):
            variable.assign(part)

    def split(self, vector: tf.Tensor) -> list[tf.Tensor]:
        """Splits a vector `[n]` into parts with the shapes and dtypes of the variables."""
        parts = tf.split(vector, self._sizes)
        return [
            tf.cast(tf.reshape(part, variable.shape), variable.dtype)
            for part, variable in zip(parts, self.variables, strict=True)
        ]

    def join(self, tensors: Any) -> tf.Tensor:
        """Concatenates one tensor per variable (None is 0) to a vector `[n]`."""
        parts = [
            tf.zeros([size], self.dtype)
            if tensor is None
            else tf.cast(tf.reshape(tf.convert_to_tensor(tensor), [-1]), self.dtype)
            for tensor, size in zip(tensors, self._sizes, strict=True)
        ]
        return tf.concat(parts, axis=0)


class WeightPenalty:
    """P(theta), the sum of the regularizers' losses for the trainable weights.

    It does not depend on data: it is added once, to the sums of workers. Its curvature is its
    Hessian, by two reverse passes. Cost: a few passes over the weights.
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
