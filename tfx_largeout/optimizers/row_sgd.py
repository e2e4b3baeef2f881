# SPDX-License-Identifier: Apache-2.0
"""RowSGD: stochastic gradient descent with momentum, on the touched rows."""

from __future__ import annotations

from typing import Any

import keras

from tfx_largeout.arguments import number_argument
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.optimizers.row_optimizer import RowOptimizer


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowSGD(RowOptimizer):
    """SGD on the rows that a step touches.

    With momentum mu, for a touched row w with gradient g:

        m <- mu m - eta g,  w <- w + m  (Nesterov: w <- w + mu m - eta g)

    and w <- w - eta g without. The momentum of a row waits until it is touched again.

    Args:
        learning_rate: eta. Default 0.01.
        momentum: mu, 0 <= mu < 1. Default 0: no slot.
        nesterov: Whether to look ahead, as Nesterov does. Default False.
        weight_decay, row_clip_norm, name, **kwargs: As `RowOptimizer`.

    Raises:
        ValueError: An argument is out of range.
    """

    def __init__(
        self,
        learning_rate: Any = 0.01,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        row_clip_norm: float | None = None,
        name: str = "row_sgd",
        **kwargs: Any,
    ) -> None:
        super().__init__(learning_rate, weight_decay, row_clip_norm, name, **kwargs)
        self.momentum = number_argument("momentum", momentum, at_least=0, below=1)
        self.nesterov = bool(nesterov)

    @property
    def rule(self) -> RowRule:
        numbers = (self.momentum, float(self.nesterov))
        return RowRule("sgd", numbers, self.row_weight_decay, self.row_clip_norm)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "momentum": self.momentum, "nesterov": self.nesterov}
