# SPDX-License-Identifier: Apache-2.0
"""The results as one HTML page, which needs no other file."""

from __future__ import annotations

import base64
import html
from collections.abc import Sequence
from pathlib import Path

from tfx_largeout.compare.summary import SummaryRow
from tfx_largeout.compare.table import cells_of, heads_of_columns, notes_on

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #222; vertical-align: bottom; font-weight: 600; }
td { border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr:hover td { background: #f2f6fa; }
img { max-width: 100%; margin: 1.5rem 0; }
ul { padding-left: 1.2rem; color: #555; font-size: 0.9rem; }
"""


def write_page(
    path: Path, title: str, rows: Sequence[SummaryRow], notes: Sequence[str], picture: Path
) -> None:
    """Writes the table, its notes, and the picture if there is one.

    Args:
        path: A `.html` file.
        title: Of the page.
        rows: Of the table.
        notes: Sentences below it, beside those on the table itself.
        picture: A `.png` file; it becomes part of the page.
    """
    head = "".join(f"<th>{_lines(lines)}</th>" for lines in heads_of_columns())
    body = "\n".join(f"<tr>{_row(cells)}</tr>" for cells in cells_of(rows))
    items = "\n".join(f"<li>{html.escape(note)}</li>" for note in [*notes_on(rows), *notes])
    title = html.escape(title)
    text = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<div class="wide"><table>
<thead><tr>{head}</tr></thead>
<tbody>
{body}
</tbody>
</table></div>
{_image(picture)}
<ul>
{items}
</ul>
</html>
"""
    path.write_text(text, encoding="utf-8")


def _lines(lines: Sequence[str]) -> str:
    return "<br>".join(html.escape(line) for line in lines if line)


def _row(cells: Sequence[str]) -> str:
    return "".join(f"<td>{html.escape(cell)}</td>" for cell in cells)


def _image(picture: Path) -> str:
    if not picture.exists():
        return ""
    data = base64.b64encode(picture.read_bytes()).decode("ascii")
    return f'<img alt="P@1 against seconds and epochs" src="data:image/png;base64,{data}">'
