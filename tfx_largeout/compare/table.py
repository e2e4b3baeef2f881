# SPDX-License-Identifier: Apache-2.0
"""The results as a plain text table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from tfx_largeout.compare.summary import SummaryRow

_GAP = "  "


class _Column(NamedTuple):
    head: tuple[str, str]
    text: Callable[[SummaryRow], str]


def format_table(rows: Sequence[SummaryRow]) -> str:
    """Returns the table, with a note for everything in it that needs one."""
    cells = cells_of(rows)
    heads = list(zip(*heads_of_columns(), strict=True))
    widths = [max(map(len, column)) for column in zip(*heads, *cells, strict=True)]
    rule = _GAP.join("-" * width for width in widths)
    lines = [*(_align(head, widths) for head in heads), rule, *(_align(c, widths) for c in cells)]
    return "\n".join([*lines, "", *notes_on(rows)])


def heads_of_columns() -> list[tuple[str, str]]:
    """Returns the head of each column, two lines."""
    return [column.head for column in _COLUMNS]


def cells_of(rows: Sequence[SummaryRow]) -> list[list[str]]:
    """Returns the texts of the cells, row by row."""
    return [[column.text(row) for column in _COLUMNS] for row in rows]


def _align(cells: Sequence[str], widths: list[int]) -> str:
    first, *others = [
        cell.rjust(width) if index else cell.ljust(width)
        for index, (cell, width) in enumerate(zip(cells, widths, strict=True))
    ]
    return _GAP.join([first, *others]).rstrip()


def notes_on(rows: Sequence[SummaryRow]) -> list[str]:
    """Returns a sentence for everything in the table that needs one."""
    notes = [
        "P@k and PSP@1 in percent; loss: exact softmax cross-entropy in nats, on the test set."
    ]
    if any(row.epoch_extrapolated and row.seconds_per_epoch for row in rows):
        notes.append("~ extrapolated: less than an epoch was run.")
    if any(row.speed_up is not None for row in rows):
        notes.append(
            "speed-up: per epoch. to 50%, to 90%: to reach that share of the full softmax's "
            "final P@1; - not reached."
        )
    for row in rows:
        if row.status == "failed":
            notes.append(f"{row.head} failed: {row.error}")
        elif row.status == "interrupted":
            notes.append(f"{row.head} was interrupted after {row.seconds:.1f} s of training.")
    return notes


def _number(value: float | None, decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _figures(value: float | None) -> str:
    """At least three figures, and no decimals from 100 on."""
    if value is None:
        return "-"
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def _epoch(row: SummaryRow) -> str:
    mark = "~" if row.epoch_extrapolated and row.seconds_per_epoch else ""
    return mark + _figures(row.seconds_per_epoch)


_COLUMNS = (
    _Column(("", "head"), lambda row: row.head),
    _Column(("", "steps"), lambda row: str(row.steps) if row.steps else "-"),
    _Column(("ms a", "step"), lambda row: _figures(row.ms_per_step)),
    _Column(("s an", "epoch"), _epoch),
    _Column(("speed", "up"), lambda row: _figures(row.speed_up)),
    _Column(("", "P@1"), lambda row: _percent(row.precision_at_1)),
    _Column(("", "P@3"), lambda row: _percent(row.precision_at_3)),
    _Column(("", "P@5"), lambda row: _percent(row.precision_at_5)),
    _Column(("", "PSP@1"), lambda row: _percent(row.ps_precision_at_1)),
    _Column(("", "loss"), lambda row: _number(row.exact_loss, 3)),
    _Column(("to 50%", "epochs"), lambda row: _figures(row.epochs_to_50)),
    _Column(("", "s"), lambda row: _figures(row.seconds_to_50)),
    _Column(("to 90%", "epochs"), lambda row: _figures(row.epochs_to_90)),
    _Column(("", "s"), lambda row: _figures(row.seconds_to_90)),
    _Column(("peak", "MiB"), lambda row: _number(row.peak_memory_mib, 0)),
)
