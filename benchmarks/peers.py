# SPDX-License-Identifier: Apache-2.0
"""What a user would pick instead, on the same data and the same cores: P@k and seconds of training.

    pip install ".[peers]"
    python benchmarks/peers.py wordnet/hyper path/to/EURLex-4K -- --epochs 10

For each set: omikuji (Parabel, three trees, its defaults); the labels of the 100 nearest training
examples by cosine of features, weighted by cos^4; and examples/extreme_classification.py with the
options after `--`, with and without nearest neighbors. All get the same log TF-IDF features, rows
of length 1. Seconds are those of training, with reading and evaluation left out; what omikuji reads
is written to a file first, and its time to parse that file counts. A row a method is appended to
benchmarks/results/peers.csv.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import harness
import numpy as np

EXAMPLE = Path(__file__).parents[1] / "examples" / "extreme_classification.py"
K = 5
NEIGHBORS, POWER = 100, 4
BLOCK = 256  # test examples whose cosines are in memory at a time


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+")
    parser.add_argument("--methods", default="omikuji,tf_idf_neighbors,example")
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "peers.csv")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    arguments, options = parser.parse_args(given[:split]), given[split + 1 :]
    for data in arguments.data:
        for method in arguments.methods.split(","):
            for row in METHODS[method](data, options):
                print(row, flush=True)
                harness.append_row(
                    arguments.out, {"data": Path(data).name, **row, **harness.machine()}
                )


def omikuji(data: str, options: list[str]) -> list[dict[str, Any]]:
    """Parabel as omikuji has it."""
    import omikuji

    example = load_example()
    train, test = example.load(data)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.txt"
        write(train, file)
        with quiet_stderr():
            start = time.perf_counter()
            model = omikuji.Model.train_on_data(
                str(file), omikuji.Model.default_hyper_param(), len(os.sched_getaffinity(0))
            )
            seconds = time.perf_counter() - start
    ids = np.full([len(test), K], -1)
    for i in range(len(test)):
        row = slice(*test.feature_splits[i : i + 2])
        features = zip(
            test.feature_ids[row].tolist(), test.feature_values[row].tolist(), strict=True
        )
        found = [label for label, _ in model.predict(list(features), top_k=K)]
        ids[i, : len(found)] = found
    return [row_of("omikuji", "", seconds, example.precision(ids, test))]


def tf_idf_neighbors(data: str, options: list[str]) -> list[dict[str, Any]]:
    """Nearest neighbors by features: nothing is trained, so seconds are those of all answers."""
    from scipy.sparse import csr_matrix

    example = load_example()
    train, test = example.load(data)

    def features(e: Any) -> Any:
        parts = e.feature_values, e.feature_ids, e.feature_splits
        return csr_matrix(parts, shape=(len(e), e.num_features))

    start = time.perf_counter()
    labels = csr_matrix(
        (np.ones(len(train.label_ids)), train.label_ids, train.label_splits),
        shape=(len(train), train.num_labels),
    )
    examples, queries = features(train).T.tocsr(), features(test)
    ids = []
    for begin in range(0, len(test), BLOCK):
        cosines = (queries[begin : begin + BLOCK] @ examples).toarray()
        near = np.argpartition(-cosines, NEIGHBORS, axis=1)[:, :NEIGHBORS]
        weights = np.maximum(np.take_along_axis(cosines, near, axis=1), 0) ** POWER
        rows = np.repeat(np.arange(len(near)), NEIGHBORS)
        chosen = csr_matrix((weights.ravel(), (rows, near.ravel())), shape=cosines.shape)
        ids.extend(best(row) for row in (chosen @ labels).tocsr())
    seconds = time.perf_counter() - start
    settings = f"{NEIGHBORS} neighbors, cos^{POWER}"
    return [row_of("tf_idf_neighbors", settings, seconds, example.precision(np.array(ids), test))]


def best(scores: Any) -> np.ndarray:
    """Returns the K best columns of a sparse row, -1 where there are fewer."""
    order = scores.indices[np.argsort(-scores.data, kind="stable")[:K]]
    return np.pad(order, [0, K - len(order)], constant_values=-1)


def example(data: str, options: list[str]) -> list[dict[str, Any]]:
    """The example of this package, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLE), "--data", data, "--output", folder, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results = json.loads(done.stdout.strip().splitlines()[-1])
    return [
        row_of(f"example, {name}", " ".join(options), results["seconds"], results[name])
        for name in ("softmax", "with_neighbors")
    ]


METHODS = {"omikuji": omikuji, "tf_idf_neighbors": tf_idf_neighbors, "example": example}


def row_of(
    method: str, options: str, seconds: float, precision: dict[str, float]
) -> dict[str, Any]:
    return {"method": method, "options": options, "seconds": round(seconds, 1), **precision}


def load_example() -> Any:
    sys.path.insert(0, str(EXAMPLE.parent))
    import extreme_classification

    return extreme_classification


def write(examples: Any, file: Path) -> None:
    """Writes a set in the format of the repository."""
    labels, features, values = examples.label_ids, examples.feature_ids, examples.feature_values
    with file.open("w") as lines:
        lines.write(f"{len(examples)} {examples.num_features} {examples.num_labels}\n")
        for i in range(len(examples)):
            of_labels = slice(*examples.label_splits[i : i + 2])
            of_features = slice(*examples.feature_splits[i : i + 2])
            pairs = zip(features[of_features], values[of_features], strict=True)
            words = " ".join(f"{feature}:{value:.6g}" for feature, value in pairs)
            lines.write(",".join(map(str, labels[of_labels])) + " " + words + "\n")


@contextlib.contextmanager
def quiet_stderr() -> Iterator[None]:
    """Keeps what other languages print to standard error out of sight."""
    saved = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


if __name__ == "__main__":
    main()
