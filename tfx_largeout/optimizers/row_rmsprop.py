# SPDX-License-Identifier: Apache-2.0
"""RowRMSprop: Adam without momentum over all rows, at the cost of touched rows only."""

from __future__ import annotations

import math
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import full_name, number_argument
from tfx_largeout.ops.rows.row_rule import RowRule, compute_dtype
from tfx_largeout.ops.rows.short_weights import warn_of_short_weights
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.optimizers.row_optimizer import RowOptimizer

_MOST_GROWTH = 2.0**20  # of rho^-n; then the slots are rescaled


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowRMSprop(RowOptimizer):
    """Adam with beta_1 = 0, or RMSprop with a bias correction, on the rows that a step touches.

    In step t of the optimizer, for every row w with gradient g (0 if no slice has the row):

        v <- rho v + (1 - rho) g^2
        w <- w - eta sqrt(1 - rho^t) g / sqrt(v + epsilon)

    A row with gradient 0 does not change, and its v falls to rho v; this decay is applied when a
    step touches the row again. So this is **the dense method itself**, at the cost of the touched
    rows. Keras's RMSprop has no bias correction, and its Adam adds epsilon to the root. A variable
    without a gradient in a step has the gradient 0. As in Keras's Adam, t is `iterations`, which
    may be set; the decay of v depends on the number of steps taken.

    `RowAdam` is a different method, with or without momentum: v of a row changes only when the row
    is touched. So v is the mean over the updates of this row, and rare rows take steps as long as
    frequent rows. Here, as in the dense Adam, v decays in every step, so that a rare row takes
    steps up to 1 / sqrt(1 - rho) = 32 times as long.

    The slot holds a = v / rho^n, for which a step is Adagrad's: a <- a + (1 - rho) g^2 / rho^n.
    Here n counts the steps since a was last rescaled. When rho^-n exceeds 2^20, all of a is
    multiplied by rho^n: once in 13,858 steps for rho = 0.999.

    It is for models; with self-updating heads it raises a TypeError.

    Slots: a, float32 of the weight's shape (float64 for float64), and the step of the last
    rescaling, an int64 scalar. Also the number of steps taken, an int64 scalar.

    Cost: O(rows touched by the gradient), and a multiplication of each slot at a rescaling.

    Args:
        learning_rate: eta, as for `RowOptimizer`. Default 0.001.
        rho: 0 < rho < 1: Adam's beta_2. Default 0.999.
        epsilon: At least 1e-37. Default 1e-14: the square of Adam's.
        name, **kwargs: As `RowOptimizer`, except for `weight_decay` and `row_clip_norm`.

    Raises:
        ValueError: An argument is out of range.
        TypeError: It is passed to a head.

    References:
        Kingma, Ba 2015, Adam: A Method for Stochastic Optimization, section 5: RMSprop.
    """

    serves_heads = False
    method, hyperparameters = "adagrad", ("epsilon",)

    def __init__(
        self,
        learning_rate: Any = 0.001,
        rho: float = 0.999,
        epsilon: float = 1e-14,
        name: str = "row_rmsprop",
        **kwargs: Any,
    ) -> None:
        for option in ("weight_decay", "row_clip_norm"):
            if option in kwargs:
                raise ValueError(
                    f"RowRMSprop has no {option}, unlike RowAdam; got {kwargs[option]!r}"
                )
        super().__init__(learning_rate, name=name, **kwargs)
        self.rho = number_argument("rho", rho, above=0, below=1)
        self.epsilon = number_argument("epsilon", epsilon, at_least=1e-37)
        self._period = math.ceil(math.log(_MOST_GROWTH) / -math.log(self.rho))

    def build(self, variables: list[Any]) -> None:
        if self.built:
            return
        super().build(variables)
        self._steps_taken = self.add_variable((), "zeros", "int64", name="steps_taken")
        self._put_right_at = [
            self.add_variable((), "zeros", "int64", name=f"put_right_at_{place}")
            for place in range(len(variables))
        ]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        warn_of_short_weights(full_name(self), [variable], self)
        dtype = compute_dtype(bare_variable(variable))
        growth = self.rho ** -tf.cast(self._steps_since_put_right(variable), tf.float64)
        t = tf.cast(self.iterations + 1, tf.float64)
        correction = tf.sqrt((1 - self.rho**t) / (1 - self.rho))
        rate = tf.cast(learning_rate, dtype) * tf.cast(correction, dtype)
        scale = tf.cast(tf.sqrt((1 - self.rho) * growth), dtype)
        rule = self.in_this_step(RowRule("adagrad", (self.epsilon * growth,)), variable)
        self.take_step(_scaled(gradient, scale), variable, rule, rate)

    def after_step(self) -> None:
        """Counts the step."""
        self._steps_taken.assign_add(1)

    def _steps_since_put_right(self, variable: Any) -> tf.Tensor:
        """Returns n of this step; 0 if the slot is rescaled in it."""
        slot = self.slots_of(variable)[0]
        since = bare_variable(self._put_right_at[self._get_variable_index(variable)])
        step = bare_variable(self._steps_taken) + 1
        n = step - since

        def put_right() -> tf.Tensor:
            slot.assign(slot * tf.cast(self.rho ** tf.cast(n, tf.float64), slot.dtype))
            since.assign(step)
            return tf.zeros_like(n)

        return tf.cond(n > self._period, put_right, lambda: n)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        del config["weight_decay"], config["row_clip_norm"]
        return {**config, "rho": self.rho}


def _scaled(gradient: Any, scale: tf.Tensor) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        values = scale * tf.cast(gradient.values, scale.dtype)
        return tf.IndexedSlices(values, gradient.indices, gradient.dense_shape)
    return scale * tf.cast(gradient, scale.dtype)
