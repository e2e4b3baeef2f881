# SPDX-License-Identifier: Apache-2.0
"""Hand-made curves and results."""

from __future__ import annotations

from tfx_largeout.compare.results import CurvePoint, HeadResult

STEPS_PER_EPOCH = 100


def make_curve(triples):
    """A curve of (epoch, seconds, P@1)."""
    return [
        CurvePoint(
            step=round(epoch * STEPS_PER_EPOCH),
            epoch=epoch,
            seconds=seconds,
            train_loss=1.0 if epoch else None,
            precision_at_1=precision,
            precision_at_3=precision / 2,
            precision_at_5=precision / 4,
            ps_precision_at_1=precision / 8,
            exact_loss=12 - precision,
        )
        for epoch, seconds, precision in triples
    ]


def make_result(head, triples, status="done", error=None):
    """A result whose training ended with the last point."""
    curve = make_curve(triples)
    return HeadResult(
        head,
        {"learning_rate": 0.1},
        status=status,
        error=error,
        steps_per_epoch=STEPS_PER_EPOCH,
        steps=curve[-1].step if curve else 0,
        seconds=curve[-1].seconds if curve else 0.0,
        peak_bytes=100 * 2**20,
        curve=curve,
    )
