# SPDX-License-Identifier: Apache-2.0
"""Time to equal precision with 50,000 classes and Zipf or uniform labels.

The claim: candidates from an index, shared by the batch, reach a P@1 in at most half the time of
the best of three: candidates per example from hash tables, as in SLIDE; TensorFlow's sampled
softmax with 5% of the classes, and an Adam that touches only their rows; the full softmax. All in
one run, each with the better of two learning rates.

    python benchmarks/lsh_training.py --labels zipf       # or uniform; about ten minutes
    python benchmarks/lsh_training.py --labels zipf --quick  # small, nothing is written

The data are generated here: a label has 6 of 50,000 features; a document has 4 labels, 3 features
of each, and 5 random features. The trunk (128 ReLUs, batches of 256) has a separate Adam, which
touches only the rows of features that occur, with the same rate for all methods. A run ends when
P@1 on 3,000 test documents reaches the target, or at the end of its budget.
"""

from __future__ import annotations

import argparse
import os
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np

from tfx_largeout.compare.head_table import head_row
from tfx_largeout.compare.results import CurvePoint, time_to_reach
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.timed_fit import Supervisor
from tfx_largeout.compare.training import build_model
from tfx_largeout.datasets import SparseExamples

FEATURES, OWNED, LABELS, SHOWN, NOISE = 50_000, 6, 4, 3, 5
TARGETS = {"zipf": 0.95, "uniform": 0.2}
INTERVALS = {"zipf": 0.25, "uniform": 2}  # seconds from one evaluation to the next
RATES = (0.005, 0.02)
TRUNK = {
    "optimizer": "row_adam",
    "trunk_optimizer": "row_adam",
    "learning_rate": 2e-3,
    "trunk_learning_rate": 2e-3,
}


class Method(NamedTuple):
    """A row of the table of heads, options that differ from its defaults, and tuned options."""

    head: str
    options: dict[str, Any]
    rate: str = "head_learning_rate"


def methods(num_classes: int, labels: str) -> dict[str, Method]:
    """Returns the methods; the first three are those to beat."""
    sampler = {"zipf": "log_uniform", "uniform": "uniform"}[labels]  # class 0 is the most frequent
    some, many = num_classes // 50, num_classes // 20  # 2% and 5% of the classes
    few = num_classes // 175  # per example
    own = {"num_found": few, "hashes_per_table": 4}
    mixed = {"num_found": some // 2, "num_sampled": some // 2, "sampler": "unigram"}
    active = {
        "num_found": some,
        "candidates": "shared",
        "hash_family": "inner_product",
        "hashes_per_table": 6,
    }
    tf_options = {"num_sampled": many, "num_true": LABELS, "sampler": sampler}
    return {
        "full softmax": Method("full_softmax", {"optimizer": "adam"}, "learning_rate"),
        "own candidates, DWTA": Method("lsh_active_set", own),
        "TF sampled softmax, 5%": Method("tf_sampled_softmax", tf_options, "learning_rate"),
        "shared, unigram 2%": Method(
            "complementary_sum", {"num_sampled": some, "sampler": "unigram"}
        ),
        "shared, unigram 5%": Method(
            "complementary_sum", {"num_sampled": many, "sampler": "unigram"}
        ),
        "shared, LSH Embedding 1%, unigram 1%": Method("lsh_embedding", mixed),
        "shared, LSH Embedding 2%": Method("lsh_active_set", active),
        f"exact top-K softmax, K = {few}": Method("exact_top_k", {"top_k": few}),
    }


class Documents:
    """Generates examples; the features of a label are the same in all of them."""

    def __init__(self, labels: str, num_classes: int) -> None:
        self._rng = np.random.default_rng(0)
        self._owned = self._rng.integers(0, FEATURES, (num_classes, OWNED))
        ranks = np.arange(1, num_classes + 1)
        p = 1 / ranks if labels == "zipf" else np.ones(num_classes)
        self._distribution = np.cumsum(p / p.sum())

    def draw(self, count: int) -> SparseExamples:
        num_classes = len(self._owned)
        drawn = np.searchsorted(self._distribution, self._rng.random((count, LABELS)))
        labels = np.minimum(drawn, num_classes - 1)
        every = np.broadcast_to(np.arange(OWNED), (count * LABELS, OWNED))
        places = self._rng.permuted(every, axis=1)[:, :SHOWN].reshape(count, LABELS, SHOWN)
        shown = np.take_along_axis(self._owned[labels], places, axis=2).reshape(count, -1)
        noise = self._rng.integers(0, FEATURES, (count, NOISE))
        features = [np.unique(row) for row in np.concatenate([shown, noise], axis=1)]
        label_sets = [np.unique(row) for row in labels]
        return SparseExamples(
            _splits(features),
            np.concatenate(features),
            np.ones(sum(map(len, features)), np.float32),
            _splits(label_sets),
            np.concatenate(label_sets),
            FEATURES,
            num_classes,
        )


def _splits(rows: list[np.ndarray]) -> np.ndarray:
    return np.cumsum([0, *map(len, rows)])


def curve_of(
    settings: WorkerSettings, train: SparseExamples, test: SparseExamples, target: float
) -> list[CurvePoint]:
    """Trains until the target or the end of the budget; returns the evaluations."""
    keras.utils.set_random_seed(settings.training.seed)
    keras.backend.clear_session()
    model, _ = build_model(settings, train)
    batch = settings.training.batch_size
    batches = train.dataset(batch, shuffle=True, seed=0, drop_remainder=True)
    test_batches = test.dataset(batch)
    curve: list[CurvePoint] = []

    def evaluate() -> dict[str, float]:
        values = model.evaluate(test_batches, verbose=0, return_dict=True)
        return {name: value for name, value in values.items() if name != "loss"}

    def send(**told: Any) -> None:
        if "point" in told:
            curve.append(CurvePoint(**told["point"]))
            if curve[-1].precision_at_1 >= target:
                model.stop_training = True

    supervisor = Supervisor(settings.training, len(train) // batch, evaluate, send)
    supervisor.fit(model, {"x": batches, "shuffle": False})
    return curve


def rows_of(labels: str, num_classes: int, count: int, budget: float) -> list[dict[str, Any]]:
    """Returns a row a method and learning rate."""
    documents = Documents(labels, num_classes)
    train, test = documents.draw(count), documents.draw(3_000)
    target, rows = TARGETS[labels], []
    evaluations = round(budget / INTERVALS[labels])
    training = TrainingSettings(budget=budget, evaluations=evaluations, batch_size=256)
    for name, method in methods(num_classes, labels).items():
        for rate in RATES:
            options = {**head_row(method.head).options, **TRUNK, **method.options}
            options[method.rate] = rate
            settings = WorkerSettings(method.head, options, DataSettings(), training, "")
            curve = curve_of(settings, train, test, target)
            reached, last = time_to_reach(curve, target), curve[-1]
            rows.append(
                {
                    "labels": labels,
                    "classes": num_classes,
                    "method": name,
                    "learning_rate": rate,
                    "ms_of_step": round(1e3 * last.seconds / last.step, 1),
                    "seconds_to_target": round(reached.seconds, 2) if reached else "",
                    "epochs_to_target": round(reached.epochs, 2) if reached else "",
                    "target": target,
                    "best_precision_at_1": round(max(p.precision_at_1 for p in curve), 4),
                    "seconds": round(last.seconds, 1),
                    **harness.machine(),
                }
            )
            print({key: rows[-1][key] for key in list(rows[-1])[2:10]}, flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", choices=sorted(TARGETS), required=True)
    parser.add_argument("--budget", type=float, default=30, help="seconds a run (default: 30)")
    parser.add_argument("--quick", action="store_true", help="small, nothing is written")
    arguments = parser.parse_args()
    if arguments.quick:
        rows_of(arguments.labels, 2_000, 4_000, budget=2)
        return
    rows = rows_of(arguments.labels, 50_000, 60_000, arguments.budget)
    harness.write_csv(harness.RESULTS / f"lsh_training_{arguments.labels}.csv", rows)


if __name__ == "__main__":
    main()
