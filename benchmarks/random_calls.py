# SPDX-License-Identifier: Apache-2.0
"""How many random calls of the custom ops went well: see tests/fuzz.

    python benchmarks/random_calls.py --calls 10000 --seeds 100

makes 10,000 calls of each of 100 seeds, in a child process, and writes a row a seed to
results/random_calls.csv; the finding itself is printed, with the command that makes the call again.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path

from harness import RESULTS, machine, write_csv

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzz.run import run_calls


def row_of(seed: int, calls: int, compare_every: int) -> dict[str, int | float]:
    """Makes the calls of a seed; returns their results."""
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    for report in run_calls(seed, 0, calls, compare_every):
        counts.update({report.outcome: 1, "compared": report.is_compared})
        if report.finding is not None:
            counts["findings"] += 1
            print(f"{report.op} --seed {seed} --call {report.index}: {report.finding}", flush=True)
    columns = ("accepted", "refused", "died", "compared", "findings")
    return {
        "seed": seed,
        "calls": calls,
        **{name: counts[name] for name in columns},
        "seconds": round(time.monotonic() - start),
    }


def main() -> None:
    """Writes the rows of all seeds; after each seed, the rows so far."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=10_000, help="of each seed")
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--compare-every", type=int, default=50)
    parser.add_argument("--csv", type=Path, default=RESULTS / "random_calls.csv")
    options = parser.parse_args()
    facts, rows = machine(), []
    for seed in range(1, options.seeds + 1):
        rows.append(row_of(seed, options.calls, options.compare_every) | facts)
        write_csv(options.csv, rows)


if __name__ == "__main__":
    main()
