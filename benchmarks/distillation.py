# SPDX-License-Identifier: Apache-2.0
"""A small student that learns from a larger teacher's best classes, compared with hard labels.

WordNet's reverse dictionary (shipped). The teacher is a model of 256 hidden units; the students
have 32, a `SampledHead` and `ComplementarySum`. `hard` students get the labels of the data set, Y;
`soft` students get Y and the teacher's K best classes, with probabilities
p = share * teacher + (1 - share) / |Y|. The loss ignores the remaining probability.

Both students have the same steps. The learning rate of the head, and the share, are chosen on
examples held out from training (`split` = "held_out", seed 0), by P@1; then seeds 1, 2 and 3 are
measured on the test examples.

    python benchmarks/distillation.py
    python benchmarks/distillation.py --labels hard --epochs 12

A step with soft labels takes about twice the time, as it reads more rows; the second line gives
hard labels as much time. One row per finished run is written, and a restart skips finished runs. If
soft students remain, the teacher is trained again.
"""

from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import os
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.datasets import SparseExamples, load_wordnet, tf_idf

OUTPUT = harness.RESULTS / "distillation.csv"
BATCH, CANDIDATES = 512, 1500
RATES, SEEDS = (0.04, 0.08, 0.16, 0.32), (1, 2, 3)
HARD = 0.0  # the share of the teacher
SHARES = {"hard": (HARD,), "soft": (0.5, 0.9)}


def model_of(train: SparseExamples, hidden: int, rate: float, steps: int) -> keras.Model:
    """Returns a compiled model, with the settings of README."""
    head = tlo.heads.SampledHead(
        train.num_labels,
        tlo.samplers.LogUniform(CANDIDATES),
        tlo.optimizers.RowAdam(rate),
        bias_initializer=tlo.initializers.LogFrequency(train.label_counts()),
    )
    model = keras.Sequential(
        [
            keras.Input((train.num_features,), sparse=True),
            tlo.layers.SparseDense(hidden, activation="relu"),
            keras.layers.Dropout(0.5 if hidden > 100 else 0.1),
            head,
        ]
    )
    falling = keras.optimizers.schedules.PolynomialDecay(4e-3, steps, 8e-5)
    model.compile(
        tlo.optimizers.RowRMSprop(falling),
        loss=tlo.losses.ComplementarySum(),
        metrics=[tlo.metrics.PrecisionAtK(1), tlo.metrics.PrecisionAtK(5), tlo.metrics.ExactLoss()],
    )
    return model


class SoftTargets:
    """A teacher's K best classes of each training example, which students mix with the labels."""

    def __init__(self, teacher: keras.Model, train: SparseExamples, k: int) -> None:
        best = tlo.top_k_model(teacher, k, activation="softmax")
        self.probabilities, self.ids = best.predict(train.dataset(BATCH), verbose=0)
        self._train = train

    def batches(self, share: float, seed: int) -> tf.data.Dataset:
        """Returns shuffled batches with soft labels."""
        ids, probabilities = self._mixed(share)
        numbers = np.arange(len(self._train))
        numbered = dataclasses.replace(
            self._train,
            label_splits=np.arange(len(numbers) + 1),
            label_ids=numbers,
            num_labels=len(numbers),
        )
        ids, probabilities = tf.constant(ids), tf.constant(probabilities)

        def with_soft_labels(x: Any, rows: tf.RaggedTensor) -> tuple[Any, Any]:
            rows = rows.values
            return x, (tf.gather(ids, rows), tf.gather(probabilities, rows))

        return numbered.dataset(BATCH, shuffle=True, seed=seed).map(with_soft_labels)

    def _mixed(self, share: float) -> tuple[np.ndarray, np.ndarray]:
        splits, rows = self._train.label_splits, []
        for row, (ids, p) in enumerate(zip(self.ids, share * self.probabilities, strict=True)):
            own = self._train.label_ids[splits[row] : splits[row + 1]]
            mixed = dict(zip(ids.tolist(), p.tolist(), strict=True))
            for label in own.tolist():
                mixed[label] = mixed.get(label, 0) + (1 - share) / len(own)
            rows.append(mixed)
        longest = max(map(len, rows))
        ids = np.full((len(rows), longest), -1)
        probabilities = np.zeros((len(rows), longest), "float32")
        for row, mixed in enumerate(rows):
            ids[row, : len(mixed)] = list(mixed)
            probabilities[row, : len(mixed)] = list(mixed.values())
        return ids, probabilities


def measured(model: keras.Model, batches: Any, examples: SparseExamples, epochs: int) -> dict:
    """Trains, evaluates on hard labels, and returns columns."""
    start = time.process_time()
    model.fit(batches, epochs=epochs, shuffle=False, verbose=0)
    seconds = time.process_time() - start
    found = model.evaluate(examples.dataset(BATCH), verbose=0, return_dict=True)
    names = ("precision_at_1", "precision_at_5", "exact_loss")
    return {**{name: f"{found[name]:.4f}" for name in names}, "cpu_seconds": f"{seconds:.0f}"}


def main() -> None:
    """Parses the command line, trains the teacher, and the students that are not in the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default="hyper", help="hyper or lemma")
    parser.add_argument("--teacher", type=int, default=256, help="hidden units")
    parser.add_argument("--student", type=int, default=32, help="hidden units")
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--k", type=int, default=10, help="classes of the teacher")
    parser.add_argument("--labels", nargs="+", choices=SHARES, default=list(SHARES))
    parser.add_argument("--output", type=Path, default=OUTPUT)
    arguments = parser.parse_args()
    whole, test = tf_idf(*load_wordnet(arguments.data), log=True)
    whole, test = whole.with_labels(), test.with_labels()
    order = np.random.default_rng(0).permutation(len(whole))
    held_out, train = whole.take(order[: len(whole) // 20]), whole.take(order[len(whole) // 20 :])
    steps = arguments.epochs * (len(train) // BATCH)

    table: list[dict[str, Any]] = []
    if arguments.output.exists():
        with arguments.output.open(newline="") as file:
            table = list(csv.DictReader(file))

    def run(split: str, labels: str, hidden: int, share: float, rate: float, seed: int) -> Any:
        key = {
            "data": arguments.data,
            "split": split,
            "labels": labels,
            "hidden": hidden,
            "k": arguments.k,
            "share": share,
            "rate": rate,
            "epochs": arguments.epochs,
            "seed": seed,
        }
        known = (row for row in table if all(row[name] == str(key[name]) for name in key))
        if (row := next(known, None)) is not None and labels != "teacher":
            return row
        keras.utils.set_random_seed(seed)
        model = model_of(train, hidden, rate, steps)
        if share == HARD:
            batches = train.dataset(BATCH, shuffle=True, seed=seed)
        else:
            batches = targets().batches(share, seed)
        examples = test if split == "test" else held_out
        found = {**key, **measured(model, batches, examples, arguments.epochs), **harness.machine()}
        found = {name: str(value) for name, value in found.items()}
        if row is None:
            table.append(found)
            harness.write_csv(arguments.output, table)
        print(*(found[name] for name in (*key, "precision_at_1", "exact_loss", "cpu_seconds")))
        return model if labels == "teacher" else found

    @functools.cache
    def targets() -> SoftTargets:
        teacher = run("test", "teacher", arguments.teacher, HARD, 0.03, 0)
        return SoftTargets(teacher, train, arguments.k)

    for labels in arguments.labels:
        tried = [
            run("held_out", labels, arguments.student, share, rate, 0)
            for share in SHARES[labels]
            for rate in RATES
        ]
        best = max(tried, key=lambda row: float(row["precision_at_1"]))
        share, rate = float(best["share"]), float(best["rate"])
        for seed in SEEDS:
            run("test", labels, arguments.student, share, rate, seed)


if __name__ == "__main__":
    main()
