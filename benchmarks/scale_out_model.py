# SPDX-License-Identifier: Apache-2.0
"""A step over many workers, reckoned from steps of 1, 2 and 4 workers here (scale_out_steps.csv).

    python benchmarks/scale_out_model.py      # the fit, its check, and results/scale_out_model.csv

    step(R) = work rate / R + own + collectives (start + hops hop + bytes byte) + wait

*work* are multiplications that workers divide: B S D of a `SampledHead`, B C D of an
`ExactSoftmaxHead`, B D^2 of a `FactoredHead`. *rate*, and *own*, what each worker does for itself,
are of a head; *start*, *hop* and *byte* of all. Here R workers share two cores: *rate* is divided
by 2 then, whatever R is, and all else takes R / 2 times as long. The fit is that of least squares
of relative errors, none below 0, over all rows but those of HELD_BACK, against which it is checked.

Elsewhere each worker is a machine like this one, with a network of 10 or 100 Gbit/s, of which 90%
are used, but no more than processes reach here. A ring all-reduce has 2 (R - 1) hops, a gather
R - 1, an all-to-all one. *wait*: all wait for the slowest, SPREAD sqrt(2 log R) of the work above
the mean, SPREAD from repeated steps of one process (scale_out_overhead.csv).

Two levels: G groups of M workers, R = G M. A group has all classes, a worker C / M of them; groups
divide the batch. Within a group all is as above; then gradients of candidates are added up between
the groups, and those of label rows gathered.
"""

from __future__ import annotations

import csv
import math
import statistics
from typing import Any, NamedTuple

import harness
import numpy as np

HELD_BACK = ("sampled", 4096, 16_000)  # head, B, S
WIDTH, LABELS, FEATURES = 128, 1, 64  # of the rows that are fitted: scale_out_worker.py
TRUNK, SHARE_OF_WIRE, MEMORY = 1_000_000, 0.9, 64  # weights; of a network; GiB of a worker
SIZES = tuple(2**power for power in range(11))
BATCHES = {"8192": lambda size: 8192, "1024 R": lambda size: 1024 * size}
COMMON = ("start", "hop", "byte")
HEADS = ("sampled", "exact", "factored")


class Step(NamedTuple):
    """What workers do in a step: C, B of all, S, D, K, and weights of the trunk."""

    head: str
    classes: int
    batch: float
    candidates: int
    width: int = WIDTH
    labels: int = LABELS
    trunk: int = TRUNK

    @property
    def work(self) -> float:
        """Multiplications that workers divide."""
        columns = {"sampled": self.candidates, "exact": self.classes, "factored": self.width}
        return self.batch * self.width * columns[self.head]

    @property
    def gib(self) -> float:
        """Of W, b and the slots of Adam; of a `FactoredHead` V."""
        numbers = self.width + 4 if self.head == "factored" else 3 * (self.width + 1) + 2
        return self.classes * 4 * numbers / 2**30

    def collectives(self, size: int) -> list[tuple[float, int]]:
        """Bytes that a worker receives, and hops, of each: docs/scale_out.md."""
        if size == 1:
            return []
        f, ring = (size - 1) / size, 2 * (size - 1)
        b, d, k = self.batch, self.width, self.labels
        meeting, trunk = (64 * (size - 1), size - 1), (f * 8 * self.trunk, ring)
        if self.head == "factored":
            return [
                meeting,
                (f * b * (8 + 8 * k), size - 1),
                (f * 4 * b / size * k * d, 1),
                (f * 4 * b * (k + 2), size - 1),
                (f * 4 * b / size * k * d, 1),
                (f * 8 * (3 * d * d + 2 * d + 8), ring),
                trunk,
            ]
        return [
            meeting,
            (f * b * (4 * d + 4 + 8 * k), size - 1),
            (f * 8 * b * k, ring),
            ((size - 1) * 4 * b, size - 1),
            (f * 4 * b * d, 1),
            trunk,
        ]

    def between_groups(self, members: int, groups: int) -> list[tuple[float, int]]:
        """The same between groups that have all classes each: gradients of rows."""
        if groups == 1:
            return []
        f, d = (groups - 1) / groups, self.width
        rows = self.candidates if self.head == "sampled" else self.classes
        of_labels = (groups - 1) * self.batch / groups * self.labels / members * (4 * d + 8)
        return [
            (f * 8 * rows / members * (d + 1), 2 * (groups - 1)),
            (of_labels if self.head == "sampled" else 0.0, groups - 1),
            (f * 8 * self.trunk, 2 * (groups - 1)),
        ]


class Model(NamedTuple):
    """Seconds: a multiplication, and what each does for itself, by head; and of a collective."""

    rate: dict[str, float]
    own: dict[str, float]
    start: float
    hop: float
    byte: float
    spread: float

    def seconds(self, step: Step, members: int, groups: int, gigabits: float) -> dict[str, float]:
        """Of a step, and of its parts, on machines like this one."""
        size, of_group = members * groups, step._replace(batch=step.batch / groups)
        work = 2 * self.rate[step.head] / harness_cores() * step.work / size
        parts = [*of_group.collectives(members), *step.between_groups(members, groups)]
        of_byte = max(8e-9 / gigabits / SHARE_OF_WIRE, self.byte)
        sent = sum(self.start + hops * self.hop + number * of_byte for number, hops in parts)
        wait = work * self.spread * math.sqrt(2 * math.log(size))
        own = self.own[step.head]
        found = {"step": work + own + sent + wait, "work": work, "own": own}
        return found | {"collectives": sent, "wait": wait, "bytes": sum(n for n, _ in parts)}


def harness_cores() -> int:
    """Cores of a machine like this one."""
    return 2


def terms(row: dict[str, str]) -> np.ndarray:
    """What the constants of a row's step are multiplied by: rates, owns, and those of all."""
    step, size = step_of(row), int(row["workers"])
    crowd = max(size / harness_cores(), 1.0)
    parts = step.collectives(size)
    of_head = [float(step.head == head) for head in HEADS]
    return np.array(
        [step.work * is_it for is_it in of_head]
        + [crowd * is_it for is_it in of_head]
        + [crowd * len(parts), crowd * sum(hops for _, hops in parts)]
        + [crowd * sum(number for number, _ in parts)]
    )


def step_of(row: dict[str, str]) -> Step:
    """The step of a row of scale_out_steps.csv."""
    sizes = (int(row[name]) for name in ("classes", "batch", "candidates"))
    return Step(row["head"], *sizes, trunk=WIDTH * FEATURES + WIDTH)


def fitted(rows: list[dict[str, str]]) -> tuple[Model, np.ndarray]:
    """Returns the model, and its constants as `terms` has them."""
    measured = np.array([float(row["ms_10"]) / 1000 for row in rows])
    scaled = np.array([terms(row) for row in rows]) / measured[:, np.newaxis]
    sizes = np.maximum(np.abs(scaled).max(axis=0), 1e-30)
    found = not_negative(scaled / sizes) / sizes
    number = len(HEADS)
    rate, own = (
        dict(zip(HEADS, found[at : at + number].tolist(), strict=True)) for at in (0, number)
    )
    one = [float(row["one_ms"]) for row in read("overhead")[:-1]]
    spread = statistics.stdev(one) / statistics.mean(one)
    return Model(rate, own, *found[2 * number :].tolist(), spread), found


def not_negative(matrix: np.ndarray) -> np.ndarray:
    """Returns x >= 0 with the least |A x - 1|, by coordinates."""
    x, target = np.zeros(matrix.shape[1]), np.ones(len(matrix))
    squares = np.maximum((matrix**2).sum(axis=0), 1e-30)
    for _ in range(20_000):
        for column, square in enumerate(squares):
            residual = target - matrix @ x
            x[column] = max(x[column] + matrix[:, column] @ residual / square, 0.0)
    return x


def read(part: str) -> list[dict[str, str]]:
    """The rows of a part of scale_out.py."""
    with (harness.RESULTS / f"scale_out_{part}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def is_held_back(row: dict[str, str]) -> bool:
    """Whether the fit does not see it."""
    return (row["head"], int(row["batch"]), int(row["candidates"])) == HELD_BACK


def best(model: Model, step: Step, size: int, gigabits: float, two_levels: bool) -> dict[str, Any]:
    """The quickest way of so many workers to which W fits: one group, or any."""
    groups = [size // members for members in SIZES if members <= size] if two_levels else [1]
    found = []
    for number in groups:
        members = size // number
        gib = step.gib / members
        parts = model.seconds(step, members, number, gigabits)
        found.append({"groups": number, "gib": round(gib, 1), **parts})
    fits = [row for row in found if row["gib"] <= MEMORY] or found
    return min(fits, key=lambda row: row["step"])


def main() -> None:
    rows = read("steps")
    model, constants = fitted([row for row in rows if not is_held_back(row)])
    print(model)
    for row in rows:
        reckoned = 1000 * terms(row) @ constants
        off = reckoned / float(row["ms_10"]) - 1
        mark = "held back" if is_held_back(row) else ""
        print(*(row[n] for n in ("head", "batch", "candidates", "workers", "ms_10")), end=" ")
        print(f"{reckoned:.1f} {off:+.0%} {mark}")
    reckoned = []
    for head, classes, two_levels in (
        *(("sampled", classes, levels) for classes in (10**8, 10**9) for levels in (False, True)),
        ("factored", 10**9, False),
        ("exact", 10**8, False),
    ):
        for batches, batch_of in BATCHES.items():
            for gigabits in (10, 100):
                for size in SIZES:
                    step = Step(head, classes, batch_of(size), 20_000)
                    way = best(model, step, size, gigabits, two_levels)
                    alone = model.seconds(step, 1, 1, gigabits)["step"]
                    row = {"head": head, "levels": 1 + two_levels, "classes": classes}
                    row |= {"batch": batches, "gbit_s": gigabits, "workers": size}
                    row |= {"groups": way["groups"], "gib_of_worker": way["gib"]}
                    row |= {f"{n}_ms": round(1000 * way[n], 1) for n in ("step", "work", "own")}
                    row |= {f"{n}_ms": round(1000 * way[n], 1) for n in ("collectives", "wait")}
                    row["mib"] = round(way["bytes"] / 2**20, 2)
                    row["efficiency"] = round(alone / size / way["step"], 3)
                    reckoned.append(row | harness.machine())
    harness.write_csv(harness.RESULTS / "scale_out_model.csv", reckoned)


if __name__ == "__main__":
    main()
