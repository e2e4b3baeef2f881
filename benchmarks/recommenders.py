# SPDX-License-Identifier: Apache-2.0
"""Recommenders of the next item, side by side: this package's heads, and peers, on the same split.

    python benchmarks/recommenders.py path/to/beauty exact in-batch two-tower --seeds 1 2 3
    python benchmarks/recommenders.py path/to/beauty popularity-alone item-knn
    python benchmarks/recommenders.py path/to/beauty als bpr --python path/to/python
    python benchmarks/recommenders.py path/to/beauty recbole-sasrec --python path/to/python

Each row of results/recommenders.csv is one training by examples/next_item.py or two_tower.py, with
its defaults except for the given options, or one peer. No peer is trained on test items, or chosen
by them; for the test it also has the validation items, since these came before. `als` and `bpr` are
from `implicit`, in a Python that has it; `recbole-sasrec` and `keras-rs` are in
recommender_peers.py. RecBole 1.2.1 wants numpy<2, pandas<2.2, scipy<1.12 and setuptools<81.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

EXAMPLES = Path(__file__).parents[1] / "examples"
sys.path.insert(0, str(EXAMPLES))
import histories as data  # noqa: E402
from recommender_peers import TRAINED  # noqa: E402

Scores = Callable[[np.ndarray], np.ndarray]  # of histories `[n, T]`, padded with 0: `[n, C]`
NEVER = 2**62  # the rank of items that can't be found


def evaluate(
    scores_of: Scores,
    before: list[np.ndarray],
    items: np.ndarray,
    counts: np.ndarray,
    k: int = 10,
    batch_size: int = 512,
) -> dict[str, float]:
    """Measures the same as examples/ranking.py, in NumPy, with scores of all classes in memory.

    Ties go to the lower class. Earlier items are never found.

    Args:
        scores_of: A function from padded histories to scores `[n, C]`.
        before: The earlier items of each user.
        items: `[n]` the item that came next.
        counts: `[C]` how often each class is in training.
        k: How many items are recommended. Default 10.
        batch_size: Users at a time. Default 512.
    """
    ranks = np.zeros(len(items), int)
    recommended = np.zeros(len(counts), int)
    for users in data.by_length(before, batch_size):
        seen = data.padded([before[u] for u in users])
        scores = np.array(scores_of(seen), np.float32)
        own = np.take_along_axis(scores, items[users, np.newaxis], axis=1)
        np.put_along_axis(scores, seen, -np.inf, axis=1)
        scores[:, 0] = -np.inf
        before_own = np.arange(scores.shape[1]) < items[users, np.newaxis]
        ranks[users] = ((scores > own) | ((scores == own) & before_own)).sum(axis=1)
        ranks[users] = np.where((seen == items[users, np.newaxis]).any(axis=1), NEVER, ranks[users])
        best = np.argpartition(-scores, min(k, scores.shape[1]) - 1, axis=1)[:, :k]
        best = best[np.isfinite(np.take_along_axis(scores, best, axis=1))]
        recommended += np.bincount(best, minlength=len(counts))
    result: dict[str, float] = {}
    for cut in (5, 10, 20):
        result[f"HIT@{cut}"] = float(np.mean(ranks < cut))
        result[f"NDCG@{cut}"] = float(np.mean((ranks < cut) / np.log2(ranks + 2)))
    result["MRR"] = float(np.mean(1 / (ranks + 1)))
    result[f"coverage@{k}"] = float(np.mean(recommended[1:] > 0))
    result[f"popularity@{k}"] = float((recommended * counts).sum() / max(recommended.sum(), 1))
    return result


def popularity(before: list[np.ndarray], counts: np.ndarray) -> Scores:
    """Items by how often they are in training."""
    return lambda seen: np.broadcast_to(counts, (len(seen), len(counts)))


def item_knn(before: list[np.ndarray], counts: np.ndarray, neighbors: int = 100) -> Scores:
    """Sums of the cosines of items over who had them, for the nearest of each item had."""
    pairs = np.concatenate([_pairs(np.unique(items)) for items in before])
    codes, both = np.unique(pairs[:, 0] * len(counts) + pairs[:, 1], return_counts=True)
    first, second = codes // len(counts), codes % len(counts)
    had = np.bincount(np.concatenate([np.unique(items) for items in before]), None, len(counts))
    cosines = both / np.sqrt(had[first] * had[second])
    order = np.lexsort((-cosines, first))
    first, second, cosines = first[order], second[order], cosines[order]
    starts = np.searchsorted(first, np.arange(len(counts) + 1))

    def scores(seen: np.ndarray) -> np.ndarray:
        result = np.zeros((len(seen), len(counts)), np.float32)
        for row, items in zip(result, seen, strict=True):
            for item in items[items > 0]:
                near = slice(starts[item], min(starts[item] + neighbors, starts[item + 1]))
                row[second[near]] += cosines[near]
        return result

    return scores


def _pairs(items: np.ndarray) -> np.ndarray:
    one, two = (x.ravel() for x in np.meshgrid(items, items))
    return np.stack([one, two], axis=1)[one != two]


def factors(kind: str, before: list[np.ndarray], counts: np.ndarray) -> Scores:
    """ALS or BPR of `implicit`, 64 wide, with its defaults."""
    import implicit
    from scipy.sparse import csr_matrix

    rows = np.repeat(np.arange(len(before)), [len(items) for items in before])
    cells = np.ones(len(rows), np.float32), (rows, np.concatenate(before))
    matrix = csr_matrix(cells, shape=(len(before), len(counts)))
    maker = {
        "als": lambda: implicit.als.AlternatingLeastSquares(factors=64, random_state=1),
        "bpr": lambda: implicit.bpr.BayesianPersonalizedRanking(factors=64, random_state=1),
    }
    model = maker[kind]()
    model.fit(matrix, show_progress=False)
    number = {tuple(items): i for i, items in enumerate(before)}

    def scores(seen: np.ndarray) -> np.ndarray:
        users = [number[tuple(items[items > 0])] for items in seen]
        return model.user_factors[users] @ model.item_factors.T

    return scores


PEERS = {
    "popularity-alone": popularity,
    "item-knn": item_knn,
    "als": lambda *given: factors("als", *given),
    "bpr": lambda *given: factors("bpr", *given),
}


def measure_peer(name: str, folder: Path, epochs: int) -> dict[str, Any]:
    """Returns the example's results, for a peer."""
    histories = data.load(folder)
    results: dict[str, Any] = {"head": name, "seed": 1, "epoch": 0}
    if name in TRAINED:
        scores, results["epoch"], seconds = TRAINED[name](histories, epochs)
        for part in ("validation", "test"):
            before, items, _ = histories.held_out(part)
            results[part] = evaluate(scores, before, items, histories.counts)
        return results | {"seconds": round(seconds, 1)}
    for part in ("validation", "test"):
        start = time.perf_counter()
        before, items, _ = histories.held_out(part)
        scores = PEERS[name](before, histories.counts)
        results["seconds"] = round(time.perf_counter() - start, 1)
        results[part] = evaluate(scores, before, items, histories.counts)
    return results


def measure_example(name: str, folder: Path, seed: int, options: list[str]) -> dict[str, Any]:
    """Returns the example's results."""
    with tempfile.TemporaryDirectory() as output:
        command = [str(folder), "--seed", str(seed), "--output", output, *options]
        if name == "two-tower":
            return importlib.import_module("two_tower").main(command)
        return importlib.import_module("next_item").main([*command, "--head", name])


def row_of(results: dict[str, Any], folder: Path, options: list[str]) -> dict[str, Any]:
    """Returns a row of the CSV."""
    row = {
        "data": folder.name,
        "method": results["head"].partition(",")[0],
        "options": " ".join(options),
    }
    row |= {name: results[name] for name in ("seed", "epoch", "seconds")}
    for part in ("validation", "test"):
        for name, value in results[part].items():
            row[f"{part}_{name.lower().replace('@', '_at_')}"] = round(value, 5)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("methods", nargs="+", help="heads of next_item.py, two-tower, or peers")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--python", help="of an environment that has the peers")
    parser.add_argument("--peer-epochs", type=int, default=20, help="at most, of those with any")
    parser.add_argument("--as-json", action="store_true", help="prints a peer's results, no CSV")
    arguments, options = parser.parse_known_args()
    for method in arguments.methods:
        if arguments.as_json:
            print(json.dumps(measure_peer(method, arguments.data, arguments.peer_epochs)))
            continue
        from harness import RESULTS, append_row, machine

        is_peer = method in PEERS or method in TRAINED
        for seed in [1] if is_peer else arguments.seeds:
            if not is_peer:
                results = measure_example(method, arguments.data, seed, options)
            elif arguments.python:
                command = [arguments.python, __file__, str(arguments.data), method, "--as-json"]
                command += ["--peer-epochs", str(arguments.peer_epochs)]
                child = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                results = json.loads(child.stdout.splitlines()[-1])
            else:
                results = measure_peer(method, arguments.data, arguments.peer_epochs)
            given = [f"{arguments.peer_epochs} epochs"] if method in TRAINED else options
            row = row_of(results, arguments.data, given) | machine()
            append_row(RESULTS / "recommenders.csv", row)


if __name__ == "__main__":
    main()
