# SPDX-License-Identifier: Apache-2.0
"""When a head reached a given precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tfx_largeout.compare.results import CurvePoint


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
