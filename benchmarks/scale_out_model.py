# SPDX-License-Identifier: Apache-2.0
"""A model of a step with many workers, from measurements of 1, 2 and 4 workers here.

    python benchmarks/scale_out_model.py    # results/scale_out_model.csv and scale_out_check.csv

    step(R) = work rate / (2 R) + own + collectives (start + hops hop + bytes byte) + wait

The last two collectives of a `SampledHead` run at the same time as the update of rows, a third of
the work, and add only their excess over it.

*work* is the number of multiplications that workers share: B S D for a `SampledHead`, B C D for an
`ExactSoftmaxHead`, B D^2 for a `FactoredHead`. *rate* is the time of one on a core, *own* the time
of each worker that does not depend on R, in one process and in several: both from the CPU time of
steps with 1 and 2 workers (scale_out_steps.csv). *start*, *hop* and *byte* are fitted by least
squares of relative errors over collectives of 2 and 4 workers (scale_out_collectives.csv), where R
workers share two cores and take R / 2 times as long. The model is checked against whole steps of 1,
2 and 4 workers with other C, B and S (scale_out_whole.csv), to which nothing is fitted.

The model assumes that each worker is a machine with two cores like this one, in a network as fast
as two processes here (*byte*: about 3 Gbit/s, limited by copying), and with hops as here. A ring
all-reduce has 2 (R - 1) hops, a gather R - 1, an all-to-all one. *wait*: all wait for the slowest
worker, which takes SPREAD sqrt(2 log R) of the work longer than the mean; SPREAD is from repeated
steps of one process.

Two levels (`data_replicas`): G groups of M workers, R = G M. A group has all classes, a
worker C / M of them; groups divide the batch. The meeting and the sum of the trunk are over all
workers; the examples stay in a group; losses, and gradients of candidates and of label rows, are
sent between groups.
"""

from __future__ import annotations

import csv
import itertools
import math
import statistics
from typing import Any, NamedTuple

import harness
import numpy as np

CORES = 2
WIDTH, LABELS, FEATURES = 128, 1, 64  # of the measurements: scale_out_worker.py
TRUNK, MEMORY = 1_000_000, 64  # weights; GiB of a worker
SIZES = tuple(2**power for power in range(11))
BATCHES = {"8192": lambda size: 8192, "1024 R": lambda size: 1024 * size}
WAYS = {  # head, C, and whether there may be groups
    "sampled": ("sampled", (10**8, 10**9), False),
    "sampled in groups": ("sampled", (10**8, 10**9), True),
    "factored": ("factored", (10**8, 10**9), False),
    "exact": ("exact", (10**6, 10**8), False),
}
QUICK_HOP = 50e-6  # seconds, assumed of machines that do nothing else
HEADS = ("sampled", "exact", "factored")


class Step(NamedTuple):
    """The sizes of a step: C, B of all workers, S, D, K, and weights of the trunk."""

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
        """The bytes of W, b and Adam's slots; for a `FactoredHead` of V."""
        numbers = self.width + 4 if self.head == "factored" else 3 * (self.width + 1) + 2
        return self.classes * 4 * numbers / 2**30

    def collectives(self, members: int, groups: int = 1) -> list[tuple[float, int]]:
        """Bytes that a worker receives and hops, per collective: docs/results/workers.md."""
        others = members * groups - 1
        if others == 0:
            return []
        meeting = 64 * others, others
        trunk = others / (others + 1) * 8 * self.trunk, 2 * others
        size, ring, f = members, 2 * (members - 1), (members - 1) / members
        b, d, k = self.batch / groups, self.width, self.labels
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
        of_group = [
            (f * b * (4 * d + 4 + 8 * k), size - 1),
            ((size - 1) * 4 * b * k, size - 1),
            ((size - 1) * 4 * b, size - 1),
            (f * 4 * b * d, 1),
        ]
        own_rows, all_rows = ((self.candidates + n * k) / members for n in (b, self.batch))
        of_replicas = [
            ((groups - 1) * 12 * b, groups - 1),
            ((groups - 1) * 16, groups - 1),
            ((groups - 1) * 4 * own_rows, groups - 1),
            ((groups - 1) / groups * 8 * all_rows * (d + 1), 2 * (groups - 1)),
        ]
        return [
            meeting,
            *(of_group if members > 1 else []),
            *(of_replicas if groups > 1 else []),
            trunk,
        ]


class Model(NamedTuple):
    """Seconds: a multiplication of a core, and what each worker does, by head; of a collective."""

    rate: dict[str, float]
    own: dict[str, float]  # of one process
    own_of_several: dict[str, float]
    start: float
    hop: float
    byte: float
    spread: float

    def seconds(self, step: Step, members: int, groups: int = 1) -> dict[str, float]:
        """The seconds of a step, and of its parts, on machines like this one."""
        size = members * groups
        work = self.rate[step.head] * step.work / CORES / size
        parts = step.collectives(members, groups)
        each = [self.start + hops * self.hop + number * self.byte for number, hops in parts]
        sent = sum(each)
        if step.head == "sampled" and groups == 1:  # dL/dh and hidden layers, beside the update
            sent -= min(sum(each[-2:]), work / 3)
        wait = work * self.spread * math.sqrt(2 * math.log(size))
        own = (self.own if size == 1 else self.own_of_several)[step.head]
        found = {"step": work + own + sent + wait, "work": work, "own": own}
        return found | {"collectives": sent, "wait": wait, "bytes": sum(n for n, _ in parts)}


def fitted() -> Model:
    """Returns the model of the measurements here."""
    rates, owns, several = {}, {}, {}
    for head in HEADS:
        rows = [row for row in read("steps") if row["head"] == head]
        seconds = {size: seconds_of(rows, size) for size in (1, 2)}
        ones = np.array([[step.work, 1.0] for step, _ in seconds[1]])
        measured = np.array([of_cores for _, of_cores in seconds[1]])
        rates[head], owns[head] = not_negative(ones / measured[:, np.newaxis])
        more = [of_cores - rates[head] * step.work / 2 for step, of_cores in seconds[2]]
        several[head] = max(statistics.median(more), owns[head])
    collectives = not_negative(np.array([terms(row) for row in read("collectives")]))
    rows = [row for row in read("overhead") if row["wire_dtype"] == "float32"]
    one = [float(row["one_ms"]) for row in rows[:-1]]  # the last is of another size
    return Model(rates, owns, several, *collectives, statistics.stdev(one) / statistics.mean(one))


def seconds_of(rows: list[dict[str, str]], size: int) -> list[tuple[Step, float]]:
    """The steps measured with `size` workers, and the core seconds per worker in each."""
    found = [row for row in rows if int(row["workers"]) == size]
    return [(step_of(row), float(row["cores_ms"]) / 1000) for row in found]


def step_of(row: dict[str, str]) -> Step:
    """The step of a row of scale_out_steps.csv or scale_out_whole.csv."""
    sizes = (int(row[name]) for name in ("classes", "batch", "candidates"))
    return Step(row["head"], *sizes, trunk=WIDTH * FEATURES + WIDTH)


def terms(row: dict[str, str]) -> np.ndarray:
    """The factors of the constants of a collective, divided by its seconds."""
    size, kind = int(row["workers"]), row["collective"]
    share = (size - 1) / size
    received = {"gather": size - 1, "all_reduce": 2 * share, "all_to_all": share}[kind]
    hops = {"gather": size - 1, "all_reduce": 2 * (size - 1), "all_to_all": 1}[kind]
    crowd = size / CORES / (float(row["ms"]) / 1000)
    return crowd * np.array([1.0, hops, received * int(row["bytes"])])


def not_negative(matrix: np.ndarray) -> np.ndarray:
    """Returns x >= 0 with the least |A x - 1|, by coordinates."""
    sizes = np.abs(matrix).max(axis=0)
    matrix, x = matrix / sizes, np.zeros(matrix.shape[1])
    squares = (matrix**2).sum(axis=0)
    for _ in range(20_000):
        for column, square in enumerate(squares):
            residual = 1 - matrix @ x
            x[column] = max(x[column] + matrix[:, column] @ residual / square, 0.0)
    return x / sizes


def read(part: str) -> list[dict[str, str]]:
    """The rows of a part of scale_out.py."""
    with (harness.RESULTS / f"scale_out_{part}.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def check(model: Model) -> list[dict[str, Any]]:
    """Steps that the fit has not seen: modelled and measured."""
    rows = []
    for row in read("whole"):
        size, step, ms = int(row["workers"]), step_of(row), float(row["ms"])
        parts = model.seconds(step, size)
        # All workers share the cores of this machine; two workers have one each.
        crowd = max(1.0, size / CORES)
        seconds = size * (parts["work"] + parts["wait"])
        reckoned = 1000 * (seconds + crowd * (parts["own"] + parts["collectives"]))
        found = {n: row[n] for n in ("head", "classes", "batch", "candidates")}
        found |= {"workers": size, "measured_ms": ms, "reckoned_ms": round(float(reckoned), 1)}
        rows.append(found | {"off": round(abs(float(reckoned) / ms - 1), 3)})
    return rows


def best(model: Model, step: Step, size: int, two_levels: bool) -> dict[str, Any]:
    """The fastest setup of `size` workers that holds W: one group, or any number."""
    groups = [size // members for members in SIZES if members <= size] if two_levels else [1]
    found = []
    for number in groups:
        members = size // number
        gib = step.gib / members
        parts = model.seconds(step, members, number)
        found.append({"groups": number, "gib": round(gib, 1), **parts})
    fits = [row for row in found if row["gib"] <= MEMORY] or found
    return min(fits, key=lambda row: row["step"])


def main() -> None:
    model = fitted()
    numbers = {n: x for n, x in model._asdict().items() if not isinstance(x, dict)}
    print({name: f"{value:.3g}" for name, value in numbers.items()})
    for name in ("rate", "own", "own_of_several"):
        print(name, {head: f"{x:.3g}" for head, x in getattr(model, name).items()})
    checked = check(model)
    print(*checked, sep="\n")
    harness.write_csv(harness.RESULTS / "scale_out_check.csv", checked)
    rows = []
    hops = {"as here": model, "50 us": model._replace(hop=QUICK_HOP)}
    for way, (head, numbers, two_levels) in WAYS.items():
        for classes, batches, hop in itertools.product(numbers, BATCHES, hops):
            for size in SIZES:
                step = Step(head, classes, BATCHES[batches](size), 20_000)
                found = best(hops[hop], step, size, two_levels)
                row = {"way": way, "classes": classes, "batch": batches, "hop": hop}
                row |= {"workers": size, "groups": found["groups"], "gib_of_worker": found["gib"]}
                row["fits"] = found["gib"] <= MEMORY
                for part in ("step", "work", "own", "collectives", "wait"):
                    row[f"{part}_ms"] = round(1000 * found[part], 1)
                row["mib"] = round(found["bytes"] / 2**20, 2)
                alone = model.seconds(step, 1)["step"]
                row["efficiency"] = round(alone / size / found["step"], 3)
                row["examples_s"] = round(step.batch / found["step"])
                rows.append(row | harness.machine())
    harness.write_csv(harness.RESULTS / "scale_out_model.csv", rows)


if __name__ == "__main__":
    main()
