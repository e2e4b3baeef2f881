# SPDX-License-Identifier: Apache-2.0
"""Runs of several workers in one process, over a simulated network and disk, by their seeds.

    python tests/distribute/simulation/simulate.py --seed 17            # prints all that happens
    python tests/distribute/simulation/simulate.py --seeds 10000 --csv simulation.csv

By its seed a run has a problem, numbers of workers and of their groups, and what happens to them:
they are killed and stopped, parted, slow, lack a batch, or never start; messages come late, in
another order, or are sent again; power fails, a disk is full, a file is damaged. After a failure
all are started again, some in other numbers or groups, until they are done. `invariants.py` says
what must hold, and `mutations.py` that it would be noticed.
"""

from __future__ import annotations

import argparse
import contextlib
import csv
import os
import random
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[2]))

import tensorflow as tf
from distribute.simulation import worker
from distribute.simulation.disk import FOLDER, Disk, SimulatedPath
from distribute.simulation.invariants import Invariants
from distribute.simulation.mutations import MUTATIONS, mutated
from distribute.simulation.network import (
    HEARTBEAT,
    Process,
    SimulatedWorkers,
    Violation,
    World,
)
from distribute.simulation.numpy_tensorflow import Tensor, in_place_of_tensorflow
from distribute.simulation.problem import Problem

from tfx_largeout.distribute.workers import ALONE

_OF_OTHERS = (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)
KINDS = ("kill", "kill", "stop", "part", "power", "full", "absent", "slow", "damage", "uneven")


class Fault(NamedTuple):
    """An event for a worker, at its n-th use of the network or the disk."""

    kind: str
    rank: int
    at: tuple[str, int]
    seconds: float


class Shape(NamedTuple):
    """Workers of one start: how many are in a group, and how many groups there are."""

    members: int
    groups: int

    @classmethod
    def of(cls, chance: random.Random) -> Shape:
        groups = chance.choice((1, 1, 1, 1, 2, 3))
        return cls(chance.randint(1, (4, 2, 2)[groups - 1]), groups)

    @property
    def size(self) -> int:
        return self.members * self.groups


class Plan(NamedTuple):
    """The workers and the events of each start; no events in the last start."""

    shapes: list[Shape]
    faults: list[list[Fault]]

    @classmethod
    def of(cls, seed: int, kinds: Any = KINDS) -> Plan:
        chance = random.Random(seed)
        starts = chance.choice((1, 2, 2, 3, 4))
        first = Shape.of(chance)
        shapes = [chance.choice((first, first, Shape.of(chance))) for _ in range(starts)]
        faults = []
        for shape in shapes[:-1]:
            number = chance.choice((1, 1, 2))
            faults.append([cls._fault(chance, shape.size, kinds) for _ in range(number)])
        return cls(shapes, [*faults, []])

    @staticmethod
    def _fault(chance: random.Random, size: int, kinds: Any) -> Fault:
        where = chance.choice(("network", "disk"))
        at = (where, chance.randint(1, chance.choice((30, 150))))
        seconds = chance.expovariate(1 / HEARTBEAT)
        return Fault(chance.choice(kinds), chance.randrange(size), at, seconds)


class Run:
    """A run: its starts, one after the other, as a launcher does it."""

    def __init__(self, seed: int) -> None:
        self.plan, self.problem = Plan.of(seed), Problem(seed)
        self.world = World(seed)
        self.disk = Disk(self.world)
        self.invariants = Invariants(self.problem)
        self.world.ended = self._ended
        self.disk.changed = lambda: self.invariants.check_disk(self.disk.names)
        self._number = -1
        self._processes: list[Process] = []
        self._without: dict[int, int] = {}  # which batch a worker lacks

    def run(self) -> None:
        """Raises a `Violation` if anything does not hold."""
        try:
            with in_place_of_tensorflow(worker), self.disk.in_place_of_the_real_one():
                self._start()
                self.world.run()
        finally:
            self.world.end(self._processes)
        if len(self.invariants.ends) < self.invariants.size:
            raise Violation(f"only workers {sorted(self.invariants.ends)} have ended")

    def _start(self) -> None:
        self._number += 1
        self._is_ending, world = False, self.world
        shape = self.plan.shapes[self._number]
        size = shape.size
        self._processes = [Process(world, rank, self._work) for rank in range(size)]
        for process in self._processes:
            process.peers = self._processes
            process.workers = ALONE if size == 1 else SimulatedWorkers(process, Tensor)
            if shape.groups > 1:
                process.workers.divide(shape.groups)
        self.invariants.begin(self._number, *shape, self.disk.names)
        world.faults, world.loss, world.latency = 0, 0.05, 0.001
        world.part(frozenset(), 0.0)
        self.disk.full = {}
        world.say("all", f"START {self._number}: {shape}")
        absent: set[int] = set()
        self._without = {}
        for fault in self.plan.faults[self._number]:
            self._prepare(fault._replace(rank=fault.rank % size), absent)
        for process in self._processes:
            if process.rank not in absent:
                world.after(world.random.uniform(0, 2), process.start)

    def _work(self, process: Process) -> None:
        def observe(kind: str, step: int, value: Any) -> None:
            text = "" if kind == "weights" else value
            self.world.say(process.rank, f"{kind} {step} {text}")
            self.invariants.observe(process.rank, kind, step, value)
            if kind in ("saved", "not saved") and process.rank == 0:
                self.invariants.check_tidy(self.disk.names, kind == "saved")

        place, without = SimulatedPath(FOLDER), self._without.get(process.rank)
        worker.Worker(process.workers, place, self.problem, observe, without).train()

    def _prepare(self, fault: Fault, absent: set[int]) -> None:
        world, process = self.world, self._processes[fault.rank]

        def happens(_: Any = None) -> None:
            world.faults += 1
            world.say("all", f"FAULT {fault}")
            actions = {
                "kill": process.kill,
                "stop": lambda: process.stop(fault.seconds),
                "part": lambda: self._part(fault),
                "power": self._lose_power,
            }
            world.after(0.0, actions[fault.kind])

        if fault.kind in ("kill", "stop", "part", "power"):
            process.at[fault.at] = happens
        elif fault.kind == "damage":
            self._damage()
        elif fault.kind == "uneven" and len(self._processes) > 1:
            self._without[fault.rank] = fault.at[1] % self.problem.steps
        else:
            world.faults += 1
            world.say("all", f"FAULT {fault}")
            if fault.kind == "full":
                self.disk.full[fault.rank] = 1 + fault.at[1] % 12
            elif fault.kind == "slow":
                world.loss, world.latency = 0.3, 0.2
            elif len(absent) < len(self._processes) - 1:
                absent.add(fault.rank)

    def _part(self, fault: Fault) -> None:
        self.world.part(frozenset([fault.rank]), fault.seconds)
        if fault.seconds > HEARTBEAT:
            process = self._processes[fault.rank]
            self.world.after(HEARTBEAT, lambda: process.lost(f"worker {fault.rank} is parted"))

    def _lose_power(self) -> None:
        for process in self._processes:
            process.kill()
        self.disk.lose_power()

    def _damage(self) -> None:
        """Flips bits of the newest checkpoint, if there is another one."""
        names = sorted(name for name in self.disk.names if name.endswith(".npz"))
        inodes = {name: self.disk.names[name] for name in names}
        whole = [name for name in names if inodes[name] not in self.invariants.damaged]
        if len(whole) < 2 or any(inode.came_back for inode in inodes.values()):
            return
        chance, stem = self.world.random, whole[-1].removesuffix(".npz")
        files = sorted(name for name in self.disk.names if name.startswith(stem))
        inode = self.disk.names[chance.choice([n for n in files if n.endswith((".npz", ".part"))])]
        data = bytearray(inode.data)
        for _ in range(8):
            data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        inode.data = inode.durable = bytes(data)
        self.invariants.damaged |= {inode, self.disk.names[whole[-1]]}
        self.invariants.committed = self.invariants.step_of(whole[-2])
        self.world.say("all", f"DAMAGE of {whole[-1]}")

    def _ended(self, process: Process) -> None:
        error = process.error
        allowed = isinstance(error, _OF_OTHERS) and self.world.faults
        if isinstance(error, tf.errors.InvalidArgumentError) and self._without:
            allowed = "workers must all be at the same place" in str(error)
            self.world.faults += 1
        if error is not None and not allowed:
            raise Violation(f"worker {process.rank} ended with {error!r}") from error
        if (error is not None or process.killed) and not self._is_ending:
            self._is_ending = True
            for other in self._processes:
                self.world.after(self.world.random.uniform(0.1, 6), other.kill)
        if self._is_ending and all(other.over for other in self._processes):
            self.world.after(1.0, self._start)


def failure_of(seed: int, mutation: str | None = None) -> str:
    """Runs a seed, with or without a mistake in the package; returns the violation, or ""."""
    run = Run(seed)
    with mutated(mutation) if mutation else contextlib.nullcontext():
        try:
            run.run()
        except Violation as violation:
            return f"seed {seed}: {violation}"
    return ""


def first_failure(mutation: str, most: int) -> int | None:
    """Returns how many seeds it takes until a mistake is noticed, None if more than so many."""
    return next((seed for seed in range(most) if failure_of(seed, mutation)), None)


def print_run(seed: int, mutation: str | None = None) -> bool:
    """Runs a seed and prints all events; returns whether the run was correct."""
    run = Run(seed)
    print(run.plan)
    violation: BaseException | None = None
    with mutated(mutation) if mutation else contextlib.nullcontext():
        try:
            run.run()
        except Violation as error:
            violation = error
    for now, who, what in run.world.trace:
        print(f"{now:10.4f} {who!s:>3} {what}")
    print(f"VIOLATION: {violation}" if violation else "all as it must be")
    return violation is None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, help="this one alone, with all that happens")
    parser.add_argument("--seeds", type=int, default=1000, help="from --first on")
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--mutation", choices=MUTATIONS, help="a mistake in the package")
    parser.add_argument("--csv", type=Path, help="where a row is added")
    given = parser.parse_args()
    if given.seed is not None:
        return 0 if print_run(given.seed, given.mutation) else 1
    start, seeds = time.monotonic(), range(given.first, given.first + given.seeds)
    with ProcessPoolExecutor(given.processes) as pool:
        mutations = [given.mutation] * given.seeds
        found = list(filter(None, pool.map(failure_of, seeds, mutations, chunksize=50)))
    print(*found[:20], sep="\n")
    in_groups = sum(any(shape.groups > 1 for shape in Plan.of(seed).shapes) for seed in seeds)
    row = {"first": given.first, "seeds": given.seeds, "in_groups": in_groups}
    row |= {"processes": given.processes}
    row |= {"seconds": round(time.monotonic() - start, 1), "failures": len(found)}
    print(row)
    if given.csv is not None:
        is_new = not given.csv.exists()
        with given.csv.open("a", newline="") as file:
            writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
            if is_new:
                writer.writeheader()
            writer.writerow(row)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
