# SPDX-License-Identifier: Apache-2.0
"""Plain `fit` for a number of seconds or epochs, without the time of evaluations."""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf
from google.protobuf import struct_pb2

from tfx_largeout.callbacks.step_measurements import wire_field
from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.distribute import current

_SECONDS_BETWEEN_REPORTS = 0.5
_LAST_RATE = 0.02  # as a share of the first
_STATUS_SUCCESS = bytes([1 << 3, 1])  # field 1, an enum, is 1
_TAGS = {
    "train_loss": "loss/train",
    "exact_loss": "loss/exact",
    "precision_at_1": "precision/at_1",
    "precision_at_3": "precision/at_3",
    "precision_at_5": "precision/at_5",
    "ps_precision_at_1": "precision/propensity_scored_at_1",
    "epoch": "epoch",
}


class Supervisor(keras.callbacks.Callback):
    """Evaluates before the first step, at regular intervals and at the end; stops training.

    Args:
        settings: How long to train, and how often to evaluate.
        steps_per_epoch: Steps per epoch.
        evaluate: Evaluates the model on the test examples; returns the fields of `CurvePoint` from
            `precision_at_1` on.
        send: As in `worker.py`: called with the `point` of each evaluation and, twice per second,
            steps, seconds and the mean loss since the last evaluation.
        events: The TensorBoard run, or None; it is closed at the end.
        falling: Optimizers whose learning rates fall linearly to 2% at the end of the training.

    Raises:
        FloatingPointError: In training, when the loss is not finite.
    """

    def __init__(
        self,
        settings: TrainingSettings,
        steps_per_epoch: int,
        evaluate: Callable[[], dict[str, float]],
        send: Callable[..., None],
        events: EventFile | None = None,
        falling: Sequence[keras.optimizers.Optimizer] = (),
    ) -> None:
        super().__init__()
        self._falling = [(optimizer, float(optimizer.learning_rate)) for optimizer in falling]
        self.clock = TrainingClock()
        self._settings = settings
        self._steps_per_epoch = steps_per_epoch
        self._evaluate = evaluate
        self._send = send
        self._events = events
        self._next = 1  # number of the next evaluation
        self._batch = -1  # last batch of this epoch so far
        self._last_report = 0.0
        self._forget_loss()

    def _forget_loss(self) -> None:
        """Starts a new mean loss for the steps from here on.

        Keras has one set of metrics for training and evaluation, and resets it at each epoch and
        each `evaluate`; points of a curve are at other steps.
        """
        self._loss_sum = self._running_loss = 0.0
        self._loss_steps = self._running_steps = 0

    def fit(self, model: keras.Model, data: Mapping[str, Any]) -> TrainingClock:
        """Trains a compiled model on the arguments `data` of its `fit`."""
        # Training is stopped by this callback, before the number of epochs is reached.
        model.fit(**data, epochs=sys.maxsize, verbose=0, callbacks=[self])
        if self._events:
            self._events.close(self.clock.seconds)
        return self.clock

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Evaluates the untrained model: the start of all curves."""
        self._add_point(None, done=0.0)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stores the loss so far: `fit` has just reset its metrics."""
        self._loss_sum += self._running_loss * self._running_steps
        self._loss_steps += self._running_steps
        self._running_loss, self._running_steps = 0.0, 0
        self._batch = -1

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Counts the step; evaluates, reports or stops if due."""
        # With `steps_per_execution`, there are as many steps between two calls.
        steps, self._batch = batch - self._batch, batch
        self.clock.end_step(steps)
        self._running_loss = float((logs or {})["loss"])
        self._running_steps += steps
        loss = self._loss_sum + self._running_loss * self._running_steps
        loss /= self._loss_steps + self._running_steps
        steps, seconds = self.clock.steps, self._seconds()
        if not math.isfinite(loss):
            raise FloatingPointError(
                f"the loss is no longer finite at step {steps}: a lower learning rate may help"
            )
        done = self._settings.fraction_done(steps, seconds, self._steps_per_epoch)
        if done >= self._next / self._settings.evaluations:
            self._add_point(loss, done)
            self.model.reset_metrics()
            self._forget_loss()
            self.clock.resume()
        elif time.monotonic() - self._last_report > _SECONDS_BETWEEN_REPORTS:
            self._send(steps=steps, seconds=seconds, loss=loss)
            if self._events:
                self._events.scalars(steps, seconds, {_TAGS["train_loss"]: loss})
            self._last_report = time.monotonic()
        for optimizer, rate in self._falling:
            optimizer.learning_rate = rate * (1 - (1 - _LAST_RATE) * min(done, 1.0))
        if done >= 1:
            self.model.stop_training = True

    def _seconds(self) -> float:
        """The seconds of training; of worker 0 if they decide about the end for several."""
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
        point = CurvePoint(steps, epoch, seconds, train_loss, **self._evaluate())
        fields = dataclasses.asdict(point)
        self._send(point=fields, steps=steps, seconds=seconds, loss=train_loss)
        if self._events:
            values = {tag: fields[name] for name, tag in _TAGS.items() if fields[name] is not None}
            self._events.scalars(steps, seconds, values)
        evaluations = self._settings.evaluations
        while self._next < evaluations and done >= self._next / evaluations:
            self._next += 1


class TrainingClock:
    """Counts the wall-clock time of training steps, without pauses and without compilation.

    The time of a step runs from the end of the previous step, or from `resume`, to its end, so it
    includes waiting for data. The first step traces and compiles the graph: it counts with the time
    of the second step. So `seconds` is 0 until the second step has ended. If several steps are one
    execution, the same holds for executions.
    """

    def __init__(self, timer: Callable[[], float] = time.perf_counter) -> None:
        self.steps = 0
        self.seconds = 0.0
        self._timer = timer
        self._since = 0.0
        self._first_is_charged = False

    def end_step(self, steps: int = 1) -> None:
        """Records the end of a step, or of several in one execution."""
        now = self._timer()
        if self.steps:
            seconds = now - self._since
            self.seconds += seconds
            if not self._first_is_charged:
                self.seconds += seconds * self.steps / steps
                self._first_is_charged = True
        self.steps += steps
        self._since = now

    def resume(self) -> None:
        """Drops the time since the end of the last step."""
        self._since = self._timer()


class EventFile:
    """Writes scalars and hyper-parameters for TensorBoard.

    `tf.summary` stamps each value with the time of day. Here the stamp is the start plus the
    seconds of training, so that TensorBoard's RELATIVE axis shows training time, without evaluation
    and compilation.

    The HParams tab reads protocol buffers that belong to the package `tensorboard`, which need not
    be installed. Only two small messages are needed, written here in wire format: the message with
    the hyper-parameters is, byte for byte, a `google.protobuf.Struct`.
    """

    def __init__(self, folder: str, hyper_parameters: dict[str, Any]) -> None:
        os.makedirs(folder, exist_ok=True)
        self._start = time.time()
        path = os.path.join(folder, f"events.out.tfevents.{int(self._start)}.{os.getpid()}")
        self._writer = tf.io.TFRecordWriter(path)
        version = tf.compat.v1.Event(wall_time=self._start, file_version="brain.Event:2")
        self._writer.write(version.SerializeToString())
        hparams = struct_pb2.Struct()
        hparams.update(hyper_parameters)
        self._write_hparams("session_start_info", 3, hparams.SerializeToString(deterministic=True))

    def scalars(self, step: int, seconds: float, values: dict[str, float]) -> None:
        """Writes one value per tag, at a step and its seconds of training."""
        summary = tf.compat.v1.Summary()
        for tag, value in values.items():
            summary.value.add(tag=tag, simple_value=value)
        self._write(summary, step, seconds)

    def close(self, seconds: float) -> None:
        """Marks the run as a success, at a number of seconds of training."""
        self._write_hparams("session_end_info", 4, _STATUS_SUCCESS, seconds)
        self._writer.close()

    def _write_hparams(self, tag: str, field: int, message: bytes, seconds: float = 0.0) -> None:
        summary = tf.compat.v1.Summary()
        value = summary.value.add(tag=f"_hparams_/{tag}")
        value.tensor.CopyFrom(tf.make_tensor_proto(0.0))
        value.metadata.plugin_data.plugin_name = "hparams"
        value.metadata.plugin_data.content = wire_field(field, message)
        self._write(summary, 0, seconds)

    def _write(self, summary: tf.compat.v1.Summary, step: int, seconds: float) -> None:
        wall_time = self._start + seconds
        event = tf.compat.v1.Event(wall_time=wall_time, step=step, summary=summary)
        self._writer.write(event.SerializeToString())
        self._writer.flush()
