# SPDX-License-Identifier: Apache-2.0
"""The figures of the table, of the CSV and of the JSON: one row a head."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tfx_largeout.compare.results import CurvePoint, HeadResult

# Whose speed others are measured by: the full softmax, as the command or `compare_heads` has it.
BASELINES = ("full_softmax", "dense")


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """A head's figures: of several seeds the mean. None where there is no such figure.

    Attributes:
        head: Its name.
        status: As `HeadResult`; of several seeds the worst.
        error: As `HeadResult`.
        seeds: With how many seeds it was trained.
        steps: Steps of training.
        epochs: Epochs of training.
        seconds: Seconds of training.
        wall_seconds: Seconds in all: reading data, compilation and evaluation included.
        ms_per_step: Milliseconds a step.
        seconds_per_epoch: Seconds an epoch.
        epoch_extrapolated: Whether less than an epoch was run.
        speed_up: Seconds an epoch of the full softmax, divided by this head's.
        precision_at_1: P@1 at the end, in [0, 1], and so on.
        precision_at_3: P@3.
        precision_at_5: P@5.
        ps_precision_at_1: Propensity-scored P@1.
        exact_loss: In nats.
        precision_at_1_spread: Standard deviation over the seeds, from two on; and so on.
        precision_at_3_spread: Of P@3.
        precision_at_5_spread: Of P@5.
        ps_precision_at_1_spread: Of propensity-scored P@1.
        exact_loss_spread: Of the exact loss.
        seconds_to_50: Seconds of training to reach 50% of the best final P@1 of all rows.
        seconds_to_90: Seconds to reach 90% of it.
        peak_memory_mib: MiB; of several seeds the most.
    """

    head: str
    status: str
    error: str | None
    seeds: int = 1
    steps: int = 0
    epochs: float = 0.0
    seconds: float = 0.0
    wall_seconds: float = 0.0
    ms_per_step: float | None = None
    seconds_per_epoch: float | None = None
    epoch_extrapolated: bool = False
    speed_up: float | None = None
    precision_at_1: float | None = None
    precision_at_3: float | None = None
    precision_at_5: float | None = None
    ps_precision_at_1: float | None = None
    exact_loss: float | None = None
    precision_at_1_spread: float | None = None
    precision_at_3_spread: float | None = None
    precision_at_5_spread: float | None = None
    ps_precision_at_1_spread: float | None = None
    exact_loss_spread: float | None = None
    seconds_to_50: float | None = None
    seconds_to_90: float | None = None
    peak_memory_mib: float | None = None


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
    known = list(values)
    missing = not known or any(value is None for value in known)
    return None if missing else sum(value or 0.0 for value in known) / len(known)


def _spread(values: Sequence[float | None]) -> float | None:
    if len(values) < 2 or any(value is None or not math.isfinite(value) for value in values):
        return None
    return statistics.stdev(value for value in values if value is not None)


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

    Args:
        curve: Evaluations in the order of training; the first is usually of the untrained model.
        target: A value of P@1, in [0, 1].

    Returns:
        Epochs and seconds of training, or None if no evaluation reached the target.
    """
    before: CurvePoint | None = None
    for point in curve:
        if point.precision_at_1 >= target:
            if before is None:
                return Reached(point.epoch, point.seconds)
            share = (target - before.precision_at_1) / (
                point.precision_at_1 - before.precision_at_1
            )
            return Reached(
                before.epoch + share * (point.epoch - before.epoch),
                before.seconds + share * (point.seconds - before.seconds),
            )
        before = point
    return None
