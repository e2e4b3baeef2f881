# SPDX-License-Identifier: Apache-2.0
"""Runs that are killed repeatedly with SIGKILL, and compared with an uninterrupted run.

python killed_runs.py KIND KILLS FOLDER [CSV SEED]    # a row for each kill; prints a summary

Half of the kills come at a random moment, half as soon as an unfinished file appears. Processes are
forked from a process that has only imported TensorFlow; every tenth is started from scratch.
"""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path
from typing import NamedTuple

import training_runs

EVERY = {"sampled": ("epoch", 7), "factored": ("epoch", 7), "hessian_free": ("epoch", 3)}
RUNS = str(Path(training_runs.__file__))
FRESH = 10
MOST_SECONDS = 120


class Child:
    """A training run in a separate process."""

    def __init__(self, kind: str, folder: Path, every: str | int, fresh: bool) -> None:
        self.output = folder.with_suffix(".json")
        self.output.unlink(missing_ok=True)
        self.process = None
        self.status = None
        if fresh:
            with self.output.open("w") as file:
                command = [sys.executable, RUNS, kind, str(folder), str(every)]
                self.process = subprocess.Popen(command, stdout=file)
            self.pid = self.process.pid
            return
        self.pid = os.fork()
        if self.pid == 0:
            try:
                result = training_runs.train(kind, folder, every)
                self.output.write_text(json.dumps(result))
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)

    def has_ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None

    def kill(self) -> None:
        os.kill(self.pid, signal.SIGKILL)
        os.waitpid(self.pid, 0)
        if self.process is not None:
            self.process.returncode = -signal.SIGKILL

    def wait(self, seconds: float) -> bool:
        """Waits for a time, or until it has ended; returns whether it has ended."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.has_ended():
            time.sleep(0.002)
        return self.has_ended()

    def wait_for_save(self, number: int) -> bool:
        """Waits until file `number` is being written; returns whether the run has ended instead."""
        seen, last = 0, None
        end = time.monotonic() + MOST_SECONDS
        while time.monotonic() < end:
            names = unfinished(self.output.with_suffix(""))
            if names and names != last:
                seen += 1
                if seen == number:
                    return False
            last = names
            if self.has_ended():
                return True
            time.sleep(0.0003)
        raise TimeoutError(f"nothing was saved in {MOST_SECONDS} s")


class Kill(NamedTuple):
    kind: str
    seed: int
    run: int
    every: str | int
    moment: str
    fresh_process: bool
    seconds: float
    unfinished_file: bool
    checkpoints: int


def unfinished(folder: Path) -> list[tuple[str, int]]:
    """Returns names and inodes of files that are being written, or that a killed process left."""
    try:
        return sorted((path.name, path.stat().st_ino) for path in folder.glob("*.tmp"))
    except FileNotFoundError:  # it has just got its name
        return []


def result_of(kind: str, folder: Path, every: str | int) -> str:
    """Returns the result of an uninterrupted run, in a separate process, as JSON."""
    child = Child(kind, folder, every, fresh=False)
    if not child.wait(MOST_SECONDS) or child.status:
        raise RuntimeError(f"the run without a break has failed: {child.status}")
    return child.output.read_text()


def killed_run(
    kind: str, seed: int, run: int, kills: int, folder: Path, expected: str, length: float
) -> tuple[list[Kill], bool]:
    """Kills a run up to `kills` times, then lets it end; returns whether its result is the same."""
    rows: list[Kill] = []
    every = EVERY[kind][run % 2]
    rng = random.Random(f"{kind} {seed} {run}")
    while True:
        fresh = rng.randrange(FRESH) == 0
        start, before = time.monotonic(), unfinished(folder)
        child = Child(kind, folder, every, fresh)
        moment = rng.choice(("random", "save"))
        if len(rows) == kills:
            ended = child.wait(MOST_SECONDS)
        elif moment == "random":
            ended = child.wait(rng.uniform(0, length + (6 if fresh else 0)))
        else:
            ended = child.wait_for_save(rng.randint(1, 4))
            time.sleep(rng.choice((0, 0, rng.uniform(0, 0.004))))
        if ended or child.has_ended():
            result = child.output.read_text() if child.output.exists() else ""
            return rows, result.strip() == expected
        child.kill()
        seconds = round(time.monotonic() - start, 3)
        left, whole = unfinished(folder) not in ([], before), len(list(folder.glob("*.npz")))
        rows.append(Kill(kind, seed, run, every, moment, fresh, seconds, left, whole))


def table(kind: str, kills: int, folder: Path, seed: int) -> tuple[list[Kill], list[bool]]:
    """Kills runs `kills` times in all; returns the kills, and for each run whether its result
    equals the run without a break, bitwise."""
    start = time.monotonic()
    expected = [result_of(kind, folder / f"{kind}_{every}", every) for every in EVERY[kind]]
    length = (time.monotonic() - start) / len(expected)
    assert len(set(expected)) == 1, "how often is saved must not change the run"
    rows: list[Kill] = []
    same: list[bool] = []
    while len(rows) < kills:
        place = folder / f"{kind}_{len(same):03d}"
        some = min(kills - len(rows), 5)
        own, is_same = killed_run(kind, seed, len(same), some, place, expected[0], length)
        rows += own
        same.append(is_same)
        print(kind, len(rows), "kills", same.count(True), "of", len(same), "runs", flush=True)
        shutil.rmtree(place, ignore_errors=True)
    return rows, same


def main(kind: str, kills: int, folder: Path, path: Path | None = None, seed: int = 0) -> dict:
    folder.mkdir(parents=True, exist_ok=True)
    rows, same = table(kind, kills, folder, seed)
    if path is not None:
        is_new = not path.exists()
        with path.open("a", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            if is_new:
                writer.writerow([*Kill._fields, "run_is_the_unbroken_one"])
            writer.writerows([*row, same[row.run]] for row in rows)
    return {
        "kills": len(rows),
        "in_a_save": sum(row.unfinished_file for row in rows),
        "runs": len(same),
        "same": same.count(True),
    }


if __name__ == "__main__":
    given = sys.argv[4:]
    csv_path, chosen = (Path(given[0]), int(given[1])) if given else (None, 0)
    print(json.dumps(main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), csv_path, chosen)))
