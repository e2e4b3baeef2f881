# SPDX-License-Identifier: Apache-2.0
"""Classes spread over workers on this machine, against one process.

    python benchmarks/scale_out.py --only equality      # W, trunk, loss, ranks, top 5 of each head
    python benchmarks/scale_out.py --only memory        # of a worker of 4; takes 18 GB
    python benchmarks/scale_out.py --only overhead      # a step of 2 workers with a thread each
    python benchmarks/scale_out.py --only steps         # of three heads, and their collectives
    python benchmarks/scale_out.py --only whole         # of other sizes, to check the model
    python benchmarks/scale_out.py --only groups        # of a step of 4 workers in 1, 2, 4 groups
    python benchmarks/scale_out.py --only bytes         # received, against the formula of the docs
    python benchmarks/scale_out.py --only collectives   # their times by size
    python benchmarks/scale_out.py --quick              # small, nothing is written

Each part writes results/scale_out_PART.csv. Workers are processes on loopback, which share the
cores; run it with nothing else on the machine. The code of a worker is in scale_out_worker.py.
scale_out_model.py computes the times for other numbers of workers and networks from the rows of
`steps` and `collectives`, and compares some with `whole`. Bytes are counted on the loopback
interface: nothing else may use it.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import statistics
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
from scale_out_worker import FEATURES, HEADS, WIDTH

WORKER = Path(__file__).with_name("scale_out_worker.py")


class Setting(NamedTuple):
    """C, B of all workers together, S shared candidates, and steps."""

    classes: int
    batch: int
    candidates: int
    steps: int


OVERHEAD = Setting(670_091, 1024, 3800, 120)
LARGE = Setting(2_000_000, 8192, 20_000, 10)
OVERHEADS = [OVERHEAD, OVERHEAD, OVERHEAD, LARGE]
MEMORIES = Setting(4_000_000, 256, 1000, 3), Setting(10_000_000, 256, 1000, 3)
STEPS = [
    ("sampled", Setting(200_000, 1024, 4000, 25)),
    ("sampled", Setting(200_000, 4096, 4000, 15)),
    ("sampled", Setting(200_000, 4096, 16_000, 10)),
    ("exact", Setting(20_000, 512, 0, 12)),
    ("exact", Setting(40_000, 1024, 0, 8)),
    ("factored", Setting(200_000, 1024, 0, 20)),
    ("factored", Setting(200_000, 8192, 0, 12)),
]
WHOLE = [
    ("sampled", Setting(400_000, 3072, 6000, 30)),
    ("exact", Setting(50_000, 640, 0, 10)),
    ("factored", Setting(250_000, 2048, 0, 20)),
]
GROUPS = Setting(200_000, 1024, 4000, 6), Setting(200_000, 4096, 4000, 6)  # nothing is timed
BYTES = Setting(100_000, 1024, 3800, 40)
QUICK = Setting(2000, 32, 50, 12)
WIRE_DTYPES = "float32", "bfloat16"
SIZES = tuple(2**power for power in range(6, 25, 3))  # bytes


def run_workers(size: int, part: str, **settings: Any) -> list[dict[str, Any]]:
    """Runs a part in workers; returns the results of each, by rank."""
    from tfx_largeout.distribute.launcher import launch

    with tempfile.TemporaryDirectory() as folder:
        code = launch([str(WORKER), part, folder, json.dumps(settings)], size)
        if code:
            raise RuntimeError(f"{part} must end without an error; got exit code {code}")
        files = [Path(folder) / f"{rank}.json" for rank in range(size)]
        return [json.loads(file.read_text()) for file in files]


def equality(quick: bool) -> Iterable[dict[str, Any]]:
    """After 50 steps; the largest difference, relative to the largest number of one process."""
    for head in HEADS:
        alone = run_workers(1, "equality", head=head)[0]
        for size in (2,) if quick else (2, 4):
            found = run_workers(size, "equality", head=head)
            row = {"head": head, "workers": size, "steps": 50}
            for name in ("kernel", "trunk", "losses", "evaluate", "scores"):
                row[name] = f"{max(difference(one[name], alone[name]) for one in found):.1e}"
            row["same_ids"] = all(one["ids"] == alone["ids"] for one in found)
            row["trunks_alike"] = all(one["bits"] == found[0]["bits"] for one in found)
            yield row


def difference(found: list[float], expected: list[float]) -> float:
    pairs = list(zip(found, expected, strict=True))
    return max(abs(a - b) for a, b in pairs) / max(abs(b) for _, b in pairs)


def memory(quick: bool) -> Iterable[dict[str, Any]]:
    size = 2 if quick else 4
    for setting in (QUICK,) if quick else MEMORIES:
        alone = run_workers(1, "memory", **setting._asdict())[0]
        for rank, found in enumerate(run_workers(size, "memory", **setting._asdict())):
            row = {"workers": size, "rank": rank, "classes": setting.classes, "width": WIDTH}
            row |= {"state_mib": found["state_mib"], "state_of_one_mib": alone["state_mib"]}
            row |= {"peak_mib": found["peak_mib"], "peak_of_one_mib": alone["peak_mib"]}
            row["share"] = round(found["peak_mib"] / alone["peak_mib"], 3)
            beyond, of_one = (one["peak_mib"] - one["empty_mib"] for one in (found, alone))
            row["share_beyond_tensorflow"] = round(beyond / of_one, 3)
            yield row


def overhead(quick: bool) -> Iterable[dict[str, Any]]:
    """Of two workers with a core each: connected, and with `silent` ones, which send nothing.

    What collectives are and take is from other steps, in which they tell the time.
    """
    for setting in (QUICK,) if quick else OVERHEADS:
        one, silent = step_ms(1, setting), step_ms(2, setting, silent=True)
        for wire_dtype in WIRE_DTYPES:
            two = step_ms(2, setting, wire_dtype=wire_dtype)
            row = {**setting._asdict(), "width": WIDTH, "wire_dtype": wire_dtype}
            row |= {"one_ms": one, "silent_ms": silent, "two_ms": two}
            row |= {"silent_ratio": round(silent / one, 3), "ratio": round(two / one, 3)}
            yield row | sent_in_a_step(setting, wire_dtype)


def step_ms(size: int, setting: Setting, **options: Any) -> float:
    found = run_workers(size, "overhead", **setting._asdict(), **options)
    return max(worker["ms"] for worker in found)


@functools.cache
def sent_in_a_step(setting: Setting, wire_dtype: str) -> dict[str, Any]:
    found = run_workers(2, "steps", kind="sampled", **setting._asdict(), wire_dtype=wire_dtype)
    return {name: found[0][name] for name in ("collectives", "bytes", "collectives_ms")}


def steps(quick: bool) -> Iterable[dict[str, Any]]:
    """The rows for 1, 2 and 4 workers, for scale_out_model.py. The mean over workers.

    CPU time per step hardly depends on other work on the machine.
    """
    for kind, setting in (("sampled", QUICK),) if quick else STEPS:
        for size in (1, 2) if quick else (1, 2, 4):
            found = run_workers(size, "steps", kind=kind, **setting._asdict())
            mean = {
                name: round(statistics.mean(row[name] for row in found), 2) for name in found[0]
            }
            yield {"head": kind, "workers": size, **setting._asdict(), "width": WIDTH, **mean}


def whole(quick: bool) -> Iterable[dict[str, Any]]:
    """Whole steps of `fit`, of sizes that no other part has: the median of three runs."""
    for kind, setting in (("sampled", QUICK),) if quick else WHOLE:
        for size in (1, 2) if quick else (1, 2, 4):
            row = {"head": kind, "workers": size, **setting._asdict(), "width": WIDTH}
            runs = [step_ms(size, setting, kind=kind) for _ in range(1 if quick else 3)]
            yield row | {"ms": statistics.median(runs), "runs": " ".join(map(str, runs))}


def groups(quick: bool) -> Iterable[dict[str, Any]]:
    """With `data_replicas`: bytes that a worker receives per step, measured and by the model."""
    from scale_out_model import Step

    for setting in (QUICK,) if quick else GROUPS:
        for number in (1, 2, 4):
            found = run_workers(
                4, "steps", kind="sampled", **setting._asdict(), data_replicas=number
            )[0]
            step = Step(
                "sampled",
                setting.classes,
                setting.batch,
                setting.candidates,
                trunk=WIDTH * FEATURES + WIDTH,
            )
            formula = sum(size for size, _ in step.collectives(4 // number, number))
            row = {"workers": 4, "groups": number, **setting._asdict(), "width": WIDTH}
            yield (
                row | {n: found[n] for n in ("collectives", "bytes")} | {"formula": round(formula)}
            )


def bytes_received(quick: bool) -> Iterable[dict[str, Any]]:
    setting = QUICK if quick else BYTES
    for size, wire_dtype in itertools.product((2,) if quick else (2, 4), WIRE_DTYPES):
        found = run_workers(size, "bytes", **setting._asdict(), wire_dtype=wire_dtype)[0]
        weights = WIDTH * FEATURES + WIDTH + 1
        wide = 2 if wire_dtype == "bfloat16" else 4
        formula = formula_bytes(size, setting.batch, 1, weights, wide)
        row = {"workers": size, **setting._asdict(), "width": WIDTH, "trunk_weights": weights}
        row["wire_dtype"] = wire_dtype
        measured = found["bytes"] / size
        row |= {"measured": round(measured), "formula": round(formula)}
        yield row | {"ratio": round(measured / formula, 3)}


def formula_bytes(workers: int, batch: int, labels: int, weights: int, wide: int) -> float:
    """Bytes that a worker receives in a step, activations and gradients in `wide` bytes each."""
    share = (workers - 1) / workers
    gathered = 2 * wide * batch * WIDTH + 4 * batch * (1 + 2 * labels)
    whole = 4 * workers * weights  # what all others have, of a small trunk: `Workers.is_small`
    trunk = whole if whole * share <= 2**16 else 2 * wide * weights
    return share * (gathered + 4 * workers * batch * (1 + labels) + trunk)


def collectives(quick: bool) -> Iterable[dict[str, Any]]:
    for size in (2,) if quick else (2, 4):
        for row in run_workers(size, "collectives", sizes=SIZES[:2] if quick else SIZES)[0]["rows"]:
            yield {"workers": size, **row}


PARTS = {
    "equality": equality,
    "memory": memory,
    "overhead": overhead,
    "steps": steps,
    "whole": whole,
    "groups": groups,
    "bytes": bytes_received,
    "collectives": collectives,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument(
        "--head",
        choices=("sampled", "exact", "factored"),
        help="of `steps`: it alone, rows are added",
    )
    parser.add_argument("--classes", type=int, help="of `overhead`: this C alone, rows are added")
    parser.add_argument("--quick", action="store_true", help="small; nothing is written")
    arguments = parser.parse_args()
    if arguments.head:
        STEPS[:] = [each for each in STEPS if each[0] == arguments.head]
    if arguments.classes:
        OVERHEADS[:] = [each for each in OVERHEADS if each.classes == arguments.classes]
    adds = bool(arguments.head or arguments.classes)
    for name in [arguments.only] if arguments.only else PARTS:
        rows = []
        for row in PARTS[name](arguments.quick):
            print(row, flush=True)
            rows.append(row | harness.machine())
            if adds and not arguments.quick:
                harness.append_row(harness.RESULTS / f"scale_out_{name}.csv", rows[-1])
        if not arguments.quick and not adds:
            harness.write_csv(harness.RESULTS / f"scale_out_{name}.csv", rows)


if __name__ == "__main__":
    main()
