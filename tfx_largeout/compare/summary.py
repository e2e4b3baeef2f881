# SPDX-License-Identifier: Apache-2.0
"""The figures of the table, of the CSV and of the JSON: one row a head."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tfx_largeout.compare.convergence import time_to_reach
from tfx_largeout.compare.results import HeadResult

BASELINE = "full_softmax"


@dataclasses.dataclass(frozen=True)
class SummaryRow:
    """A head's figures. None where there is no such figure.

    Attributes:
        head: Its name.
        status: As `HeadResult`.
        error: As `HeadResult`.
        steps: Steps of training.
        epochs: Epochs of training.
        seconds: Seconds of training.
        ms_per_step: Milliseconds a step.
        seconds_per_epoch: Seconds an epoch.
        epoch_extrapolated: Whether less than an epoch was run.
        speed_up: Seconds an epoch of the full softmax, divided by this head's.
        precision_at_1: P@1 at the end, in [0, 1], and so on.
        precision_at_3: P@3.
        precision_at_5: P@5.
        ps_precision_at_1: Propensity-scored P@1.
        exact_loss: In nats.
        epochs_to_50: Epochs to reach 50% of the full softmax's final P@1.
        seconds_to_50: Seconds to reach it.
        epochs_to_90: Epochs to reach 90% of it.
        seconds_to_90: Seconds to reach it.
        peak_memory_mib: MiB.
    """

    head: str
    status: str
    error: str | None
    steps: int
    epochs: float
    seconds: float
    ms_per_step: float | None = None
    seconds_per_epoch: float | None = None
    epoch_extrapolated: bool = False
    speed_up: float | None = None
    precision_at_1: float | None = None
    precision_at_3: float | None = None
    precision_at_5: float | None = None
    ps_precision_at_1: float | None = None
    exact_loss: float | None = None
    epochs_to_50: float | None = None
    seconds_to_50: float | None = None
    epochs_to_90: float | None = None
    seconds_to_90: float | None = None
    peak_memory_mib: float | None = None


def summarize(results: Sequence[HeadResult]) -> list[SummaryRow]:
    """Returns a row for each result.

    What is relative to the full softmax is None where that was not trained to its end.
    """
    baseline = next((r for r in results if r.head == BASELINE and r.status == "done"), None)
    return [_row(result, baseline) for result in results]


def _row(result: HeadResult, baseline: HeadResult | None) -> SummaryRow:
    row = SummaryRow(
        head=result.head,
        status=result.status,
        error=result.error,
        steps=result.steps,
        epochs=result.epochs,
        seconds=result.seconds,
        ms_per_step=result.milliseconds_per_step,
        seconds_per_epoch=result.seconds_per_epoch,
        epoch_extrapolated=result.steps > 0 and result.epochs < 1,
        peak_memory_mib=result.peak_bytes / 2**20 or None,
    )
    if result.curve:
        last = result.curve[-1]
        row = dataclasses.replace(
            row,
            precision_at_1=last.precision_at_1,
            precision_at_3=last.precision_at_3,
            precision_at_5=last.precision_at_5,
            ps_precision_at_1=last.ps_precision_at_1,
            exact_loss=last.exact_loss,
        )
    return row if baseline is None else _relative(row, result, baseline)


def _relative(row: SummaryRow, result: HeadResult, baseline: HeadResult) -> SummaryRow:
    if not result.steps_per_epoch:  # a peer, which has no steps to count
        return row
    if baseline.seconds_per_epoch and result.seconds_per_epoch:
        speed_up = baseline.seconds_per_epoch / result.seconds_per_epoch
        row = dataclasses.replace(row, speed_up=speed_up)
    final = baseline.curve[-1].precision_at_1
    if final == 0:  # reached by anything, at once: says nothing
        return row
    half, most = (time_to_reach(result.curve, share * final) for share in (0.5, 0.9))
    return dataclasses.replace(
        row,
        epochs_to_50=half and half.epochs,
        seconds_to_50=half and half.seconds,
        epochs_to_90=most and most.epochs,
        seconds_to_90=most and most.seconds,
    )
