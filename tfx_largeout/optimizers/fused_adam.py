# SPDX-License-Identifier: Apache-2.0
"""FusedAdam: the step of Keras's Adam in one pass over each variable."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import full_name
from tfx_largeout.keras_internals import OptimizerHooks, variable_behind
from tfx_largeout.ops.rows.short_weights import warn_of_short_weights

_DTYPES = (tf.float32, tf.float64)  # the powers of beta_2 need more than 16 bits


@keras.saving.register_keras_serializable(package="tfx_largeout")
class FusedAdam(OptimizerHooks, keras.optimizers.Adam):
    """`keras.optimizers.Adam`, computed by TensorFlow's fused op.

        m <- m + (1 - beta_1) (g - m),  v <- v + (1 - beta_2) (g^2 - v)
        w <- w - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    Keras's Adam makes about ten passes over a variable, with as many tensors of its size. With a
    head whose step does not depend on the number of classes, this may be most of the time of a
    step. The steps equal Keras's, up to rounding; a `tf.IndexedSlices` is made dense first, where
    slices with the same id are added up (Keras squares each, so that its v differs). Variables in
    16 bits, and `amsgrad`, are left to Keras. (Keras's Adam does not change a bfloat16 variable:
    beta_2 = 0.999 rounds to 1.)

    `RowAdam` is faster still if gradients touch few rows, but is a different method.

    Cost: O(weights), read once and written once; for slices, a tensor of the variable's size.

    Args: As `keras.optimizers.Adam`.

    References:
        Kingma, Ba 2015, Adam: A Method for Stochastic Optimization, algorithm 1.
    """

    def before_clipping(self, gradients: list[Any]) -> list[Any]:
        """Clips the sum of a row's slices, not each slice."""
        return [_dense(gradient) for gradient in gradients]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        """Takes the step of a variable."""
        gradient, dtype = _dense(gradient), tf.as_dtype(variable.dtype)
        warn_of_short_weights(full_name(self), [variable], self)
        if self.amsgrad or dtype not in _DTYPES:
            super().update_step(gradient, variable, learning_rate)
            return
        place = self._get_variable_index(variable)
        # Not by tf.cast, which converts them to float32 first.
        beta_1, beta_2, epsilon = (
            tf.constant(x, dtype) for x in (self.beta_1, self.beta_2, self.epsilon)
        )
        step = tf.cast(self.iterations + 1, dtype)
        # Under a strategy, a handle belongs to this replica's copy.
        tf.raw_ops.ResourceApplyAdam(
            var=variable_behind(variable).handle,
            m=variable_behind(self._momentums[place]).handle,
            v=variable_behind(self._velocities[place]).handle,
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=epsilon,
            grad=tf.cast(gradient, dtype),
        )


def _dense(gradient: Any) -> Any:
    """Adds up the slices of a row; returns any other gradient, or None, unchanged."""
    return tf.convert_to_tensor(gradient) if isinstance(gradient, tf.IndexedSlices) else gradient
