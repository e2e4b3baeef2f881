# SPDX-License-Identifier: Apache-2.0
"""What adaptive sampling could gain: candidates from the softmax itself beside log-uniform ones.

A sampler that follows the weights approximates the softmax. `ExactSoftmaxSampler` draws from it, at
a cost that no one would pay; by how much it is ahead of an example's own log-uniform candidates
after the same epochs is the most that any such sampler can be ahead. For each data set and S:

- `exact_softmax`: S of an example's own, from the softmax;
- `log_uniform_own`: S of an example's own;
- `log_uniform_shared`: 10 S for the batch, which cost less than S of each example's own;
- `full_softmax`: `ExactSoftmaxHead(backward="all")`, once.

The loss and the learning rate of the head are chosen on each side at S = 30, by P@1 on the test
examples (by the exact loss on a text): first the loss, then the rate. Then S = 10, 100 and 300 with
the loss, at the first rate and at the best.

    python benchmarks/sampler_headroom.py wordnet/hyper wordnet/lemma gowalla=FOLDER text=FILE

`wordnet/hyper` and `wordnet/lemma` are shipped; a folder holds train and test files of the extreme
classification format; a file is a text for the n-gram model of examples/, whose "epochs" are 500
steps each. A row an epoch is written when a run has ended, and a second start skips what is there.
Seconds are those since the start of a run, whatever else the machine did: do not compare them.
"""

from __future__ import annotations

import argparse
import csv
import json
import math
import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras

import tfx_largeout as tlo
from tfx_largeout.compare.data import WORDNET, find_files, load
from tfx_largeout.compare.settings import DataSettings

OUTPUT = harness.RESULTS / "sampler_headroom.csv"
BATCH, HIDDEN, SEED = 512, 128, 0
TUNED_AT, OTHERS, LAST = 30, (10, 100), 300
RATE, OTHER_RATES = 0.005, (0.0025, 0.01)
STEPS_OF_TEXT, HELD_OUT, ORDER, EMBEDDING, HIDDEN_OF_TEXT = 500, 10_000, 6, 100, 300

SAMPLERS: dict[str, Callable[[int], tlo.samplers.Sampler]] = {
    "log_uniform_shared": lambda s: tlo.samplers.LogUniform(10 * s),
    "log_uniform_own": lambda s: tlo.samplers.LogUniform(s, per_example=True),
    "exact_softmax": tlo.samplers.ExactSoftmaxSampler,
}
LOSSES = {
    "log_uniform_shared": ("ComplementarySum", "SampledSoftmax"),
    "log_uniform_own": ("ComplementarySum", "SampledSoftmax"),
    "exact_softmax": ("ComplementarySum", "ImportanceSampling"),
}
FULL = "full_softmax"


class Run(NamedTuple):
    """One training: columns of its rows. S is 0 for the full softmax."""

    data: str
    sampler: str
    s: int
    loss: str
    rate: float


class Problem(NamedTuple):
    """A data set: its classes, its model below the head, and its batches."""

    classes: int
    trunk: Callable[[], tuple[Any, Any, Any]]
    train: Any
    test: Any
    epochs: int
    steps: int | None = None


def xc_problem(name: str, folder: str) -> Problem:
    """Returns a set of sparse examples with many labels, as `tfx-largeout compare` trains it."""
    files = (None, *find_files(folder)) if folder else (WORDNET[name],)
    train, test = load(DataSettings(*files))

    def trunk() -> tuple[Any, Any, Any]:
        inputs = keras.Input([train.num_features], sparse=True)
        hidden = tlo.layers.SparseDense(HIDDEN, activation="relu")(inputs)
        return inputs, hidden, keras.optimizers.Adam(2e-3)

    batches = train.dataset(BATCH, shuffle=True, seed=SEED, drop_remainder=True)
    epochs = 3 if folder else 2
    return Problem(train.num_labels, trunk, batches, test.dataset(BATCH), epochs)


def text_problem(file: Path) -> Problem:
    """Returns the next word of a text, with the model of examples/ngram_language_model.py."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import ngram_language_model as example

    vocabulary, numbers = example.number_words(example.read_words(file))

    def trunk() -> tuple[Any, Any, Any]:
        inputs = keras.Input([ORDER - 1], dtype="int64")
        words = example.WordVectors(len(vocabulary), EMBEDDING)(inputs)
        flat = keras.layers.Flatten()(words)
        hidden = keras.layers.Dense(HIDDEN_OF_TEXT, activation="relu")(flat)
        return inputs, hidden, keras.optimizers.Adam(1e-3)

    train = example.ngrams(numbers[:-HELD_OUT], ORDER, BATCH, shuffle=True).repeat()
    test = example.ngrams(numbers[-HELD_OUT:], ORDER, BATCH, shuffle=False)
    return Problem(len(vocabulary), trunk, train, test, 3, STEPS_OF_TEXT)


def problem_of(name: str, source: str) -> Problem:
    """Returns the data set that an argument names."""
    return text_problem(Path(source)) if is_text(source) else xc_problem(name, source)


def is_text(source: str) -> bool:
    """Returns whether a source is a file, not a folder."""
    return Path(source).is_file()


def head_of(run: Run, classes: int) -> tuple[Any, Any]:
    """Returns the head and the loss of a run."""
    optimizer = tlo.optimizers.RowAdam(run.rate)
    loss = getattr(tlo.losses, run.loss)()
    if run.sampler == FULL:
        head = tlo.heads.ExactSoftmaxHead(classes, optimizer, backward="all", seed=SEED)
        return head, loss
    return tlo.heads.SampledHead(classes, SAMPLERS[run.sampler](run.s), optimizer, seed=SEED), loss


def train(run: Run, problem: Problem) -> list[dict[str, Any]]:
    """Trains; returns a row an epoch."""
    keras.utils.set_random_seed(SEED)
    head, loss = head_of(run, problem.classes)
    inputs, hidden, optimizer = problem.trunk()
    model = keras.Model(inputs, head(hidden))
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.ExactLoss()]
    model.compile(optimizer, loss=loss, metrics=metrics)
    start, seconds = time.perf_counter(), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seconds.append(time.perf_counter() - start)
    )
    curves = model.fit(
        problem.train,
        validation_data=problem.test,
        epochs=problem.epochs,
        steps_per_epoch=problem.steps,
        shuffle=False,  # the data set does it
        callbacks=[note],
        verbose=0,
    ).history
    return [
        {
            **run._asdict(),
            "candidates": 10 * run.s if run.sampler == "log_uniform_shared" else run.s,
            "classes": problem.classes,
            "epoch": epoch + 1,
            "precision_at_1": f"{curves['val_precision_at_1'][epoch]:.4f}",
            "exact_loss": f"{loss:.4f}",
            "perplexity": f"{math.exp(loss):.1f}" if problem.steps else "",
            "seconds_not_to_compare": f"{seconds[epoch]:.0f}",
            **harness.machine(),
        }
        for epoch, loss in enumerate(curves["val_exact_loss"])
    ]


class Table:
    """The rows of the CSV: those of runs that have ended."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.rows: list[dict[str, Any]] = []
        if path.exists():
            with path.open(newline="") as file:
                self.rows = list(csv.DictReader(file))

    def has(self, run: Run) -> bool:
        """Whether the run has ended."""
        return any(_is_of(row, run) for row in self.rows)

    def add(self, rows: list[dict[str, Any]]) -> None:
        """Adds the rows of a run, and writes the file."""
        self.rows += rows
        harness.write_csv(self.path, self.rows)

    def best(self, runs: list[Run], text: bool) -> Run:
        """Returns the run that is ahead after its last epoch."""

        def badness(run: Run) -> float:
            last = [row for row in self.rows if _is_of(row, run)][-1]
            return float(last["exact_loss"]) if text else -float(last["precision_at_1"])

        return min(runs, key=badness)


def _is_of(row: dict[str, Any], run: Run) -> bool:
    return all(str(row[name]) == str(value) for name, value in run._asdict().items())


def first_runs(data: str, text: bool, table: Table) -> Iterator[Run]:
    """Gives the losses at S = 30 of each side, then the best one's other S. For `plan`."""
    for sampler, losses in LOSSES.items():
        yield from (Run(data, sampler, TUNED_AT, loss, RATE) for loss in losses)
    for s in OTHERS:
        for best in _best_losses(data, text, table):
            yield best._replace(s=s)
    yield Run(data, FULL, 0, "SoftmaxCrossentropy", RATE)


def further_runs(data: str, text: bool, table: Table) -> Iterator[Run]:
    """Gives the rates at S = 30, then the largest S, and all S at the best rate."""
    losses = _best_losses(data, text, table)
    for rate in OTHER_RATES:
        yield from (best._replace(rate=rate) for best in losses)
    for s in (LAST, *OTHERS):
        for first in losses:
            rates = [first._replace(rate=rate) for rate in (RATE, *OTHER_RATES)]
            yield first._replace(s=s)
            yield table.best(rates, text)._replace(s=s)


def _best_losses(data: str, text: bool, table: Table) -> list[Run]:
    return [
        table.best([Run(data, sampler, TUNED_AT, loss, RATE) for loss in losses], text)
        for sampler, losses in LOSSES.items()
    ]


def main() -> None:
    """Parses the command line, and trains what is not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", help="wordnet/hyper, wordnet/lemma, NAME=FOLDER or FILE")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sources = dict(name.partition("=")[::2] for name in arguments.sets)
    if arguments.run:
        run = Run(*json.loads(arguments.run))
        print(json.dumps(train(run, problem_of(run.data, sources[run.data]))))
        return
    table = Table(arguments.output)
    for runs in (first_runs, further_runs):
        for data, source in sources.items():
            for run in runs(data, is_text(source), table):
                if not table.has(run):
                    # In a process of its own, whose memory goes with it.
                    rows = harness.in_child(*arguments.sets, "--run", json.dumps(run))
                    table.add(json.loads(rows))
                    shown = ("precision_at_1", "exact_loss", "seconds_not_to_compare")
                    print(*run, *(table.rows[-1][name] for name in shown), flush=True)


if __name__ == "__main__":
    main()
