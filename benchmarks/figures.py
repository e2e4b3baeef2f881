# SPDX-License-Identifier: Apache-2.0
"""Fills figures in README and docs from CSV files, or checks that they match.

    python benchmarks/figures.py            # fills in
    python benchmarks/figures.py --check    # prints differences from the CSV; exit code 1

In Markdown, where a reader does not see it:

    <!--= first_table.csv; run=1, head=exact_softmax; precision_at_1; percent.1 -->44.8<!--/-->

A row of benchmarks/results/first_table.csv, a column, and a format: `.1` is a number of decimals,
`percent.1` the same for 100 times the value, `text` the text unchanged. `min`, `max`, `median` or
`sum` before the column aggregates several rows. A whole table, one line per selected row:

    <!--table= first_table.csv; run=1; head: head text | P@1, %: precision_at_1 percent.1 -->
    <!--/table-->

And one with a line for each value of some columns, a column for each value of others, and in
each cell the last row that has both, or, as `count`, their number:

    <!--pivot= small_budgets.csv; data=gowalla; S: s text; sampler sharing; exact_loss .2 -->
    <!--/pivot-->

`C=classes` for `classes` puts `C = 100,000` over a column.

Rows are chosen by `column=value`, with commas between; `value|value` is either of two, and ` or `
begins another choice, whose rows follow; `column=last` takes the last row of each value. Other
formats are `e.1` for powers of ten and `words` for text in which names of options are put into
words. Formats with ` / ` between them share a cell.
"""

from __future__ import annotations

import argparse
import csv
import re
import statistics
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

_Key = tuple[str, ...]

ROOT = Path(__file__).resolve().parents[1]
_OVER = {"min": min, "max": max, "median": statistics.median, "sum": sum}
_FIGURE = re.compile(r"<!--= *(?P<rule>[^>]*?) *-->(?P<text>[^<]*)<!--/-->")
_TABLE = re.compile(r"<!--table= *(?P<rule>[^>]*?) *-->\n(?P<text>.*?)<!--/table-->", re.DOTALL)
_PIVOT = re.compile(r"<!--pivot= *(?P<rule>[^>]*?) *-->\n(?P<text>.*?)<!--/pivot-->", re.DOTALL)

_PARTS_OF_MARKERS = (r"<!-- *(?:table|pivot|figure)? *=", r"<!-- */")
_WORDS = {
    "_": " ",
    r"\bown\b": "per example",
    r"\bK = ": "hashes = ",
    r"\bL = ": "tables = ",
    "^True$": "yes",
    "^False$": "no",
}


class MarkerError(ValueError):
    """A marker that can't be followed."""


def fill(text: str, results: Path) -> str:
    """Returns Markdown with the figures of the CSV files in a folder.

    Raises:
        MarkerError: A marker is malformed, or names no row, several, or no column.
    """
    begun, ended = (len(re.findall(pattern, text)) for pattern in _PARTS_OF_MARKERS)
    whole = sum(len(kind.findall(text)) for kind in (_FIGURE, _TABLE, _PIVOT))
    if not begun == ended == whole:
        raise MarkerError(f"line 1: {begun} markers begin, {ended} end, {whole} are whole")
    text = _replace(_FIGURE, text, lambda rule: _figure(rule, results))
    text = _replace(_TABLE, text, lambda rule: _table(rule, results))
    return _replace(_PIVOT, text, lambda rule: _pivot(rule, results))


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
    heads, cells = _columns(columns)
    rows = _rows(results / file, where)
    return _lines(heads, ([_cell(row, each) for each in cells] for row in rows))


def _pivot(rule: str, results: Path) -> str:
    file, where, keys, across, cell = _parts(rule, 5)
    heads, key_cells = _columns(keys)
    lines: dict[_Key, dict[_Key, str]] = {}
    for row in _rows(results / file, where):
        key = tuple(_cell(row, each) for each in key_cells)
        column = tuple(_head(row, each) for each in across.split())
        line = lines.setdefault(key, {})
        counted = str(int(line.get(column, 0)) + 1) if cell == "count" else ""
        line[column] = counted or _cell(row, cell)
    columns = _in_order(dict.fromkeys(column for line in lines.values() for column in line))
    filled = (
        [*key, *(lines[key].get(column, "") for column in columns)] for key in _in_order(lines)
    )
    return _lines([*heads, *(", ".join(column) for column in columns)], filled)


def _head(row: dict[str, str], column: str) -> str:
    """Returns the head of a column of a pivot: a value, or `C = 100,000` for `C=classes`."""
    label, _, name = column.rpartition("=")
    text = row[name]
    text = f"{int(text):,}" if text.isdecimal() else _styled(text, "words")
    return f"{label} = {text}" if label else text


def _in_order(keys: Iterable[_Key]) -> list[_Key]:
    """Returns the keys, numbers in their order, anything else as it came."""
    keys = list(keys)
    try:
        return sorted(keys, key=lambda key: [_number(part) for part in key])
    except ValueError:
        return keys


def _number(text: str) -> float:
    return float(text.rpartition("= ")[2].replace(",", ""))


def _columns(text: str) -> tuple[list[str], list[str]]:
    """Returns the heads and the contents of columns: `P@1, %: precision_at_1 percent.1 | ...`."""
    pairs = [part.strip().rsplit(": ", 1) for part in text.split("|")]
    return [head for head, _ in pairs], [cell for _, cell in pairs]


def _cell(row: dict[str, str], cell: str) -> str:
    parts = [part.split() for part in cell.split(" / ")]
    return " / ".join(_styled(row[column], style) for column, style in parts)


def _lines(heads: list[str], rows: Iterable[list[str]]) -> str:
    head, *body = ["| " + " | ".join(line) + " |" for line in (heads, *rows)]
    text = "\n".join([head, "|" + "---|" * len(heads), *body])
    return f"\n{text}\n\n"  # lines between, or Python-Markdown takes it for HTML


def _parts(rule: str, number: int) -> list[str]:
    parts = [part.strip() for part in rule.split(";")]
    if len(parts) != number:
        raise ValueError(f"there must be {number} parts with semicolons between them")
    return parts


def _rows(file: Path, where: str) -> list[dict[str, str]]:
    with file.open(newline="") as lines:
        rows = list(csv.DictReader(lines))
    found = []
    for choice in where.split(" or "):
        pairs = [pair.strip().split("=", 1) for pair in choice.split(",") if pair.strip()]
        wanted = [(name, texts.split("|")) for name, texts in pairs if texts != "last"]
        last = [name for name, texts in pairs if texts == "last"]
        chosen = [row for row in rows if all(row[name] in texts for name, texts in wanted)]
        found += (
            {tuple(row[name] for name in last): row for row in chosen}.values() if last else chosen
        )
    if not found:
        raise ValueError("no row is such")
    return found


def _styled(text: str, style: str) -> str:
    if style == "text":
        return text
    if style == "words":
        for pattern, words in _WORDS.items():
            text = re.sub(pattern, words, text)
        return text
    kind, point, decimals = style.rpartition(".")
    if not point or kind not in ("", "percent", "e"):
        known = "text, words, .1, percent.1 or e.1, with any digit"
        raise ValueError(f"a format must be {known}; got {style!r}")
    if not text:
        return "-"
    if kind == "e":
        return f"{float(text):.{int(decimals)}e}"
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
