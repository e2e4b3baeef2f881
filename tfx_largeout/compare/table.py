# SPDX-License-Identifier: Apache-2.0
"""The results as a table: plain text, or HTML."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence

from tfx_largeout.compare.results import SummaryRow

_GAP = "  "
_NONE = "-"


def format_table(rows: Sequence[SummaryRow], notes: Sequence[str] = ()) -> str:
    """Returns the table as plain text, with notes where needed, and `notes`."""
    heads, cells = _columns(rows)
    lines = list(zip(*heads, strict=True))
    widths = [max(map(len, column)) for column in zip(*lines, *cells, strict=True)]
    rule = _GAP.join("-" * width for width in widths)
    text = [*(_align(line, widths) for line in lines), rule, *(_align(c, widths) for c in cells)]
    return "\n".join([*text, "", *notes_on(rows), *notes])


def html_table(rows: Sequence[SummaryRow], notes: Sequence[str]) -> str:
    """Returns the same as HTML: a table, and a list of its notes."""
    heads, cells = _columns(rows)
    names = ("<br>".join(html.escape(line) for line in head if line) for head in heads)
    head = "".join(f"<th>{name}</th>" for name in names)
    body = "\n".join(
        f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in row)}</tr>" for row in cells
    )
    items = "\n".join(f"<li>{html.escape(note)}</li>" for note in [*notes_on(rows), *notes])
    return f"""<table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table>
<ul>
{items}
</ul>"""


def _columns(rows: Sequence[SummaryRow]) -> tuple[list[tuple[str, str]], list[list[str]]]:
    """Returns the headers of non-empty columns, two lines each, and the cells by row."""
    heads, texts = [], []
    for head, text in _COLUMNS:
        column = [text(row) for row in rows]
        if set(column) != {_NONE}:
            heads.append(head)
            texts.append(column)
    return heads, [list(row) for row in zip(*texts, strict=True)]


def _align(cells: Sequence[str], widths: list[int]) -> str:
    others = map(str.rjust, cells[1:], widths[1:])
    return _GAP.join([cells[0].ljust(widths[0]), *others]).rstrip()


def notes_on(rows: Sequence[SummaryRow]) -> list[str]:
    """Returns the notes that the table needs."""
    notes = ["P@k in percent; loss: exact softmax cross-entropy in nats; both on held-out data."]
    seeds = max((row.seeds for row in rows), default=1)
    if seeds > 1:
        notes.append(f"Means over {seeds} seeds, ± standard deviation.")
    if any(row.epoch_extrapolated and row.seconds_per_epoch for row in rows):
        notes.append("~ extrapolated: less than an epoch was run.")
    if any(row.speed_up is not None for row in rows):
        notes.append("speed-up: seconds per epoch of the full softmax, divided by the row's.")
    if any(row.seconds_to_50 is not None for row in rows):
        notes.append(
            "to 50%, to 90%: seconds of training to that share of the best final P@1 in the table; "
            "- not reached."
        )
    if any(row.ps_precision_at_1 is not None for row in rows):
        notes.append("PSP@1: P@1 in which a rare label counts more.")
    notes.append("total s: with reading, compilation and evaluation.")
    for row in rows:
        if row.status == "failed":
            notes.append(f"{row.head} failed: {row.error}")
        elif row.status == "interrupted":
            notes.append(f"{row.head} was interrupted after {row.seconds:.1f} s of training.")
    return notes


def _number(value: float | None, decimals: int, spread: float | None = None) -> str:
    if value is None:
        return _NONE
    around = "" if spread is None else f"±{spread:.{decimals}f}"
    return f"{value:.{decimals}f}{around}"


def _figures(value: float | None) -> str:
    """Formats with at least three digits, and without decimals from 100 on."""
    if value is None:
        return _NONE
    return f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"


def _percent(value: float | None, spread: float | None) -> str:
    return _number(value and 100 * value, 2, spread and 100 * spread)


def _epoch(row: SummaryRow) -> str:
    mark = "~" if row.epoch_extrapolated and row.seconds_per_epoch else ""
    return mark + _figures(row.seconds_per_epoch)


_COLUMNS: tuple[tuple[tuple[str, str], Callable[[SummaryRow], str]], ...] = (
    (("", "head"), lambda row: row.head),
    (("", "steps"), lambda row: str(row.steps) if row.steps else _NONE),
    (("ms per", "step"), lambda row: _figures(row.ms_per_step)),
    (("s per", "epoch"), _epoch),
    (("speed", "up"), lambda row: _figures(row.speed_up)),
    (("", "P@1"), lambda row: _percent(row.precision_at_1, row.precision_at_1_spread)),
    (("", "P@3"), lambda row: _percent(row.precision_at_3, row.precision_at_3_spread)),
    (("", "P@5"), lambda row: _percent(row.precision_at_5, row.precision_at_5_spread)),
    (("", "PSP@1"), lambda row: _percent(row.ps_precision_at_1, row.ps_precision_at_1_spread)),
    (("", "loss"), lambda row: _number(row.exact_loss, 3, row.exact_loss_spread)),
    (("s to", "50%"), lambda row: _figures(row.seconds_to_50)),
    (("s to", "90%"), lambda row: _figures(row.seconds_to_90)),
    (("train", "s"), lambda row: _figures(row.seconds or None)),
    (("total", "s"), lambda row: _figures(row.wall_seconds or None)),
    (("peak", "MiB"), lambda row: _number(row.peak_memory_mib, 0)),
)
