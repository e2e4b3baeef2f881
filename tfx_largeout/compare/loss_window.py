# SPDX-License-Identifier: Apache-2.0
"""LossWindow: the mean training loss of any stretch of steps."""

from __future__ import annotations


class LossWindow:
    """Gathers the loss from what `fit` reports: a running mean that starts again now and then.

    Keras has one set of metrics for training and for evaluation. Each epoch and each `evaluate`
    starts its running mean again, and neither is where we want a curve's next point.
    """

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Forgets all steps so far."""
        self._sum = 0.0
        self._steps = 0
        self._running_mean = 0.0
        self._running_steps = 0

    def begin_run(self) -> None:
        """Tells that the running mean starts again with the next step."""
        self._sum += self._running_mean * self._running_steps
        self._steps += self._running_steps
        self._running_mean, self._running_steps = 0.0, 0

    def add_step(self, running_mean: float, steps: int = 1) -> None:
        """Adds a step, or several.

        Args:
            running_mean: Mean loss of the steps of this run, the new ones included.
            steps: How many there are.
        """
        self._running_mean = running_mean
        self._running_steps += steps

    @property
    def mean(self) -> float:
        """Mean loss of the steps since `restart`; NaN without a step."""
        steps = self._steps + self._running_steps
        total = self._sum + self._running_mean * self._running_steps
        return total / steps if steps else float("nan")
