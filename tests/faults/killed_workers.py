# SPDX-License-Identifier: Apache-2.0
"""Runs of two workers; one is killed or stopped at a random moment, and the run continues.

python killed_workers.py RUNS FOLDER [CSV SEED]    # a row per run; prints a summary

Each run is `tfx-largeout launch --restarts 3`. A random worker gets SIGKILL or SIGSTOP, at a random
moment or as soon as it writes a checkpoint. The run must end by itself, bit for bit like an
uninterrupted run. As a worker: python killed_workers.py --worker FOLDER.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))

LAUNCH = "import sys; from tfx_largeout.compare.cli import main; sys.exit(main(sys.argv[1:]))"
SIZE, EPOCHS = 2, 40
MOST_SECONDS = 240
POLL = 0.0005


class Run(NamedTuple):
    """The action on a run, and its result."""

    seed: int
    run: int
    rank: int
    signal: str
    moment: str
    at_seconds: float
    in_a_save: bool
    checkpoints: int
    end_seconds: float
    restarts: int
    names_the_worker: bool
    is_the_unbroken_one: bool


def work(folder: Path) -> None:
    """Trains as a worker; writes a digest of its model's state at the end."""
    from distribute import checkpoints

    import tfx_largeout as tlo

    rank = tlo.distribute.connect(timeout=120, heartbeat_timeout=10).rank
    model = checkpoints.model_of("indexed")
    (folder / f"pid-{rank}").write_text(str(os.getpid()))
    saved = tlo.callbacks.Checkpoint(folder / "run", every=4)
    data = saved.data(checkpoints.of_epoch)
    history = model.fit(data, epochs=EPOCHS, shuffle=False, verbose=0, callbacks=[saved]).history
    digest = hashlib.sha256(json.dumps(history, sort_keys=True).encode())
    for name, array in checkpoints.state(model).items():
        digest.update(name.encode() + array.tobytes())
    (folder / f"end-{rank}").write_text(digest.hexdigest())


def launched(folder: Path) -> subprocess.Popen[str]:
    """Starts the workers under a launcher."""
    folder.mkdir(parents=True)
    options = ["--workers", str(SIZE), "--restarts", "3", __file__, "--worker", str(folder)]
    return subprocess.Popen(
        [sys.executable, "-c", LAUNCH, "launch", *options],
        stdout=(folder / "output").open("w"),
        stderr=subprocess.STDOUT,
        text=True,
    )


def ends(folder: Path) -> list[str]:
    files = [folder / f"end-{rank}" for rank in range(SIZE)]
    return [file.read_text() if file.exists() else "" for file in files]


def unbroken(folder: Path) -> tuple[list[str], float]:
    """Returns the digests of a run without a break, and the seconds that it trained."""
    launcher = launched(folder)
    if launcher.wait(MOST_SECONDS):
        raise RuntimeError("the run without a break has failed: " + (folder / "output").read_text())
    begun = (folder / "pid-0").stat().st_mtime
    return ends(folder), (folder / "end-0").stat().st_mtime - begun


def wait_for(condition: Any, launcher: subprocess.Popen[str]) -> bool:
    """Waits for a condition; returns whether the run was still active."""
    end = time.monotonic() + MOST_SECONDS
    while not condition() and launcher.poll() is None and time.monotonic() < end:
        time.sleep(POLL)
    return launcher.poll() is None


def is_saving(folder: Path, rank: int) -> bool:
    """Whether a worker writes its part of a checkpoint."""
    return any(folder.glob(f"*-{rank}-of-{SIZE}.part.tmp"))


def broken(seed: int, run: int, folder: Path, expected: list[str], length: float) -> Run:
    """Interrupts a run, and lets it end."""
    rng = random.Random(f"{seed} {run}")
    rank, moment = rng.randrange(SIZE), rng.choice(("random", "save"))
    number = rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGSTOP))
    launcher, pid = launched(folder), folder / f"pid-{rank}"
    wait_for(lambda: pid.exists() and pid.read_text(), launcher)
    begun = time.monotonic()
    wait = rng.uniform(0, 0.8 * length)
    wait_for(lambda: time.monotonic() - begun > wait, launcher)
    is_on = launcher.poll() is None
    if moment == "save":
        is_on = wait_for(lambda: is_saving(folder / "run", rank), launcher)
    if not is_on:  # it has ended before
        shutil.rmtree(folder)
        return broken(seed, run, folder, expected, length / 2)
    in_a_save = is_saving(folder / "run", rank)
    os.kill(int(pid.read_text()), number)
    at = time.monotonic() - begun
    checkpoints = len(list((folder / "run").glob("*.npz")))
    try:
        code = launcher.wait(MOST_SECONDS)
    except subprocess.TimeoutExpired:
        launcher.send_signal(signal.SIGINT)
        code = launcher.wait()
    output = (folder / "output").read_text()
    return Run(
        seed,
        run,
        rank,
        number.name,
        moment,
        round(at, 3),
        in_a_save,
        checkpoints,
        round(time.monotonic() - begun - at, 1),
        output.count("starting all workers again"),
        f"tlo.distribute: worker {rank} of {SIZE} " in output,
        code == 0 and ends(folder) == expected,
    )


def add_row(path: Path, row: Run) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        if is_new:
            writer.writerow(Run._fields)
        writer.writerow(row)


def main(runs: int, folder: Path, path: Path | None = None, seed: int = 0) -> dict[str, Any]:
    """Breaks `runs` runs, and adds a row of each to a file."""
    expected, length = unbroken(folder / "unbroken")
    print(f"{length:.1f} seconds without a break", flush=True)
    rows = []
    for run in range(runs):
        rows.append(broken(seed, run, folder / str(run), expected, length))
        print(rows[-1], flush=True)
        if rows[-1].is_the_unbroken_one and rows[-1].names_the_worker:
            shutil.rmtree(folder / str(run))
        if path is not None:
            add_row(path, rows[-1])
    return {
        "runs": len(rows),
        "in_a_save": sum(row.in_a_save for row in rows),
        "named": sum(row.names_the_worker for row in rows),
        "same": sum(row.is_the_unbroken_one for row in rows),
        "longest_seconds": max(row.end_seconds for row in rows),
    }


if __name__ == "__main__":
    if sys.argv[1] == "--worker":
        work(Path(sys.argv[2]))
    else:
        given = sys.argv[3:]
        csv_path, chosen = (Path(given[0]), int(given[1])) if given else (None, 0)
        print(json.dumps(main(int(sys.argv[1]), Path(sys.argv[2]), csv_path, chosen)))
