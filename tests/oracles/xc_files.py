# SPDX-License-Identifier: Apache-2.0
"""Files in the format of the extreme classification repository: write, read, draw at random.

Rows are pairs (labels, features): a list of ids, and a dict from id to value.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
from pathlib import Path

import numpy as np

Row = tuple[list[int], dict[int, float]]

OPEN = {".txt": open, ".gz": gzip.open, ".xz": lzma.open, ".bz2": bz2.open}


def lines(rows: list[Row], num_features: int, num_labels: int) -> list[str]:
    """Header and one line per row."""
    return [f"{len(rows)} {num_features} {num_labels}"] + [
        ",".join(map(str, labels)) + "".join(f" {i}:{v!r}" for i, v in features.items())
        if labels or features
        else " "
        for labels, features in rows
    ]


def write(path: Path, rows: list[Row], num_features: int, num_labels: int) -> Path:
    with OPEN[path.suffix](path, "wt") as file:
        file.write("\n".join(lines(rows, num_features, num_labels)) + "\n")
    return path


def read(path: Path) -> list[Row]:
    """The rows of a file that has labels and features in each row."""
    rows = []
    with OPEN[path.suffix](path, "rt") as file:
        next(file)
        for line in file:
            labels, *features = line.split()
            pairs = [feature.split(":") for feature in features]
            rows.append(
                ([int(label) for label in labels.split(",")], {int(i): float(v) for i, v in pairs})
            )
    return rows


def draw(rng: np.random.Generator, num_rows: int, num_features: int, num_labels: int) -> list[Row]:
    """Random rows, some without labels or features, with numbers of many shapes."""
    rows = []
    for _ in range(num_rows):
        labels = rng.choice(num_labels, rng.integers(0, min(5, num_labels + 1)), replace=False)
        ids = rng.choice(num_features, rng.integers(0, min(9, num_features + 1)), replace=False)
        values = [
            rng.choice([float(rng.integers(-3, 4)), rng.normal(), 10 ** rng.uniform(-30, 30)])
            for _ in ids
        ]
        rows.append((labels.tolist(), dict(zip(ids.tolist(), map(float, values), strict=True))))
    return rows
