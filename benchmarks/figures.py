# SPDX-License-Identifier: Apache-2.0
"""Figures in README and docs come from CSV files: fills them in, or checks that they are true.

    python benchmarks/figures.py            # fills in
    python benchmarks/figures.py --check    # says what is not as the CSV has it; exit code 1

In Markdown, where a reader does not see it:

    <!--= first_table.csv; run=1, head=exact_softmax; precision_at_1; percent.1 -->44.8<!--/-->

A row of benchmarks/results/first_table.csv, a column, and a format: `.1` is a number of decimals,
`percent.1` that of 100 times the value, `text` the text as it is. `min`, `max` or `median` before
the column takes several rows together. A whole table, one line for each row that is left:

    <!--table= first_table.csv; run=1; head: head text | P@1, %: precision_at_1 percent.1 -->
    <!--/table-->
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_OVER = {"min": min, "max": max, "median": statistics.median}
_FIGURE = re.compile(r"<!--= *(?P<rule>[^>]*?) *-->(?P<text>[^<]*)<!--/-->")
_TABLE = re.compile(r"<!--table= *(?P<rule>[^>]*?) *-->\n(?P<text>.*?)<!--/table-->", re.DOTALL)

_PARTS_OF_MARKERS = (r"<!-- *(?:table|figure)? *=", r"<!-- */")


class MarkerError(ValueError):
    """A marker that can't be followed."""


def fill(text: str, results: Path) -> str:
    """Returns Markdown with the figures of the CSV files in a folder.

    Raises:
        MarkerError: A marker is malformed, or names no row, several, or no column.
    """
    begun, ended = (len(re.findall(pattern, text)) for pattern in _PARTS_OF_MARKERS)
    whole = len(_FIGURE.findall(text)) + len(_TABLE.findall(text))
    if not begun == ended == whole:
        raise MarkerError(f"line 1: {begun} markers begin, {ended} end, {whole} are whole")
    text = _replace(_FIGURE, text, lambda rule: _figure(rule, results))
    return _replace(_TABLE, text, lambda rule: _table(rule, results))


def _replace(pattern: re.Pattern[str], text: str, make: Callable[[str], str]) -> str:
    def filled(match: re.Match[str]) -> str:
        try:
            new = make(match["rule"])
        except (ValueError, KeyError, OSError) as error:
            line = text[: match.start()].count("\n") + 1
            raise MarkerError(f"line {line}: {match['rule']!r}: {error}") from None
        start = match.start("text") - match.start()
        return match[0][:start] + new + match[0][start + len(match["text"]) :]

    return pattern.sub(filled, text)


def _figure(rule: str, results: Path) -> str:
    file, where, what, style = _parts(rule, 4)
    over, _, column = what.rpartition(" ")
    values = [row[column] for row in _rows(results / file, where)]
    if over:
        numbers = [float(value) for value in values]
        return _styled(str(_OVER[over](numbers)), style)
    if len(values) != 1:
        raise ValueError(f"{len(values)} rows are such, not one")
    return _styled(values[0], style)


def _table(rule: str, results: Path) -> str:
    file, where, columns = _parts(rule, 3)
    heads, rest = zip(*(part.strip().rsplit(": ", 1) for part in columns.split("|")), strict=True)
    cells = [part.split() for part in rest]
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for row in _rows(results / file, where):
        texts = [_styled(row[column], style) for column, style in cells]
        lines.append("| " + " | ".join(texts) + " |")
    return "\n" + "\n".join(lines) + "\n\n"  # lines between, or Python-Markdown takes it for HTML


def _parts(rule: str, number: int) -> list[str]:
    parts = [part.strip() for part in rule.split(";")]
    if len(parts) != number:
        raise ValueError(f"there must be {number} parts with semicolons between them")
    return parts


def _rows(file: Path, where: str) -> list[dict[str, str]]:
    wanted = [pair.strip().split("=", 1) for pair in where.split(",") if pair.strip()]
    with file.open(newline="") as lines:
        rows = [
            row for row in csv.DictReader(lines) if all(row[name] == text for name, text in wanted)
        ]
    if not rows:
        raise ValueError("no row is such")
    return rows


def _styled(text: str, style: str) -> str:
    if style == "text":
        return text
    kind, point, decimals = style.rpartition(".")
    if not point or kind not in ("", "percent"):
        raise ValueError(f"a format must be text, .1 or percent.1, with any digit; got {style!r}")
    if not text:
        return "-"
    return f"{float(text) * (100 if kind else 1):,.{int(decimals)}f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing")
    check = parser.parse_args().check
    wrong = 0
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))):
        before = file.read_text()
        try:
            after = fill(before, ROOT / "benchmarks" / "results")
        except MarkerError as error:
            print(f"{file.relative_to(ROOT)}, {error}")
            wrong += 1
            continue
        if after != before and check:
            pairs = zip(before.splitlines(), after.splitlines(), strict=False)
            for number, (old, new) in enumerate(pairs, start=1):
                if old != new:
                    print(f"{file.relative_to(ROOT)}, line {number}: must be {new!r}; got {old!r}")
                    wrong += 1
        elif after != before:
            file.write_text(after)
    return min(wrong, 1)


if __name__ == "__main__":
    sys.exit(main())
