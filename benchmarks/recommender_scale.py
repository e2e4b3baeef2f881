# SPDX-License-Identifier: Apache-2.0
"""The recommender of examples/next_item.py over a million items: training, evaluation, servers.

    python benchmarks/recommender_scale.py --items 1000000 log-uniform in-batch midx --serve
    python benchmarks/recommender_scale.py --items 1000000 exact --steps 3 --budget 0
    python benchmarks/recommender_scale.py --items 20000 log-uniform --budget 20 --output /tmp/out

The histories are generated here, and no user is repeated. Items are in 20 clusters. With
probability 0.8 a user's next item is from the cluster after the last item's cluster, cyclically,
else from any cluster; in a cluster, item r = 0, 1, ... has a probability proportional to 1 / (r +
1). All clusters are equally frequent: a ranking by frequency alone has a seventh of the NDCG@10 of
a ranking by the true distribution, which is `best`, on the same users.

The model is 64 wide, of one block, with batches of 256 users of 50 items; W and the embedding are
one table, and biases start at the log frequencies. Each method is a separate process. Seconds and
milliseconds are CPU time over all cores, which other work affects less than wall time, without
evaluation. One row of results/recommender_scale.csv per method, with the first time at which the
NDCG@10 of 1,000 users was half of `best`, and the evaluation of 10,000 users among all items: their
ranks, and the best ten. `--serve` exports the trained model, without an index and with lists; the
probes reach a recall@10 of 0.95: results/recommender_scale_serving.csv.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import next_item

CLUSTERS, FOLLOWS, BATCH, LENGTH, WIDTH = 20, 0.8, 256, 50, 64
WARM_STEPS, VALIDATED, TESTED, REQUEST = 2, 1000, 10_000, 16
Batch = tuple[np.ndarray, np.ndarray]


class Law:
    """How items follow each other. Item 1 + r G + g has rank r in cluster g of G."""

    def __init__(self, items: int) -> None:
        self.clusters, self.size = CLUSTERS, items // CLUSTERS
        self.circle = np.random.default_rng(0).permutation(self.clusters)
        self.shares = 1 / np.arange(1, self.size + 1)
        self.shares /= self.shares.sum()

    def sequences(self, number: int, length: int, rng: np.random.Generator) -> np.ndarray:
        """Returns what users did, `[number, length]`."""
        steps = np.ones((number, length), int)
        jumps = rng.random((number, length)) > FOLLOWS
        steps[jumps] = rng.integers(self.clusters, size=int(jumps.sum()))
        steps[:, 0] = rng.integers(self.clusters, size=number)
        clusters = self.circle[np.cumsum(steps, axis=1) % self.clusters]
        ranks = np.searchsorted(np.cumsum(self.shares), rng.random((number, length)))
        return 1 + np.minimum(ranks, self.size - 1) * self.clusters + clusters

    def best_ndcg(self, before: np.ndarray, items: np.ndarray, k: int = 10) -> float:
        """Returns the NDCG@k of who looks at the next cluster, without what a user had.

        An item of another cluster comes after all of these: it is less probable.
        """
        places = np.argsort(self.circle)
        following = self.circle[(places[(before[:, -1] - 1) % self.clusters] + 1) % self.clusters]
        ranks, clusters = np.divmod(items - 1, self.clusters)
        had_ranks, had_clusters = np.divmod(before - 1, self.clusters)
        first_had = [np.unique(row, return_index=True)[1] for row in before]
        for user, places_had in enumerate(first_had):
            same = had_clusters[user, places_had] == following[user]
            ranks[user] -= (had_ranks[user, places_had][same] < ranks[user]).sum()
        found = (clusters == following) & (ranks < k) & ~(before == items[:, np.newaxis]).any(1)
        return float(np.mean(found / np.log2(ranks + 2)))

    def counts(self) -> np.ndarray:
        """Returns the frequencies of classes; class 0 is not an item."""
        return np.append(0, np.repeat(np.ceil(1e6 * self.shares).astype(int), self.clusters))


def batches(law: Law) -> tf.data.Dataset:
    """Returns infinite training batches: items after a 0, and the next item of each."""

    def generate() -> Iterator[Batch]:
        rng = np.random.default_rng(1)
        while True:
            rows = law.sequences(BATCH, LENGTH, rng)
            yield np.pad(rows[:, :-1], [(0, 0), (1, 0)]), rows

    signature = tf.TensorSpec([BATCH, LENGTH], tf.int64)
    dataset = tf.data.Dataset.from_generator(generate, output_signature=(signature, signature))
    return dataset.prefetch(2)


class Seconds(NamedTuple):
    """Wall time and CPU time."""

    clock: float
    processor: float

    @classmethod
    def now(cls) -> Seconds:
        return cls(time.perf_counter(), time.process_time())

    def since(self, start: Seconds) -> Seconds:
        return Seconds(self.clock - start.clock, self.processor - start.processor)


class Clock(keras.callbacks.Callback):
    """CPU seconds of training and of each step; validates, and ends training in time."""

    def __init__(self, budget: float, steps: int, recommender: Any, users: Batch) -> None:
        super().__init__()
        self.budget, self.steps, self.recommender = budget, steps, recommender
        self.users = users
        self.each: list[Seconds] = []
        self.curve: list[tuple[float, float]] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self.start = Seconds.now()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.each.append(Seconds.now().since(self.start))
        spent = sum(step.processor for step in self.each)
        done = len(self.each)
        ends = done >= self.steps and spent >= self.budget
        if self.budget and (ends or done % self.steps == 0):
            found = evaluate(self.recommender, self.users)["NDCG@10"]
            self.curve.append((spent, found))
            print(f"{done} steps, {spent:.0f} s: NDCG@10 {found:.4f}", file=sys.stderr, flush=True)
        self.model.stop_training = ends


def evaluate(recommender: Any, users: Batch) -> dict[str, float]:
    dataset = tf.data.Dataset.from_tensor_slices(users).batch(512)
    return recommender.ranking.model.evaluate(dataset, return_dict=True, verbose=0)


def measure(method: str, arguments: Any) -> dict[str, Any]:
    """Trains a method; returns rows of both files."""
    keras.utils.set_random_seed(arguments.seed)
    law = Law(arguments.items)
    counts = law.counts()
    text = f"none --head {method} --width {WIDTH} --length {LENGTH} "
    text += f"--blocks 1 --dropout 0 --bias --optimizer {arguments.optimizer} "
    options = next_item.parse([*text.split(), f"--learning-rate={arguments.rate}"])
    ids = np.arange(len(counts))
    next_item.choose(options, SimpleNamespace(counts=counts, num_classes=len(counts)), 1)
    # The rate falls after the given steps; here it stays.
    recommender = next_item.NextItem(SimpleNamespace(counts=counts, ids=ids), options, 10**9)
    rng = np.random.default_rng(2)
    rows = [law.sequences(number, LENGTH + 1, rng) for number in (VALIDATED, arguments.tested)]
    validated, tested = ((part[:, :-1], part[:, -1]) for part in rows)
    clock = Clock(arguments.budget, arguments.steps, recommender, validated)
    recommender.trained.fit(
        batches(law), epochs=1, steps_per_epoch=10**6, callbacks=[clock], verbose=0
    )
    peak = harness.peak_of_process_mib()
    each = clock.each[WARM_STEPS:]
    to_half = next((s for s, ndcg in clock.curve if ndcg >= law.best_ndcg(*validated) / 2), None)
    row: dict[str, Any] = {
        "items": arguments.items,
        "method": method,
        "candidates": options.candidates if method in next_item.SAMPLED else "",
        "optimizer": arguments.optimizer,
        "rate": arguments.rate,
        "step_ms": round(1e3 * statistics.median(step.clock for step in each)),
        "processor_ms": round(1e3 * statistics.median(step.processor for step in each)),
        "peak_mib": round(peak),
        "steps": len(clock.each),
        "seconds": round(sum(step.processor for step in clock.each)),
        "seconds_to_half": "" if to_half is None else round(to_half),
        "best": round(law.best_ndcg(*tested), 4),
    }
    served = []
    row |= {"hit_at_10": "", "ndcg_at_10": "", "evaluation_users": "", "evaluation_s": ""}
    if arguments.budget:
        start = Seconds.now()
        found = recommender.ranking(tf.data.Dataset.from_tensor_slices(tested).batch(512))
        row |= {
            "hit_at_10": round(found["HIT@10"], 4),
            "ndcg_at_10": round(found["NDCG@10"], 4),
            "evaluation_users": len(tested[1]),
            "evaluation_s": round(Seconds.now().since(start).processor),
        }
        if arguments.serve:
            served = serve(recommender, tested[0][:512], arguments.items)
    return {"row": row, "served": served}


def serve(recommender: Any, histories: np.ndarray, items: int) -> list[dict[str, Any]]:
    """Returns queries a second without an index and with lists, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        exact, lists = Path(folder) / "exact", Path(folder) / "lists"
        tlo.export(recommender.server, exact, k=10)
        start = Seconds.now()
        tlo.export(recommender.server, lists, k=10, index="ivf")
        building = Seconds.now().since(start).processor
        probed, recall = 1, 0.0
        while True:
            recall = tlo.serving.recall(recommender.server, lists, histories, probed)
            if recall >= 0.95:
                break
            probed *= 2
        low = probed // 2  # misses it
        while probed - low > 1:
            middle = (low + probed) // 2
            found = tlo.serving.recall(recommender.server, lists, histories, middle)
            if found >= 0.95:
                probed, recall = middle, found
            else:
                low = middle
        all_of = tf.saved_model.load(str(exact)).signatures["serving_default"]
        near = tf.saved_model.load(str(lists)).signatures["with_num_probed"]
        number = tf.constant(probed, tf.int32)
        requests = [tf.constant(histories[i : i + REQUEST]) for i in range(0, 512, REQUEST)]
        turn = iter(range(10**9))
        seconds = harness.alternate(
            {
                "all items": lambda: all_of(inputs=requests[next(turn) % len(requests)]),
                "lists": lambda: near(
                    inputs=requests[next(turn) % len(requests)], num_probed=number
                ),
            },
            30,
        )
    common = {"items": items, "users_of_a_request": REQUEST}
    return [
        common
        | {
            "method": method,
            "probed": probed if method == "lists" else "",
            "recall_at_10": round(recall, 4) if method == "lists" else 1,
            "building_s": round(building) if method == "lists" else "",
            "request_ms": round(1e3 * taken, 2),
            "queries_a_second": round(REQUEST / taken),
        }
        for method, taken in seconds.items()
    ]


def main() -> None:
    """Measures each method in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="+", choices=next_item.HEADS)
    parser.add_argument("--items", type=int, default=1_000_000)
    parser.add_argument("--optimizer", choices=next_item.OPTIMIZERS, default="row-adam")
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--steps", type=int, default=50, help="between validations, and at least")
    parser.add_argument("--budget", type=float, default=300, help="0: nothing is evaluated")
    parser.add_argument("--tested", type=int, default=TESTED)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--serve", action="store_true")
    parser.add_argument("--output", type=Path, default=harness.RESULTS)
    parser.add_argument("--run", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        print(json.dumps(measure(arguments.methods[0], arguments)))
        return
    given = [part for part in sys.argv[1:] if part not in arguments.methods]
    for method in arguments.methods:
        found = json.loads(harness.in_child(method, *given, "--run"))
        print(found, flush=True)
        for name, rows in (("", [found["row"]]), ("_serving", found["served"])):
            for row in rows:
                file = arguments.output / f"recommender_scale{name}.csv"
                harness.append_row(file, row | harness.machine())


if __name__ == "__main__":
    main()
