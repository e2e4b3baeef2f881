# SPDX-License-Identifier: Apache-2.0
"""The results as CSV and JSON."""

from __future__ import annotations

import csv
import dataclasses
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from tfx_largeout.compare.output_folder import OutputFolder
from tfx_largeout.compare.results import CurvePoint, HeadResult
from tfx_largeout.compare.summary import SummaryRow, summarize


def write_report(
    folder: OutputFolder, configuration: Mapping[str, Any], results: Sequence[HeadResult]
) -> None:
    """Writes `summary.csv`, `curves.csv` and `results.json`; replaces what it wrote before.

    A number that is not finite is `nan` or `inf` in CSV, and null in JSON.

    Args:
        folder: Where to.
        configuration: All that the results depend on; for the JSON.
        results: The results so far, one for each head and seed.
    """
    rows = summarize(results)
    _write_csv(folder.summary_csv, _names(SummaryRow), (dataclasses.asdict(row) for row in rows))
    _write_csv(
        folder.curves_csv,
        ["head", "seed", *_names(CurvePoint)],
        (
            {"head": result.head, "seed": result.seed, **dataclasses.asdict(point)}
            for result in results
            for point in result.curve
        ),
    )
    content = {
        **configuration,
        "heads": [dataclasses.asdict(result) for result in results],
        "summary": [dataclasses.asdict(row) for row in rows],
    }
    _replace(
        folder.results_json,
        lambda file: json.dump(_finite_or_null(content), file, indent=2, allow_nan=False),
    )


def _finite_or_null(value: Any) -> Any:
    """Puts None in the place of infinity and NaN, for which JSON has no word."""
    if isinstance(value, Mapping):
        return {name: _finite_or_null(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite_or_null(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _names(kind: Any) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _write_csv(path: Path, names: list[str], rows: Iterable[dict[str, Any]]) -> None:
    def write(file: Any) -> None:
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)

    _replace(path, write)


def _replace(path: Path, write: Any) -> None:
    """Writes a file in one go: a reader never sees half of it."""
    unfinished = path.with_suffix(".part")
    with open(unfinished, "w", encoding="utf-8", newline="") as file:
        write(file)
    os.replace(unfinished, path)
