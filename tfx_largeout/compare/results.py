# SPDX-License-Identifier: Apache-2.0
"""What each training gave, and one row of figures a head for table, page, CSV and JSON."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple


@dataclasses.dataclass(frozen=True)
class CurvePoint:
    """One evaluation on the test examples."""

    step: int  # of training before it
    epoch: float
    seconds: float  # of training before it, as `TrainingClock` counts them
    # Mean of the steps since the evaluation before; None for the untrained model. On the scale of
    # the head's own loss: not comparable between heads.
    train_loss: float | None
    precision_at_1: float  # in [0, 1], and so on
    precision_at_3: float
    precision_at_5: float
    ps_precision_at_1: float | None = None  # propensity-scored; None for peers, which are no heads
    exact_loss: float | None = None  # over all classes, in nats; None for peers


@dataclasses.dataclass
class HeadResult:
    """How far a head came, or a peer (`peers.py`), which has no steps."""

    head: str
    options: dict[str, Any]
    status: str = "interrupted"  # or "running", "done", "failed"
    error: str | None = None  # one sentence, where it failed
    steps_per_epoch: int = 0
    steps: int = 0
    seconds: float = 0.0  # of training so far, as `TrainingClock` counts them
    wall_seconds: float = 0.0  # from start to end of its process, everything included
    peak_bytes: int = 0  # the most memory that the process held
    parameters: int = 0  # of the model
    data: dict[str, int] = dataclasses.field(default_factory=dict)  # examples, features, classes
    implementation: str = ""  # of the custom ops
    stage: str = "starting"  # what its process was last seen doing: reading a file, or "training"
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
        """Takes in what a training tells; see `worker.py`. Returns the loss, if it has one."""
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
        """Mean time of a step, or None before there is one."""
        return 1000 * self.seconds / self.steps if self.seconds and self.steps else None

    @property
    def seconds_per_epoch(self) -> float | None:
        """Time of an epoch: of a whole one, even if less was run. None before there is a time."""
        return self.seconds / self.epochs if self.seconds and self.epochs else None


# Whose speed others are measured by: the full softmax, as the command or `compare_heads` has it.
BASELINES = ("full_softmax", "dense")


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """A head's figures: of several seeds the mean. None where there is no such figure."""

    head: str
    status: str  # of several seeds the worst
    error: str | None
    seeds: int = 1  # with how many it was trained
    steps: int = 0
    epochs: float = 0.0
    seconds: float = 0.0  # of training
    wall_seconds: float = 0.0  # reading data, compilation and evaluation included
    ms_per_step: float | None = None
    seconds_per_epoch: float | None = None
    epoch_extrapolated: bool = False  # less than an epoch was run
    speed_up: float | None = None  # seconds an epoch of the full softmax, divided by this head's
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
    seconds_to_50: float | None = None  # of training, to 50% of the best final P@1 of all rows
    seconds_to_90: float | None = None
    peak_memory_mib: float | None = None  # of several seeds the most


_QUALITY = ("precision_at_1", "precision_at_3", "precision_at_5", "ps_precision_at_1", "exact_loss")


def by_head(results: Iterable[HeadResult]) -> dict[str, list[HeadResult]]:
    """Returns the results of each head, one a seed, in the order in which heads came first."""
    groups: dict[str, list[HeadResult]] = {}
    for result in results:
        groups.setdefault(result.head, []).append(result)
    return groups


def summarize(results: Sequence[HeadResult]) -> list[SummaryRow]:
    """Returns a row for each head.

    The speed-up is None where the full softmax was not trained to its end.
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
    """Returns a result, and what it is together with nearest neighbors, which has no steps."""
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
    """Returns the runs that came to their end, or all if none did."""
    return [run for run in runs if run.status == "done"] or runs


def _mean(values: Iterable[float | None]) -> float | None:
    """Returns the mean, or None where a value is missing."""
    every = list(values)
    known = [value for value in every if value is not None]
    return sum(known) / len(known) if known and len(known) == len(every) else None


def _spread(values: Sequence[float | None]) -> float | None:
    known = [value for value in values if value is not None and math.isfinite(value)]
    return statistics.stdev(known) if len(known) == len(values) > 1 else None


def _seconds_to(target: float, runs: Sequence[HeadResult]) -> float | None:
    if target == 0:  # reached by anything, at once: says nothing
        return None
    reached = [time_to_reach(run.curve, target) for run in _counted(runs)]
    return _mean(moment and moment.seconds for moment in reached)


class Reached(NamedTuple):
    """When a curve first reached its target."""

    epochs: float
    seconds: float


def time_to_reach(curve: Sequence[CurvePoint], target: float) -> Reached | None:
    """Returns when P@1 first reached `target`, on straight lines between the evaluations.

    The curve begins with the untrained model, or with the one evaluation that there is. None if no
    evaluation reached the target.
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
