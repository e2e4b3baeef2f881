# SPDX-License-Identifier: Apache-2.0
"""Kills by SIGKILL at random moments of a save: the last file, or the new one, must be whole.

    python benchmarks/killed_saves.py --kills 50 --gb 1    # rows of results/killed_saves.csv

A process saves the same arrays repeatedly, each time with another number in all of them, and is
killed at a random moment: up to 1.2 times the duration of a save after its start, or, in half of
the cases, up to 0.3 times this after an unfinished file has appeared. Then another process loads
the file: all numbers must belong to one save, the last one reported as done or the next one. At the
end, one more save must leave no other files.

- `keras`: `tlo.save_model` of a `SampledHead`, loaded by `keras.saving.load_model`.
- `export`: `tlo.export`, each time to a new folder, read by TensorFlow.
- `checkpoint`: the file of `callbacks.Checkpoint`, with arrays created one by one.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.callbacks.checkpoint_file import write_checkpoint
from tfx_largeout.callbacks.checkpoint_folder import CheckpointFolder
from tfx_largeout.ops.rows.large_variables import blocks_of_rows, read_rows
from tfx_largeout.ops.rows.variable_rows import bare_variable, ids_between, scatter_update

WIDTH, BLOCK = 128, 2**18  # of an export
ARRAYS = 10  # of a checkpoint


class OfModel:
    """A model with a W of `gb` GB."""

    def __init__(self, folder: Path, gb: float) -> None:
        self.folder = folder
        self.classes = math.ceil(gb * 1e9 / 4 / WIDTH / BLOCK) * BLOCK  # none is filled up

    def prepare(self) -> None:
        head = tlo.heads.SampledHead(
            self.classes,
            tlo.samplers.Uniform(8),
            tlo.optimizers.RowSGD(0.1),
            kernel_initializer="zeros",
        )
        self.model = keras.Sequential([keras.Input([WIDTH]), head])

    def set(self, number: int) -> None:
        kernel = bare_variable(self.model.layers[-1].kernel)
        for first, end in blocks_of_rows(kernel):  # a second W may not fit into memory
            rows = tf.fill([end - first, WIDTH], float(number))
            scatter_update(kernel, ids_between(first, end), rows)


class Keras(OfModel):
    def save(self, number: int) -> None:
        self.set(number)
        tlo.save_model(self.model, self.folder / "model.keras")

    def load(self) -> Iterator[np.ndarray]:
        model = keras.saving.load_model(self.folder / "model.keras")
        kernel = bare_variable(model.layers[-1].kernel)
        yield from (read_rows(kernel, *block) for block in blocks_of_rows(kernel))


class Export(OfModel):
    def save(self, number: int) -> None:
        self.set(number)
        before = list(self.folder.glob("[0-9]*"))
        tlo.export(self.model, self.folder / str(number))
        for folder in before:
            shutil.rmtree(folder)

    def load(self) -> Iterator[np.ndarray]:
        newest = max(self.folder.glob("[0-9]*"), key=lambda folder: int(folder.name))
        reader = tf.train.load_checkpoint(str(newest / "variables" / "variables"))
        shapes = reader.get_variable_to_shape_map()
        for name in (name for name, shape in shapes.items() if np.prod(shape) >= self.classes * 8):
            yield reader.get_tensor(name)


class Checkpoint:
    def __init__(self, folder: Path, gb: float) -> None:
        self.folder, self.size = folder, int(gb * 1e9 / 4 / ARRAYS)

    def prepare(self) -> None:
        CheckpointFolder(self.folder, keep=1).clean()

    def save(self, number: int) -> None:
        arrays = [(f"{i}", lambda: np.full(self.size, number, np.float32)) for i in range(ARRAYS)]
        write_checkpoint(self.folder / "epoch-00001-batch-00000001.npz", {}, arrays)

    def load(self) -> Iterator[np.ndarray]:
        run = CheckpointFolder(self.folder, keep=1).newest()
        assert run is not None
        yield from (run.array(name) for name in run.names)


KINDS: dict[str, Any] = {"keras": Keras, "export": Export, "checkpoint": Checkpoint}


class Child:
    """A forked process that prints a line per step."""

    def __init__(self, action: Callable[[Callable[[Any], None]], None]) -> None:
        end, begin = os.pipe()
        self.lines = os.fdopen(end)
        self.pid = os.fork()
        if self.pid == 0:
            self.lines.close()
            try:
                action(lambda line: os.write(begin, f"{line}\n".encode()) and None)
                os._exit(0)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
        os.close(begin)

    def line(self) -> str:
        return self.lines.readline().strip()

    def end(self) -> list[str]:
        """Waits for its end; returns its remaining lines."""
        left = self.lines.read().split()
        os.waitpid(self.pid, 0)
        self.lines.close()
        return left

    def kill(self) -> list[str]:
        os.kill(self.pid, signal.SIGKILL)
        return self.end()


def saving(kind: Any, first: int, times: int) -> Child:
    def run(tell: Callable[[Any], None]) -> None:
        kind.prepare()
        tell("ready")
        for number in range(first, first + times):
            kind.save(number)
            tell(number)  # ends this process if the reader has ended

    return Child(run)


def found(kind: Any) -> int:
    """Returns the number in all arrays of the files; -1 if there are several, or none."""

    def run(tell: Callable[[Any], None]) -> None:
        ends = [(int(array.min()), int(array.max())) for array in kind.load()]
        tell(ends[0][0] if len({end for pair in ends for end in pair}) == 1 else -1)

    said = Child(run).end()
    return int(said[0]) if said else -1


def unfinished(folder: Path) -> list[tuple[str, int]]:
    """Returns names and times of unfinished files."""
    paths = [p for p in folder.iterdir() if p.name.startswith("unfinished.") or p.suffix == ".tmp"]
    with contextlib.suppress(FileNotFoundError):  # it has just got its name
        return [(path.name, path.stat().st_ctime_ns) for path in paths]
    return []


def row(name: str, kills: int, gb: float, seed: int, within: Path | None) -> dict[str, Any]:
    folder = Path(tempfile.mkdtemp(dir=within))
    kind, rng = KINDS[name](folder, gb), random.Random(f"{name} {seed}")
    counts = {"in_a_save": 0, "loaded_last": 0, "loaded_new": 0, "lost": 0}
    try:
        child = saving(kind, 1, 1)
        child.line()
        start = time.perf_counter()
        if not child.line():
            raise SystemExit("the first save must succeed; its error is above")
        seconds = time.perf_counter() - start
        child.end()
        done = 1
        for kill in range(kills):
            before = unfinished(folder)
            child = saving(kind, done + 1, 1_000_000)
            assert child.line() == "ready"
            if rng.random() < 0.5:
                time.sleep(rng.uniform(0, 1.2 * seconds))
            else:
                while unfinished(folder) in ([], before):
                    time.sleep(0.001)
                time.sleep(rng.uniform(0, 0.3 * seconds))
            told = child.kill()
            done = int(told[-1]) if told else done
            counts["in_a_save"] += unfinished(folder) not in ([], before)
            number = found(kind)
            which = {done: "loaded_last", done + 1: "loaded_new"}.get(number, "lost")
            counts[which] += 1
            done = max(number, done)
            print(name, kill + 1, which, [left for left, _ in unfinished(folder)], flush=True)
        child = saving(kind, done + 1, 1)
        child.end()
        counts["left_over"] = len(unfinished(folder))
        counts["lost"] += found(kind) != done + 1
    finally:
        shutil.rmtree(folder)
    return {"kind": name, "gb": gb, "kills": kills, **counts, "save_s": round(seconds, 1)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--gb", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="on the disk that is meant")
    parser.add_argument("--quick", action="store_true", help="nothing is written")
    given = parser.parse_args()
    rows = [row(kind, given.kills, given.gb, given.seed, given.folder) for kind in given.kinds]
    for values in rows:
        print(values, flush=True)
        if not given.quick:
            values = {**values, "seed": given.seed, **harness.machine()}
            harness.append_row(harness.RESULTS / "killed_saves.csv", values)
    sys.exit(any(values["lost"] or values["left_over"] for values in rows))


if __name__ == "__main__":
    main()
