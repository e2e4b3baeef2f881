# SPDX-License-Identifier: Apache-2.0
"""RowAdam: Adam, on the touched rows, with the age of a row in its bias correction."""

from __future__ import annotations

from typing import Any

import keras

from tfx_largeout.arguments import number_argument
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.optimizers.row_optimizer import RowOptimizer


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowAdam(RowOptimizer):
    """Adam on the rows that a step touches.

    For a touched row w with gradient g, and t the number of its own updates, this one included:

        m <- beta_1 m + (1 - beta_1) g,  v <- beta_2 v + (1 - beta_2) g^2
        w <- w - eta sqrt(1 - beta_2^t) / (1 - beta_1^t) m / (sqrt(v) + epsilon)

    The bias correction makes up for m and v starting from 0, so it has to go by how often *this*
    row was updated. With the count of all steps, as lazy variants of Adam often have it, the first
    step of a row that shows up late would be (1 - beta_1) / sqrt(1 - beta_2) = 3.2 times as long as
    it should be. Where all rows are touched in each step, this is Keras's Adam.

    Slots: m and v, float32 of the weight's shape, and t, uint32 a row, which stays at 2^31 - 1.

    Args:
        learning_rate: eta. Default 0.001.
        beta_1: 0 <= beta_1 < 1. Default 0.9.
        beta_2: 0 <= beta_2 < 1. Default 0.999.
        epsilon: Above 0. Default 1e-7.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`.

    Raises:
        ValueError: An argument is out of range.

    References:
        Kingma, Ba 2015, Adam: A Method for Stochastic Optimization, end of section 2.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.999,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_adam",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.beta_1 = number_argument("beta_1", beta_1, at_least=0, below=1)
        self.beta_2 = number_argument("beta_2", beta_2, at_least=0, below=1)
        self.epsilon = number_argument("epsilon", epsilon, above=0)

    @property
    def rule(self) -> RowRule:
        numbers = (self.beta_1, self.beta_2, self.epsilon)
        return RowRule("adam", numbers, self.row_weight_decay, self.row_clip_norm)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "beta_1": self.beta_1,
            "beta_2": self.beta_2,
            "epsilon": self.epsilon,
        }
