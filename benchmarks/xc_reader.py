# SPDX-License-Identifier: Apache-2.0
"""Times read_xc on a file of the size of Amazon-670K, and batches made from it.

    python benchmarks/xc_reader.py [--mapped] [--examples N] [--repeats R] [--out CSV]

With --mapped the arrays go to memory-mapped files, `read_xc(..., cache=folder)`. The file has
490,449 examples of 75 features and 5 labels, the sizes of Amazon-670K's training set; ids and
values are random. A row a run is appended to benchmarks/results/xc_reader.csv, or
xc_reader_mapped.csv.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import os
import pathlib
import platform
import resource
import statistics
import tempfile
import time

import numpy as np
import tensorflow as tf

from tfx_largeout.datasets import SparseExamples, read_xc

NUM_FEATURES, NUM_LABELS = 135_909, 670_091
FEATURES_PER_EXAMPLE, LABELS_PER_EXAMPLE = 75, 5
BATCH_SIZE = 512


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--examples", type=int, default=490_449)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--mapped", action="store_true")
    parser.add_argument("--out", type=pathlib.Path)
    arguments = parser.parse_args()
    name = "xc_reader_mapped.csv" if arguments.mapped else "xc_reader.csv"
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "amazon_670k_sized.txt"
        write_file(path, arguments.examples)
        row = measure(path, arguments.repeats, arguments.mapped)
    append_row(arguments.out or RESULTS / name, row)
    print(row)


RESULTS = pathlib.Path(__file__).parent / "results"


def write_file(path: pathlib.Path, num_examples: int) -> None:
    """Writes random examples; 5,000 different lines are used over and over."""
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(min(5_000, num_examples)):
        labels = rng.choice(NUM_LABELS, LABELS_PER_EXAMPLE, replace=False)
        ids = np.sort(rng.choice(NUM_FEATURES, FEATURES_PER_EXAMPLE, replace=False))
        features = " ".join(f"{i}:{v:.6f}" for i, v in zip(ids, rng.random(len(ids)), strict=True))
        lines.append(",".join(map(str, labels)) + " " + features + "\n")
    with open(path, "w") as file:
        file.write(f"{num_examples} {NUM_FEATURES} {NUM_LABELS}\n")
        for start in range(0, num_examples, len(lines)):
            file.writelines(lines[: num_examples - start])


def measure(path: pathlib.Path, repeats: int, mapped: bool) -> dict[str, object]:
    seconds, cpu_seconds, peaks_mb = [], [], []
    before = peak_mb()
    for repeat in range(repeats):
        cache = path.parent / str(repeat) if mapped else None
        start, cpu_start = time.perf_counter(), time.process_time()
        examples = read_xc(path, progress=True, cache=cache)
        seconds.append(time.perf_counter() - start)
        cpu_seconds.append(time.process_time() - cpu_start)
        peaks_mb.append(peak_mb())
    of_mapped = {}
    if mapped:
        start = time.perf_counter()
        examples = read_xc(path, cache=cache)
        open_s = time.perf_counter() - start
        for _ in examples.dataset(BATCH_SIZE, shuffle=True):
            pass
        sizes = {"before_mb": before, "epoch_peak_mb": peak_mb()}
        of_mapped = {"open_s": round(open_s, 3)} | {k: round(v) for k, v in sizes.items()}
    return {
        "date": datetime.date.today().isoformat(),
        "examples": examples.num_examples,
        "features": len(examples.feature_ids),
        "file_mb": round(path.stat().st_size / 1e6, 1),
        "repeats": repeats,
        "median_s": round(statistics.median(seconds), 2),
        "min_s": round(min(seconds), 2),
        "median_cpu_s": round(statistics.median(cpu_seconds), 2),
        "peak_mb": round(peaks_mb[0]),  # later runs have two results in memory
        **of_mapped,
        "batch_ms": round(batch_ms(examples), 3),
        "load_average": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "numpy": np.__version__,
        "tensorflow": tf.__version__,
    }


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def batch_ms(examples: SparseExamples, num_batches: int = 300) -> float:
    """Mean time of a shuffled batch of 512, read one after the other with nothing in between."""
    iterator = iter(examples.dataset(BATCH_SIZE, shuffle=True).take(num_batches + 20))
    for _ in range(20):
        next(iterator)
    start = time.perf_counter()
    count = sum(1 for _ in iterator)
    return (time.perf_counter() - start) / count * 1000


def append_row(path: pathlib.Path, row: dict[str, object]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, row)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main()
