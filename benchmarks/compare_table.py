# SPDX-License-Identifier: Apache-2.0
"""One table of several runs of `tfx-largeout compare` on the same data, as in the papers.

For each head the best P@1 over its evaluations, its epoch, and P@5 at this epoch; epochs and
seconds to 50% and 90% of the best P@1 of the full softmax; seconds per epoch.

    tfx-largeout compare --heads full_softmax --data DATA --epochs 5 --evaluations 5 --output a
    tfx-largeout compare --heads lsh_embedding --data DATA --epochs 5 --evaluations 5 --output b
    python benchmarks/compare_table.py a b --output table.csv
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import harness

from tfx_largeout.compare.results import CurvePoint, time_to_reach

_REFERENCE = "full_softmax"


def curves_of(folders: list[Path]) -> dict[str, list[CurvePoint]]:
    """Returns the evaluations of each head."""
    curves: dict[str, list[CurvePoint]] = {}
    for folder in folders:
        results = json.loads((folder / "results.json").read_text())
        for head in results["heads"]:
            curves[head["head"]] = [CurvePoint(**point) for point in head["curve"]]
    if _REFERENCE not in curves:
        raise SystemExit(f"one of the folders must hold {_REFERENCE}; got {', '.join(curves)}")
    return curves


def row_of(head: str, curve: list[CurvePoint], reference: float) -> dict[str, Any]:
    """Returns the row of a head; `reference` is the best P@1 of the full softmax."""
    best, last = max(curve, key=lambda point: point.precision_at_1), curve[-1]
    row: dict[str, Any] = {
        "head": head,
        "seconds_an_epoch": round(last.seconds / last.epoch, 2),
        "best_precision_at_1": round(best.precision_at_1, 4),
        "precision_at_5": round(best.precision_at_5, 4),
        "epoch_of_best": round(best.epoch, 2),
        "share_of_full_softmax": round(best.precision_at_1 / reference, 3),
    }
    for share in (50, 90):
        reached = time_to_reach(curve, share / 100 * reference)
        row[f"epochs_to_{share}"] = round(reached.epochs, 2) if reached else ""
        row[f"seconds_to_{share}"] = round(reached.seconds, 2) if reached else ""
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folders", nargs="+", type=Path, help="folders that compare has written")
    parser.add_argument("--output", type=Path, help="a CSV file")
    arguments = parser.parse_args()
    curves = curves_of(arguments.folders)
    reference = max(point.precision_at_1 for point in curves[_REFERENCE])
    rows = [row_of(head, curve, reference) for head, curve in curves.items()]
    for row in rows:
        print(row)
    if arguments.output:
        harness.write_csv(arguments.output, [{**row, **harness.machine()} for row in rows])


if __name__ == "__main__":
    main()
