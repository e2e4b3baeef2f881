# SPDX-License-Identifier: Apache-2.0
"""Plain `fit` for so many seconds or epochs, with evaluations in between."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras

from tfx_largeout.compare.event_file import EventFile
from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.compare.supervisor import Supervisor
from tfx_largeout.compare.training_clock import TrainingClock

_TAGS = {
    "train_loss": "loss/train",
    "exact_loss": "loss/exact",
    "precision_at_1": "precision/at_1",
    "precision_at_3": "precision/at_3",
    "precision_at_5": "precision/at_5",
    "ps_precision_at_1": "precision/propensity_scored_at_1",
    "epoch": "epoch",
}


def timed_fit(
    model: keras.Model,
    data: Mapping[str, Any],
    settings: TrainingSettings,
    steps_per_epoch: int,
    evaluate: Callable[[], dict[str, float]],
    send: Callable[..., None],
    events: EventFile | None,
    falling: Sequence[keras.optimizers.Optimizer] = (),
) -> TrainingClock:
    """Trains a compiled model, and sends what happens.

    Args:
        model: The model.
        data: Arguments of `fit` that say what to train on.
        settings: How long to train, and how often to evaluate.
        steps_per_epoch: Steps of an epoch.
        evaluate: As `Supervisor`.
        send: `send(event, **fields)` for `progress` and `point`; see `worker.py`.
        events: The TensorBoard run, if there is one; it is closed.
        falling: Optimizers whose learning rates fall while the model trains.

    Returns:
        Steps and seconds of training.
    """

    def on_point(point: CurvePoint) -> None:
        fields = dataclasses.asdict(point)
        send("point", point=fields)
        where = {name: fields.pop(name) for name in ("step", "seconds")}
        values = {tag: fields[name] for name, tag in _TAGS.items() if fields[name] is not None}
        if events:
            events.scalars(values=values, **where)

    def on_progress(step: int, seconds: float, loss: float) -> None:
        send("progress", step=step, seconds=seconds, loss=loss)
        if events:
            events.scalars(step, seconds, {_TAGS["train_loss"]: loss})

    supervisor = Supervisor(settings, steps_per_epoch, evaluate, on_point, on_progress, falling)
    # The supervisor stops the training; the number of epochs is never reached.
    model.fit(**data, epochs=sys.maxsize, verbose=0, callbacks=[supervisor])
    if events:
        events.close(supervisor.clock.seconds)
    return supervisor.clock
