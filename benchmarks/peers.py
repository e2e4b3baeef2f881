# SPDX-License-Identifier: Apache-2.0
"""Alternatives on the same data and the same cores: P@k and seconds of training.

    pip install ".[peers]"
    python benchmarks/peers.py wordnet/hyper path/to/EURLex-4K -- --epochs 10

For each set: the installed peers of `tfx-largeout compare`, with their defaults, and
examples/extreme_classification.py with the options after `--`, with and without nearest neighbors.
All get the same log TF-IDF features, with rows of norm 1. Seconds are of training, without reading
and evaluation; for neighbors, which are not trained, of all predictions. One row per method is
appended to benchmarks/results/peers.csv.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import harness

from tfx_largeout.compare.peers import PEERS

EXAMPLE = Path(__file__).parents[1] / "examples" / "extreme_classification.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", nargs="+")
    installed = [name for name, peer in PEERS.items() if peer.installed]
    parser.add_argument("--methods", default=",".join([*installed, "example"]))
    parser.add_argument("--out", type=Path, default=harness.RESULTS / "peers.csv")
    given = sys.argv[1:]
    split = given.index("--") if "--" in given else len(given)
    arguments, options = parser.parse_args(given[:split]), given[split + 1 :]
    unknown = set(arguments.methods.split(",")) - set(METHODS)
    if unknown:
        parser.error(f"--methods must be some of {', '.join(METHODS)}; got {', '.join(unknown)}")
    for data in arguments.data:
        for method in arguments.methods.split(","):
            for row in METHODS[method](data, options):
                print(row, flush=True)
                harness.append_row(
                    arguments.out, {"data": Path(data).name, **row, **harness.machine()}
                )


def peer(name: str) -> Callable[[str, list[str]], list[dict[str, Any]]]:
    """Returns the function that runs a peer."""

    def run(data: str, options: list[str]) -> list[dict[str, Any]]:
        example = load_example()
        train, test = example.load(data)
        start = time.perf_counter()
        predict = PEERS[name].train(train)
        trained = time.perf_counter()
        ids = predict(test)
        seconds = (trained if PEERS[name].package else time.perf_counter()) - start
        return [row_of(name, PEERS[name].description, seconds, example.precision(ids, test))]

    return run


def example(data: str, options: list[str]) -> list[dict[str, Any]]:
    """The example of this package, in a separate process."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, str(EXAMPLE), "--data", data, "--output", folder, *options]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    results = json.loads(done.stdout.strip().splitlines()[-1])
    settings = " ".join([*options, f"({results['head']} head, {results['epochs']} epochs)"])
    return [
        row_of(f"example, {name}", settings, results["seconds"], results[name])
        for name in ("softmax", "with_neighbors")
    ]


METHODS = {**{name: peer(name) for name in PEERS}, "example": example}


def row_of(
    method: str, options: str, seconds: float, precision: dict[str, float]
) -> dict[str, Any]:
    return {"method": method, "options": options, "seconds": round(seconds, 1), **precision}


def load_example() -> Any:
    sys.path.insert(0, str(EXAMPLE.parent))
    import extreme_classification

    return extreme_classification


if __name__ == "__main__":
    main()
