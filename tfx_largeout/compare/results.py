# SPDX-License-Identifier: Apache-2.0
"""Results of each training, and one row of figures per head for table, page, CSV and JSON."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One evaluation on the test examples."""

    step: int  # training steps before it
    epoch: float
    seconds: float  # training time before it, by `TrainingClock`
    # Mean over the steps since the last evaluation; None for the untrained model. On the scale of
    # the head's loss: not comparable between heads.
    train_loss: float | None
    precision_at_1: float  # in [0, 1], and so on
    precision_at_3: float
    precision_at_5: float
    ps_precision_at_1: float | None = None  # propensity-scored; None for peers
    exact_loss: float | None = None  # over all classes, in nats; None for peers


@dataclasses.dataclass
class HeadResult:
    """The result of a head, or of a peer (`peers.py`), which has no steps."""

    head: str
    options: dict[str, Any]
    status: str = "interrupted"  # or "running", "done", "failed"
    error: str | None = None  # one sentence if it failed
    steps_per_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0  # training time so far, by `TrainingClock`
    wall_seconds: float = 0.0  # of its process, everything included
    peak_bytes: int = 0  # peak memory of the process
    parameters: int = 0  # of the model
    data: dict[str, int] = dataclasses.field(default_factory=dict)  # examples, features, classes
    implementation: str = ""  # of the custom ops
    stage: str = "starting"  # last state of its process: reading a file, or "training"
    notes: list[str] = dataclasses.field(default_factory=list)  # for a reader of the results
    curve: list[CurvePoint] = dataclasses.field(default_factory=list)
    with_neighbors: CurvePoint | None = None  # the last evaluation together with nearest neighbors
    seed: int = 0
    batch_size: int = 0

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> HeadResult:
        """The inverse of `dataclasses.asdict`."""
        curve, last = fields["curve"], fields["with_neighbors"]
        points = {"curve": [CurvePoint(**point) for point in curve]}
        return cls(**{**fields, **points, "with_neighbors": last and CurvePoint(**last)})

    def take(self, told: dict[str, Any]) -> float | None:
        """Updates the result by an event (see `worker.py`); returns its loss, if any."""
        for name, value in told.items():
            if name == "note":
                self.notes.append(value)
            elif name == "point":
                self.curve.append(CurvePoint(**value))
            elif name == "with_neighbors":
                self.with_neighbors = CurvePoint(**value)
            elif name != "loss":
                setattr(self, name, value)
        return told.get("loss")

    @property
    def epochs(self) -> float:
        """Epochs of training so far."""
        return self.steps / self.steps_per_epoch if self.steps_per_epoch else 0.0

    @property
    def milliseconds_per_step(self) -> float | None:
        """Mean time of a step; None before the first."""
        return 1000 * self.seconds / self.steps if self.seconds and self.steps else None

    @property
    def seconds_per_epoch(self) -> float | None:
        """Time of a whole epoch, extrapolated if less was run. None if unknown."""
        return self.seconds / self.epochs if self.seconds and self.epochs else None


# The reference of speed-ups: the full softmax, as named by the command or `compare_heads`.
BASELINES = ("full_softmax", "dense")


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """A head's figures: the mean over seeds. None if there is no such figure."""

    head: str
    status: str  # the worst of all seeds
    error: str | None
    seeds: int = 1  # the number of seeds
    steps: int = 0
    epochs: float = 0.0
    seconds: float = 0.0  # of training
    wall_seconds: float = 0.0  # includes reading data, compilation and evaluation
    ms_per_step: float | None = None
    seconds_per_epoch: float | None = None
    epoch_extrapolated: bool = False  # less than an epoch was run
    speed_up: float | None = None  # seconds per epoch of the full softmax, divided by this head's
    precision_at_1: float | None = None  # at the end, in [0, 1], and so on
    precision_at_3: float | None = None
    precision_at_5: float | None = None
    ps_precision_at_1: float | None = None  # propensity-scored
    exact_loss: float | None = None  # in nats
    precision_at_1_spread: float | None = None  # standard deviation over the seeds; and so on
    precision_at_3_spread: float | None = None
    precision_at_5_spread: float | None = None
    ps_precision_at_1_spread: float | None = None
    exact_loss_spread: float | None = None
    seconds_to_50: float | None = None  # training time to 50% of the best final P@1 of all rows
    seconds_to_90: float | None = None
    peak_memory_mib: float | None = None  # the maximum over seeds


_QUALITY = ("precision_at_1", "precision_at_3", "precision_at_5", "ps_precision_at_1", "exact_loss")


def by_head(results: Iterable[HeadResult]) -> dict[str, list[HeadResult]]:
    """Returns the results of each head, one per seed; heads in the order of their first result."""
    groups: dict[str, list[HeadResult]] = {}
    for result in results:
        groups.setdefault(result.head, []).append(result)
    return groups


def summarize(results: Sequence[HeadResult]) -> list[SummaryRow]:
    """Returns a row for each head.

    The speed-up is None if the full softmax was not trained to its end.
    """
    groups = by_head([part for result in results for part in _parts(result)])
    rows = {head: _row(head, runs) for head, runs in groups.items()}
    done = [rows[head] for head in BASELINES if head in rows and rows[head].status == "done"]
    epoch = done[0].seconds_per_epoch if done else None
    best = max((row.precision_at_1 or 0.0 for row in rows.values()), default=0.0)
    return [
        dataclasses.replace(
            row,
            speed_up=epoch and row.seconds_per_epoch and epoch / row.seconds_per_epoch,
            seconds_to_50=_seconds_to(0.5 * best, groups[head]),
            seconds_to_90=_seconds_to(0.9 * best, groups[head]),
        )
        for head, row in rows.items()
    ]


def _parts(result: HeadResult) -> list[HeadResult]:
    """Returns a result, and its result with nearest neighbors, which has no steps."""
    point = result.with_neighbors
    if point is None:
        return [result]
    together = dataclasses.replace(
        result,
        head=f"{result.head}+neighbors",
        steps_per_epoch=0,
        steps=0,
        seconds=point.seconds,
        curve=[point],
        with_neighbors=None,
    )
    return [result, together]


def _row(head: str, runs: Sequence[HeadResult]) -> SummaryRow:
    statuses = [run.status for run in runs]
    status = next((s for s in ("failed", "interrupted") if s in statuses), "done")
    counted = _counted(runs)
    last = [run.curve[-1] for run in counted if run.curve and (run.steps or run.status == "done")]
    figures: dict[str, float | None] = {}
    for name in _QUALITY:
        values = [getattr(point, name) for point in last]
        figures[name] = _mean(values)
        figures[f"{name}_spread"] = _spread(values)
    steps, epochs = _mean(run.steps for run in counted), _mean(run.epochs for run in counted)
    return SummaryRow(
        head=head,
        status=status,
        error=next((run.error for run in runs if run.error), None),
        seeds=len(runs),
        steps=round(steps or 0),
        epochs=epochs or 0.0,
        seconds=_mean(run.seconds for run in counted) or 0.0,
        wall_seconds=_mean(run.wall_seconds for run in counted) or 0.0,
        ms_per_step=_mean(run.milliseconds_per_step for run in counted),
        seconds_per_epoch=_mean(run.seconds_per_epoch for run in counted),
        epoch_extrapolated=bool(steps) and any(run.epochs < 1 for run in counted),
        peak_memory_mib=max(run.peak_bytes for run in runs) / 2**20 or None,
        **figures,
    )


def _counted(runs: Sequence[HeadResult]) -> Sequence[HeadResult]:
    """Returns the finished runs, or all if none finished."""
    return [run for run in runs if run.status == "done"] or runs


def _mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean, or None if a value is missing."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) / len(known) if known and len(known) == len(every) else None


def _spread(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.stdev(known) if len(known) == len(values) > 1 else None


def _seconds_to(target: float, runs: Sequence[HeadResult]) -> float | None:
    if target == 0:  # any curve reaches it at once
        return None
    reached = [time_to_reach(run.curve, target) for run in _counted(runs)]
    return _mean(moment and moment.seconds for moment in reached)


class Reached(NamedTuple):
    """The point at which a curve first reached its target."""

    epochs: float
    seconds: float


def time_to_reach(curve: Sequence[CurvePoint], target: float) -> Reached | None:
    """Returns when P@1 first reached `target`, with linear interpolation between evaluations.

    The curve begins with the untrained model, or with the only evaluation. None if no evaluation
    reached the target.
    """
    for before, after in zip([None, *curve], curve, strict=False):
        if after.precision_at_1 < target:
            continue
        if before is None:
            return Reached(after.epoch, after.seconds)
        share = (target - before.precision_at_1) / (after.precision_at_1 - before.precision_at_1)
        return Reached(
            before.epoch + share * (after.epoch - before.epoch),
            before.seconds + share * (after.seconds - before.seconds),
        )
    return None
