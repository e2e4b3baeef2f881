# SPDX-License-Identifier: Apache-2.0
"""The table that `tfx-largeout compare` shows first: how settings were chosen, what it shows.

    python benchmarks/first_table.py search                   # first_table_search.csv
    python benchmarks/first_table.py table runs/a runs/b      # first_table.csv, of finished runs

`search` trains on WordNet for the seconds of the default budget and evaluates on examples that are
held out of the training examples, never on the test examples: our head and TensorFlow's sampled
softmax, with Keras's optimizers and with RowAdam on its weights, each over the same numbers of
candidates and as many learning rates. `table` says for each run when our head has reached the final
P@1 of each other row.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import harness

from tfx_largeout.compare.results import HeadResult, time_to_reach

OURS = "complementary_sum"
_HELD_OUT = 0.08
# For each head the settings to try; others have the defaults of the command.
_RATES: dict[str, dict[str, list[float]]] = {
    OURS: {"row_adam": [0.015, 0.03, 0.06]},
    "tf_sampled_softmax_row_adam": {"row_adam": [0.015, 0.03, 0.06]},
    "tf_sampled_softmax": {
        "sgd": [100, 200, 400, 800],
        "adagrad": [0.1, 0.5],
        "adam": [0.003, 0.01],
    },
}
_OTHERS = {"num_sampled": [1000, 2000, 4000], "trunk_learning_rate": [0.004, 0.008, 0.016]}
_FIRST = {"num_sampled": 2000, "trunk_learning_rate": 0.008}


def search(file: Path) -> None:
    """Goes through optimizers and rates, then each other option, at the best that was found before.

    Rows that the file has already are not run again.
    """
    rows: list[dict[str, Any]] = []
    if file.exists():
        with file.open(newline="") as lines:
            rows += csv.DictReader(lines)
    for head, optimizers in _RATES.items():
        pairs = [(optimizer, rate) for optimizer, rates in optimizers.items() for rate in rates]
        steps = [[_of_head(*pair) for pair in pairs]]
        steps += [[{name: value} for value in values] for name, values in _OTHERS.items()]
        best = dict(_FIRST)
        for choices in steps:
            found = []
            for choice in choices:
                options = {**best, **choice}
                row = _known(rows, head, options)
                if row is None:
                    row = _measured(head, options)
                    print(row, flush=True)
                    rows.append(row)
                    harness.write_csv(file, rows)
                found.append((float(row["held_out_precision_at_1"]), options))
            best = max(found, key=lambda pair: pair[0])[1]
        print("best:", head, best, flush=True)


def _of_head(optimizer: str, rate: float) -> dict[str, Any]:
    return {"head_optimizer": optimizer, "head_learning_rate": rate}


def _known(rows: list[dict[str, Any]], head: str, options: dict[str, Any]) -> dict[str, Any] | None:
    def same(row: dict[str, Any]) -> bool:
        numbers = [name for name in options if name != "head_optimizer"]
        return (row["head"], row["head_optimizer"]) == (head, options["head_optimizer"]) and all(
            float(row[name]) == options[name] for name in numbers
        )

    return next((row for row in rows if same(row)), None)


def _measured(head: str, options: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        result = _run(head, options, Path(folder) / "run")
    return {
        "head": head,
        **options,
        "steps": result.steps,
        "seconds": round(result.seconds, 1),
        "held_out_precision_at_1": round(result.curve[-1].precision_at_1, 4),
        **harness.machine(),
    }


def _run(head: str, options: dict[str, Any], folder: Path) -> HeadResult:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in options.items()]
    command = ["tfx-largeout", "compare", "--heads", head, "--peers", "none", "--neighbors", "no"]
    command += ["--hold-out", str(_HELD_OUT), "--evaluations", "1", *flags]
    command += ["--output", str(folder)]
    subprocess.run(command, check=True, capture_output=True)
    return results_of(folder)[0]


def results_of(folder: Path) -> list[HeadResult]:
    content = json.loads((folder / "results.json").read_text())
    return [HeadResult.from_json(fields) for fields in content["heads"]]


def table(folders: list[Path], file: Path) -> None:
    rows = []
    for number, folder in enumerate(folders, start=1):
        ours = next(result for result in results_of(folder) if result.head == OURS)
        with (folder / "summary.csv").open() as lines:
            for row in csv.DictReader(lines):
                final = float(row["precision_at_1"])
                reached = time_to_reach(ours.curve, final)
                rows.append(
                    {
                        "run": number,
                        "head": row["head"],
                        "ms_per_step": _rounded(row["ms_per_step"], 1),
                        "epochs": _rounded(row["epochs"], 2) if float(row["epochs"]) else "",
                        "seconds": _rounded(row["seconds"], 1),
                        "wall_seconds": _rounded(row["wall_seconds"], 1),
                        **{f"precision_at_{k}": float(row[f"precision_at_{k}"]) for k in (1, 3, 5)},
                        "exact_loss": _rounded(row["exact_loss"], 3),
                        "ours_there_after": round(reached.seconds, 1) if reached else "",
                        **harness.machine(),
                    }
                )
    for row in rows:
        print(list(row.values())[:11])
    harness.write_csv(file, rows)


def _rounded(text: str, decimals: int) -> float | str:
    return round(float(text), decimals) if text else ""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("search", "table"))
    parser.add_argument("folders", nargs="*", type=Path, help="finished runs, for the table")
    parser.add_argument("--csv", type=Path)
    arguments = parser.parse_args()
    if arguments.what == "search":
        search(arguments.csv or harness.RESULTS / "first_table_search.csv")
    else:
        table(arguments.folders, arguments.csv or harness.RESULTS / "first_table.csv")


if __name__ == "__main__":
    main()
