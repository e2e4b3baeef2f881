# SPDX-License-Identifier: Apache-2.0
"""The results as one HTML page, which needs no other file."""

from __future__ import annotations

import base64
import html
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx_largeout.compare.results import HeadResult
from tfx_largeout.compare.summary import by_head, summarize
from tfx_largeout.compare.table import html_table

_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; }
body { max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; font-weight: 600; }
h2 { font-size: 1.1rem; font-weight: 600; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.6rem; text-align: right; white-space: nowrap; }
th { border-bottom: 2px solid #222; vertical-align: bottom; font-weight: 600; }
td { border-bottom: 1px solid #ddd; }
th:first-child, td:first-child { text-align: left; }
tr:hover td { background: #f2f6fa; }
img { max-width: 100%; margin: 1.5rem 0; }
ul { padding-left: 1.2rem; color: #555; font-size: 0.9rem; }
dt { font-weight: 600; }
dd { margin: 0 0 0.4rem; overflow-wrap: anywhere; }
"""


def write_page(
    path: Path,
    title: str,
    results: Sequence[HeadResult],
    notes: Sequence[str],
    configuration: Mapping[str, Any],
    picture: Path,
) -> None:
    """Writes the table with its notes, the picture if there is one, and how it was measured.

    Args:
        path: A `.html` file.
        title: Of the page.
        results: Of the heads.
        notes: Sentences below the table, beside those on the table itself.
        configuration: All that the results depend on, as in `results.json`.
        picture: A `.png` file; it becomes part of the page.
    """
    title = html.escape(title)
    text = f"""<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>{_STYLE}</style>
<h1>{title}</h1>
<div class="wide">{html_table(summarize(results), notes)}</div>
{_image(picture)}
<h2>How it was measured</h2>
<dl>
{_definitions(results, configuration)}
</dl>
</html>
"""
    path.write_text(text, encoding="utf-8")


def _definitions(results: Sequence[HeadResult], configuration: Mapping[str, Any]) -> str:
    lines: dict[str, str] = {}
    commands = [configuration.get("command"), *configuration.get("added_by", ())]
    for command in filter(None, commands):
        name = "Command" if not lines else f"Added by command {len(lines)}"
        words = command[1:] if command[1:2] == ["compare"] else ["compare", *command[1:]]
        lines[name] = shlex.join(["tfx-largeout", *words])
    for name in ("data", "training", "machine", "versions"):
        if name in configuration:
            lines[name.capitalize()] = _listed(configuration[name])
    for head, runs in by_head(results).items():
        if runs[0].options:
            lines[f"Options of {head}"] = _listed(runs[0].options)
    return "\n".join(
        f"<dt>{html.escape(name)}</dt><dd>{html.escape(text)}</dd>" for name, text in lines.items()
    )


def _listed(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items() if value not in (None, ""))


def _image(picture: Path) -> str:
    if not picture.exists():
        return ""
    data = base64.b64encode(picture.read_bytes()).decode("ascii")
    what = "P@1, P@5 and exact loss against seconds and examples"
    return f'<img alt="{what}" src="data:image/png;base64,{data}">'
