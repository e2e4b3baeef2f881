# SPDX-License-Identifier: Apache-2.0
"""Supervisor: the callback that evaluates, reports, and stops the training in time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.compare.training_clock import TrainingClock
from tfx_largeout.distribute import current

_SECONDS_BETWEEN_REPORTS = 0.5
_LAST_RATE = 0.02  # as a share of the first


class Supervisor(keras.callbacks.Callback):
    """Evaluates before the first step, at even distances and at the end, while the clock stands.

    Args:
        settings: How long to train, and how often to evaluate.
        steps_per_epoch: Steps of an epoch.
        evaluate: Evaluates the model on the test examples; returns the fields of `CurvePoint` from
            `precision_at_1` on.
        on_point: Called with the `CurvePoint` of each evaluation.
        on_progress: Called about twice a second with step, seconds of training and the mean loss
            since the last evaluation.
        falling: Optimizers whose learning rates fall in a line to 2% at the end of the training.

    Raises:
        FloatingPointError: In training, when the loss is not finite.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        steps_per_epoch: int,
        evaluate: Callable[[], dict[str, float]],
        on_point: Callable[[CurvePoint], None],
        on_progress: Callable[[int, float, float], None],
        falling: Sequence[keras.optimizers.Optimizer] = (),
    ) -> None:
        super().__init__()
        self._falling = [(optimizer, float(optimizer.learning_rate)) for optimizer in falling]
        self.clock = TrainingClock()
        self._settings = settings
        self._steps_per_epoch = steps_per_epoch
        self._evaluate = evaluate
        self._on_point = on_point
        self._on_progress = on_progress
        self._loss = LossWindow()
        self._next = 1  # number of the evaluation that comes next
        self._batch = -1  # of this epoch, the last one so far
        self._last_report = 0.0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Evaluates the untrained model: where all curves begin."""
        self._add_point(None, done=0.0)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Takes note that `fit` has just reset its metrics."""
        self._loss.begin_run()
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the step; evaluates, reports or stops where it is time to."""
        # Where the model has `steps_per_execution`, there are as many from one call to the next.
        steps, self._batch = batch - self._batch, batch
        self.clock.end_step(steps)
        self._loss.add_step(float((logs or {})["loss"]), steps)
        steps, seconds = self.clock.steps, self._seconds()
        if not math.isfinite(self._loss.mean):
            raise FloatingPointError(
                f"the loss is no longer finite at step {steps}: a lower learning rate may help"
            )
        done = self._settings.fraction_done(steps, seconds, self._steps_per_epoch)
        if done >= self._next / self._settings.evaluations:
            self._add_point(self._loss.mean, done)
            self.model.reset_metrics()
            self._loss.restart()
            self.clock.resume()
        elif time.monotonic() - self._last_report > _SECONDS_BETWEEN_REPORTS:
            self._on_progress(steps, seconds, self._loss.mean)
            self._last_report = time.monotonic()
        for optimizer, rate in self._falling:
            optimizer.learning_rate = rate * (1 - (1 - _LAST_RATE) * min(done, 1.0))
        if done >= 1:
            self.model.stop_training = True

    def _seconds(self) -> float:
        """The seconds of training; over workers, where they end it, those of the first one."""
        own = self.clock.seconds
        if self._settings.budget is None:
            return own
        return current().pick(lambda: own, lambda: self._seconds_of_first(own))()

    def _seconds_of_first(self, own: float) -> float:
        seconds = current().first(tf.constant(own, tf.float64), "seconds")
        self.clock.resume()
        return float(seconds)

    def _add_point(self, train_loss: float | None, done: float) -> None:
        steps, seconds = self.clock.steps, self.clock.seconds
        epoch = steps / self._steps_per_epoch
        self._on_point(CurvePoint(steps, epoch, seconds, train_loss, **self._evaluate()))
        evaluations = self._settings.evaluations
        while self._next < evaluations and done >= self._next / evaluations:
            self._next += 1


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
