# SPDX-License-Identifier: Apache-2.0
"""Common parts of benchmarks: fair timing, peak memory, facts about the machine, CSV rows.

A benchmark compares methods side by side. `alternate` times them in turns in one process, so that a
busy machine slows all of them alike: trust the ratios. `peak_mib` measures what one call adds to
the resident memory; run it in a separate process (`in_child`), because freed memory stays with the
process and would hide the next peak.
"""

from __future__ import annotations

import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("results")


def alternate(methods: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """Returns the median seconds of each method, which take turns `repeats` times."""
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for method in methods.values():
        method()  # traces, allocates and warms the caches
    for _ in range(repeats):
        for name, method in methods.items():
            start = time.perf_counter()
            method()
            seconds[name].append(time.perf_counter() - start)
    return {name: statistics.median(times) for name, times in seconds.items()}


def fit_step(head: Any, loss: Any, optimizer: Any, hidden: Any, labels: Any) -> Callable[[], Any]:
    """Returns a call that takes a step of `fit` on one batch: hidden layer, head and optimizer."""
    import keras
    import tensorflow as tf

    width = hidden.shape[-1]
    layer = keras.layers.Dense(width, kernel_initializer="identity", name="hidden_layer")
    model = keras.Sequential([keras.Input([width]), layer, head])
    model.compile(optimizer, loss, jit_compile=False)
    model.make_train_function()
    batches = iter(tf.data.Dataset.from_tensors((hidden, labels)).repeat())
    return lambda: model.train_function(batches)["loss"].numpy()


def peak_mib(method: Callable[[], Any]) -> float:
    """Returns the MiB that a call adds to the resident memory at its peak. Linux only."""
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    before = resident_mib()
    method()
    return peak_of_process_mib() - before


def resident_mib() -> float:
    """Returns the resident memory of this process, in MiB. Linux only."""
    return _status_mib("VmRSS")


def peak_of_process_mib() -> float:
    """Returns the most resident memory that this process ever held, in MiB. Linux only."""
    return _status_mib("VmHWM")


def in_child(*arguments: str) -> str:
    """Runs this benchmark again with other arguments; returns the last line that it prints."""
    command = [sys.executable, sys.argv[0], *arguments]
    child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return child.stdout.strip().splitlines()[-1]


def available_mib() -> float:
    """Returns the memory that a new process could use, in MiB. Linux only."""
    return _field_mib("/proc/meminfo", "MemAvailable")


def machine() -> dict[str, str | int]:
    """Returns the columns that describe the machine and versions of a row."""
    import tensorflow as tf

    import tfx_largeout
    from tfx_largeout.ops import library

    return {
        "device": _processor(),
        "cores": len(os.sched_getaffinity(0)),
        "tensorflow": tf.__version__,
        "tfx_largeout": tfx_largeout.__version__,
        "compiler": library.build_record().get("compiler", "none"),
        "instruction_set": library.instruction_set() or "none",
    }


def write_csv(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes rows that have the same columns."""
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0].keys(), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def append_row(path: Path, row: dict[str, Any]) -> None:
    """Adds a row to a file of rows that have the same columns, which may not be there yet."""
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, row.keys(), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor()


def _status_mib(key: str) -> float:
    return _field_mib("/proc/self/status", key)


def _field_mib(path: str, key: str) -> float:
    with open(path) as file:
        return next(int(line.split()[1]) for line in file if line.startswith(key + ":")) / 1024
