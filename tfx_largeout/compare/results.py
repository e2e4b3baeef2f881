# SPDX-License-Identifier: Apache-2.0
"""What a head's training gave."""

from __future__ import annotations

import dataclasses
from typing import Any


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One evaluation on the test examples.

    Attributes:
        step: Steps of training before it.
        epoch: The same in epochs.
        seconds: Seconds of training before it, as `TrainingClock` counts them.
        train_loss: Mean loss of the steps since the evaluation before; None for the untrained
            model. On the scale of the head's own loss: not comparable between heads.
        precision_at_1: P@1 in [0, 1], and so on.
        precision_at_3: P@3.
        precision_at_5: P@5.
        ps_precision_at_1: Propensity-scored P@1; None for peers, which are no heads.
        exact_loss: Softmax cross-entropy over all classes, in nats; None for peers.
    """

    step: int
    epoch: float
    seconds: float
    train_loss: float | None
    precision_at_1: float
    precision_at_3: float
    precision_at_5: float
    ps_precision_at_1: float | None = None
    exact_loss: float | None = None


@dataclasses.dataclass
class HeadResult:
    """How far a head came, or a peer (`peers.py`), which has no steps.

    Attributes:
        head: Its name.
        options: Its options.
        status: `"done"`, `"failed"` or `"interrupted"`.
        error: One sentence, where it failed.
        steps_per_epoch: Steps of an epoch.
        steps: Steps of training so far.
        seconds: Seconds of training so far, as `TrainingClock` counts them.
        wall_seconds: Seconds from start to end of its process, everything included.
        peak_bytes: The most memory that the process held.
        parameters: Number of weights of the model.
        data: What the head was trained on: numbers of examples, features, classes.
        implementation: Which implementation of the custom ops was in use.
        stage: What its process was last seen doing: `"starting"`, reading a file, or `"training"`.
        notes: Sentences about what a reader of the results must know.
        curve: The evaluations.
        with_neighbors: The last one together with nearest neighbors, if that was asked for.
        seed: The seed that it was trained with.
        batch_size: Examples of a step.
    """

    head: str
    options: dict[str, Any]
    status: str = "interrupted"
    error: str | None = None
    steps_per_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    peak_bytes: int = 0
    parameters: int = 0
    data: dict[str, int] = dataclasses.field(default_factory=dict)
    implementation: str = ""
    stage: str = "starting"
    notes: list[str] = dataclasses.field(default_factory=list)
    curve: list[CurvePoint] = dataclasses.field(default_factory=list)
    with_neighbors: CurvePoint | None = None
    seed: int = 0
    batch_size: int = 0

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HeadResult:
        """The inverse of `dataclasses.asdict`."""
        curve, last = fields["curve"], fields["with_neighbors"]
        points = {"curve": [CurvePoint(**point) for point in curve]}
        return cls(**{**fields, **points, "with_neighbors": last and CurvePoint(**last)})

    def take(self, event: str, fields: dict[str, Any]) -> float | None:
        """Takes in what a training tells; see `worker.py`. Returns the loss, if it has one."""
        if event == "stage":
            self.stage = fields["text"]
        elif event == "options":
            self.options = fields["options"]
        elif event == "ready":
            self.stage = "training"
            for name in fields.keys() & _OF_READY:
                setattr(self, name, fields[name])
        elif event == "note":
            self.notes.append(fields["text"])
        elif event == "point":
            point = CurvePoint(**fields["point"])
            self.curve.append(point)
            self.steps, self.seconds = point.step, point.seconds
            return point.train_loss
        elif event == "with_neighbors":
            self.with_neighbors = CurvePoint(**fields["point"])
        elif event in ("progress", "done"):
            self.steps, self.seconds = fields["step"], fields["seconds"]
            if event == "done":
                self.status = "done"
        elif event == "failed":
            self.status, self.error = "failed", fields["error"]
        return fields.get("loss")

    @property
    def epochs(self) -> float:
        """Epochs of training so far."""
        return self.steps / self.steps_per_epoch if self.steps_per_epoch else 0.0

    @property
    def milliseconds_per_step(self) -> float | None:
        """Mean time of a step, or None before there is one."""
        return 1000 * self.seconds / self.steps if self.seconds and self.steps else None

    @property
    def seconds_per_epoch(self) -> float | None:
        """Time of an epoch: of a whole one, even if less was run. None before there is a time."""
        return self.seconds / self.epochs if self.seconds and self.epochs else None


_OF_READY = {"steps_per_epoch", "parameters", "implementation", "data", "batch_size"}
