# SPDX-License-Identifier: Apache-2.0
"""P@1 by seconds with five million classes and examples streamed from disk.

    python benchmarks/five_million.py --labels zipf         # or uniform
    python benchmarks/five_million.py --labels zipf --classes 50000 --budget 5 --output /tmp/a.csv

The data are generated here, and written to a file that training reads in order, once or as often as
the budget allows. A class has 8 of 200,000 words, by a hash of its number; an example has 7 of them
and a random one. Labels are drawn from 1 / (c + 10) (`zipf`) or uniformly (`uniform`); so one
example is enough to recognize a class, and most classes have one or none.

The model: the mean of 8 embeddings, layer normalization, and `SampledHead` with 1,000 candidates
shared by the batch of 512 (with `own`: 30 per example), with `ComplementarySum` and biases of log
class frequencies. Samplers are as in small_budgets.py; `static` is the distribution of the labels.
Each uses the best of `--rates` after `--tuning` seconds. One row per epoch of `--steps` steps.
Seconds are CPU time of training, without the evaluation on 1,024 examples.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import small_budgets
import tensorflow as tf

import tfx_largeout as tlo

OUTPUT = harness.RESULTS / "five_million.csv"
WORDS, OWNED, WIDTH, BATCH, TESTS, SEED = 200_000, 8, 64, 512, 1024, 0
SHARED, OWN, BLOCK = 1000, 30, 1 << 20
STATIC = {"zipf": "log_uniform", "uniform": "uniform"}
METHODS = {  # sampler of small_budgets.py, or the labels' distribution; per example?
    "static": (None, False),
    "static, own": (None, True),
    "midx_rq": ("midx_rq", False),
    "midx_rq, own": ("midx_rq", True),
    "lsh_embedding": ("lsh_embedding", False),
}


def examples(labels: str, classes: int, number: int, seed: int) -> Iterator[np.ndarray]:
    """Yields blocks of examples `[n, 1 + OWNED]` int32: a label, then words in any order."""
    generator = np.random.default_rng(seed)
    for start in range(0, number, BLOCK):
        n = min(BLOCK, number - start)
        if labels == "zipf":  # the inverse of sum_{i <= c} 1 / (i + 10), about log((c + 10) / 10)
            ids = (10 * (classes / 10 + 1) ** generator.random(n) - 10).astype(np.int64)
        else:
            ids = generator.integers(classes, size=n)
        ids = np.minimum(ids, classes - 1)
        words = words_of(ids)
        shown = generator.integers(OWNED, size=n)
        words[np.arange(n), shown] = generator.integers(WORDS, size=n)
        yield np.concatenate([ids[:, np.newaxis], words], axis=1).astype(np.int32)


def words_of(ids: np.ndarray) -> np.ndarray:
    """Returns the words that classes own, `[n, OWNED]`: splitmix64 of class and place."""
    bits = ids[:, np.newaxis].astype(np.uint64) * np.uint64(OWNED) + np.arange(
        1, OWNED + 1, dtype=np.uint64
    )
    bits *= np.uint64(0x9E3779B97F4A7C15)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        bits = (bits ^ (bits >> np.uint64(shift))) * np.uint64(factor)
    return (bits ^ (bits >> np.uint64(31))) % np.uint64(WORDS)


def write(file: Path, arguments: argparse.Namespace) -> None:
    """Writes the training examples."""
    with file.open("wb") as out:
        for block in examples(arguments.labels, arguments.classes, arguments.examples, SEED):
            out.write(block.tobytes())


def batches(file: Path) -> tf.data.Dataset:
    """Streams the training examples, again and again."""

    def parse(records: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        numbers = tf.ensure_shape(tf.io.decode_raw(records, tf.int32), [BATCH, 1 + OWNED])
        return numbers[:, 1:], numbers[:, 0]

    records = tf.data.FixedLengthRecordDataset(str(file), 4 * (1 + OWNED)).repeat()
    return records.batch(BATCH, drop_remainder=True).map(parse).prefetch(2)


class Clock(keras.callbacks.Callback):
    """Seconds of the processor in training; ends it when they are spent."""

    def __init__(self, budget: float) -> None:
        super().__init__()
        self.budget, self.seconds = budget, 0.0
        self.all_seconds: list[float] = []

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self.start = time.process_time()

    def on_test_begin(self, logs: Any = None) -> None:
        self.seconds += time.process_time() - self.start
        self.all_seconds.append(self.seconds)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self.model.stop_training = self.seconds >= self.budget


def train(method: str, rate: float, budget: float, file: Path, arguments: Any) -> list[dict]:
    """Trains; returns a row per epoch."""
    keras.utils.set_random_seed(SEED)
    labels = np.memmap(file, np.int32, "r").reshape(-1, 1 + OWNED)[:, 0]
    counts = np.bincount(labels, minlength=arguments.classes) + 1
    sampler, own = METHODS[method]
    number = OWN if own else SHARED
    kind = small_budgets.KINDS[sampler or STATIC[arguments.labels]]
    head = tlo.heads.SampledHead(
        arguments.classes,
        kind.make(number, own, counts),
        tlo.optimizers.RowAdam(rate),
        bias_initializer=tlo.initializers.LogFrequency(counts),
        seed=SEED,
    )
    inputs = keras.Input([OWNED], dtype="int32")
    hidden = tlo.layers.RowEmbedding(WORDS, WIDTH)(inputs)
    hidden = keras.layers.GlobalAveragePooling1D()(hidden)
    hidden = keras.layers.LayerNormalization()(hidden)
    model = keras.Model(inputs, head(hidden))
    model.compile(
        tlo.optimizers.RowAdam(2e-3),
        loss=tlo.losses.ComplementarySum(),
        metrics=[tlo.metrics.PrecisionAtK(1)],
    )
    test = next(examples(arguments.labels, arguments.classes, TESTS, SEED + 1))
    clock = Clock(budget)
    curve = model.fit(
        batches(file),
        validation_data=(test[:, 1:], test[:, 0]),
        validation_batch_size=BATCH,
        steps_per_epoch=arguments.steps,
        epochs=10_000,  # the clock ends it
        shuffle=False,
        callbacks=[clock],
        verbose=0,
    ).history["val_precision_at_1"]
    return [
        {
            "labels": arguments.labels,
            "classes": arguments.classes,
            "examples": arguments.examples,
            "method": method,
            "s": number,
            "rate": rate,
            "step": (epoch + 1) * arguments.steps,
            "seconds": f"{seconds:.0f}",
            "precision_at_1": f"{precision:.4f}",
            **harness.machine(),
        }
        for epoch, (seconds, precision) in enumerate(zip(clock.all_seconds, curve, strict=True))
    ]


def main() -> None:
    """Writes the data, tunes and trains each method in a separate process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--labels", choices=STATIC, required=True)
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--classes", type=int, default=5_000_000)
    parser.add_argument("--examples", type=int, default=10_000_000)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--rates", nargs="+", type=float, default=[0.005, 0.02])
    parser.add_argument("--tuning", type=float, default=60)
    parser.add_argument("--budget", type=float, default=300)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.run:
        method, rate, budget, file = json.loads(arguments.run)
        print(json.dumps(train(method, rate, budget, Path(file), arguments)))
        return
    names = ("labels", "classes", "examples", "steps")
    given = [str(part) for name in names for part in (f"--{name}", getattr(arguments, name))]

    def run(method: str, rate: float, budget: float, file: Path) -> list[dict]:
        spec = json.dumps([method, rate, budget, str(file)])
        rows = json.loads(harness.in_child(*given, "--run", spec))
        print(method, rate, [(row["seconds"], row["precision_at_1"]) for row in rows], flush=True)
        return rows

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.bin"
        write(file, arguments)
        for method in arguments.methods:
            best = arguments.rates[0]
            if len(arguments.rates) > 1:
                tuned = {
                    rate: float(run(method, rate, arguments.tuning, file)[-1]["precision_at_1"])
                    for rate in arguments.rates
                }
                best = max(tuned, key=tuned.__getitem__)
            for row in run(method, best, arguments.budget, file):
                harness.append_row(arguments.output, row)


if __name__ == "__main__":
    main()
