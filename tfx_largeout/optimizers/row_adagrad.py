# SPDX-License-Identifier: Apache-2.0
"""RowAdagrad: Adagrad, on the touched rows."""

from __future__ import annotations

from typing import Any

import keras

from tfx_largeout.arguments import number_argument
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.optimizers.row_optimizer import RowOptimizer


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowAdagrad(RowOptimizer):
    """Adagrad on the rows that a step touches.

        a <- a + g^2,  w <- w - eta g / sqrt(a + epsilon)

    A row with gradient 0 does not move under Adagrad: this is the same method as the dense one,
    just cheaper (but for `weight_decay`).

    Args:
        learning_rate: eta. Default 0.01.
        initial_accumulator_value: From which a starts, at least 0. Default 0.1.
        epsilon: Above 0. Default 1e-7.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`.

    Raises:
        ValueError: An argument is out of range.

    References:
        Duchi, Hazan, Singer 2011, Adaptive Subgradient Methods.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        initial_accumulator_value: float = 0.1,
        epsilon: float = 1e-7,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_adagrad",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.initial_accumulator_value = number_argument(
            "initial_accumulator_value", initial_accumulator_value, at_least=0
        )
        self.epsilon = number_argument("epsilon", epsilon, above=0)

    @property
    def rule(self) -> RowRule:
        return RowRule("adagrad", (self.epsilon,), self.row_weight_decay, self.row_clip_norm)

    def initial_slot(self, name: str) -> float:
        return self.initial_accumulator_value

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "initial_accumulator_value": self.initial_accumulator_value,
            "epsilon": self.epsilon,
        }
