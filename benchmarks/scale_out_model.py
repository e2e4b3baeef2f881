# SPDX-License-Identifier: Apache-2.0
"""A step over many workers and real networks, reckoned from what two workers here have measured.

    python benchmarks/scale_out_model.py      # writes results/scale_out_model.csv

    step(R) = work / R + rest + sum over collectives of (base + hops hop + bytes / rate)

*work*: the step of one process at B = 8,192, S = 20,000 shared, D = 128, whatever C is
(scale_out_overhead.csv, its last row). *rest*: what two workers took more there, but for their
collectives, and each worker does whatever R is; they had a core each, so half of it. *base*: what a
small collective of two workers takes; *rate*: that of copying, from what the largest ones add for a
byte (both scale_out_collectives.csv), or 90% of the network's, whichever is less. Assumed, as there
is one machine only: *hop*, 50 microseconds from one machine to the next; workers each like this
machine. A ring all-reduce has 2 (R - 1) hops, a gather R - 1, an all-to-all one. The memory is that
of W, b and Adagrad's slots.
"""

from __future__ import annotations

import csv
import statistics
from typing import NamedTuple

import harness

CLASSES, BATCH, WIDTH, LABELS, TRUNK = 100_000_000, 8192, 128, 1, 1_000_000
HOP, SHARE_OF_WIRE = 50e-6, 0.9
SIZES = (1, 2, 4, 8, 16, 32, 64)
NETWORKS = (10, 100)  # Gbit/s


class Constants(NamedTuple):
    """Seconds: work that is divided, and not; a small collective, and a byte in the machine."""

    work: float
    rest: float
    base: float
    byte: float


class Collective(NamedTuple):
    """Bytes that a worker receives, and messages one after the other."""

    bytes: float
    hops: int


def fitted() -> Constants:
    """Returns the constants that the rows measured here give."""
    rows = [row for row in _rows("collectives") if row["workers"] == "2"]
    small = [float(row["ms"]) for row in rows if int(row["bytes"]) <= 4096]
    largest = max(int(row["bytes"]) for row in rows)
    received = {"gather": 1.0, "all_reduce": 1.0, "all_to_all": 0.5}  # of its bytes, two workers
    base = statistics.median(small) / 1000
    bytes_of = [
        (float(row["ms"]) / 1000 - base) / (largest * received[row["collective"]])
        for row in rows
        if int(row["bytes"]) == largest
    ]
    one, two = (float(_rows("overhead")[-1][name]) / 1000 for name in ("one_ms", "two_ms"))
    constants = Constants(one, 0.0, base, statistics.median(bytes_of))
    return constants._replace(rest=(two - one - communication(2, NETWORKS[-1], constants)) / 2)


def collectives(size: int, wide: int = 4) -> list[Collective]:
    """The six of a step, with h and dL/dh in so many bytes a number: docs/scale_out.md."""
    share, ring = (size - 1) / size, 2 * (size - 1)
    return [
        Collective(64 * (size - 1), size - 1),
        Collective(share * BATCH * (wide * WIDTH + 4 + 8 * LABELS), size - 1),
        Collective(share * 8 * BATCH * LABELS, ring),
        Collective((size - 1) * 4 * BATCH, size - 1),
        Collective(share * wide * BATCH * WIDTH, 1),
        Collective(share * 8 * TRUNK, ring),
    ]


def communication(size: int, gigabits: float, constants: Constants, wide: int = 4) -> float:
    """Seconds of all collectives of a step."""
    if size == 1:
        return 0.0
    of_byte = max(8e-9 / gigabits / SHARE_OF_WIRE, constants.byte)
    parts = collectives(size, wide)
    return sum(constants.base + part.hops * HOP + part.bytes * of_byte for part in parts)


def main() -> None:
    constants = fitted()
    print(constants)
    rows = []
    for gigabits in NETWORKS:
        for size in SIZES:
            work = constants.work / size
            rest = constants.rest if size > 1 else 0.0
            step = work + rest + communication(size, gigabits, constants)
            halved = work + rest + communication(size, gigabits, constants, wide=2)
            row = {"workers": size, "gbit_s": gigabits, "classes": CLASSES, "batch": BATCH}
            row |= {"step_ms": round(1000 * step, 1), "work_ms": round(1000 * work, 1)}
            row["rest_ms"] = round(1000 * rest, 1)
            row["bfloat16_step_ms"] = round(1000 * halved, 1)
            row["efficiency"] = round(constants.work / (size * step), 3)
            row["mib"] = round(sum(part.bytes for part in collectives(size)) / 2**20, 2)
            row["gib_of_worker"] = round(CLASSES * (8 * WIDTH + 8) / size / 2**30, 1)
            rows.append(row | harness.machine())
            print(row)
    harness.write_csv(harness.RESULTS / "scale_out_model.csv", rows)


def _rows(part: str) -> list[dict[str, str]]:
    with (harness.RESULTS / f"scale_out_{part}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


if __name__ == "__main__":
    main()
