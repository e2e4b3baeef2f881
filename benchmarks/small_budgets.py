# SPDX-License-Identifier: Apache-2.0
"""Which sampler is best at which S: results of a head after the same epochs.

For each data set: `uniform`, `log_uniform` and `unigram` (n^0.75) candidates, `midx_pq` and
`midx_rq` (`MIDX`), each shared by a batch and per example; `lsh_embedding` and `lsh_label`, half
from an index and half log-uniform, likewise; `wta_top_k`; `exact_softmax`, candidates per example
from the softmax itself (`ExactSoftmaxSampler`), at a very high cost: the limit of samplers that
follow W; and, without an S, `full_softmax` and `selected_softmax`: `ExactSoftmaxHead` with
`backward="all"`, which updates all rows in each step, and with "selected".

Biases start at log class frequencies (`LogFrequency`), or with `--bias zeros` at 0. The loss and
the learning rate of the head are chosen for each row at S = 30 by P@1 of the test examples (by the
exact loss on a text): first the loss, then the rate. Shared S is per batch, otherwise S is per
example.

    python benchmarks/small_budgets.py wordnet/hyper wordnet/lemma gowalla=FOLDER text=FILE

`wordnet/hyper` and `wordnet/lemma` are shipped; a folder holds train and test files of the extreme
classification format; a file is a text for the n-gram model of examples/, whose "epochs" are 500
steps each. `--samplers`, `--sharing`, `--sizes`, `--losses` and `--rates` choose a part. A row per
epoch is written when a run has ended, and a restart skips finished runs. Seconds are CPU time,
training and evaluation, from the start of a run: on one core (`taskset -c 0`) equal to wall time,
if nothing else runs.
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
import numpy as np

import tfx_largeout as tlo
from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.settings import WORDNET, DataSettings

OUTPUT = harness.RESULTS / "small_budgets.csv"
BATCH, HIDDEN, SEED = 512, 128, 0
TUNED_AT, SIZES = 30, (10, 30, 100, 300, 1000, 3000)
RATES = (0.005, 0.01, 0.02, 0.04, 0.08)
RATES_OF_ALL = 3  # the larger ones only while the largest that was tried is the best
STEPS_OF_TEXT, HELD_OUT, ORDER, EMBEDDING, HIDDEN_OF_TEXT = 500, 10_000, 6, 100, 300

DRAWN = ("ComplementarySum", "SampledSoftmax")  # losses for candidates with known probabilities
SOFTMAX, EXACT = ("SoftmaxCrossentropy",), ("ComplementarySum", "ImportanceSampling")
BACKWARD = {"full_softmax": "all", "selected_softmax": "selected"}
SHARING = ("shared", "own", "all")  # candidates of the batch, of each example, all classes


class Kind(NamedTuple):
    """A sampler: how it is made from S, own or not, and counts; its losses; shared, own or both."""

    make: Callable[[int, bool, Any], tlo.samplers.Sampler]
    losses: tuple[str, ...] = DRAWN
    sharing: tuple[str, ...] = ("shared", "own")


def half_found(sampler: type) -> Callable[[int, bool, Any], tlo.samplers.Sampler]:
    """Returns the function that creates a sampler with an index; half of its S are drawn."""

    def make(s: int, own: bool, counts: Any) -> tlo.samplers.Sampler:
        drawn = tlo.samplers.LogUniform(s - s // 2, per_example=own)
        return sampler(s // 2, drawn, per_example=own)

    return make


KINDS = {
    "uniform": Kind(lambda s, own, n: tlo.samplers.Uniform(s, per_example=own)),
    "log_uniform": Kind(lambda s, own, n: tlo.samplers.LogUniform(s, per_example=own)),
    "unigram": Kind(lambda s, own, n: tlo.samplers.Unigram(n, s, 0.75, per_example=own)),
    "midx_pq": Kind(lambda s, own, n: tlo.samplers.MIDX(s, quantization="pq", per_example=own)),
    "midx_rq": Kind(lambda s, own, n: tlo.samplers.MIDX(s, quantization="rq", per_example=own)),
    "lsh_embedding": Kind(half_found(tlo.samplers.LSHEmbedding)),
    "lsh_label": Kind(half_found(tlo.samplers.LSHLabel)),
    "wta_top_k": Kind(lambda s, own, n: tlo.samplers.WTATopK(s), ("ActiveSetSoftmax",), ("own",)),
    "exact_softmax": Kind(lambda s, own, n: tlo.samplers.ExactSoftmaxSampler(s), EXACT, ("own",)),
    **dict.fromkeys(BACKWARD, Kind(lambda s, own, n: None, SOFTMAX, ("all",))),
}
LOSSES = sorted({loss for kind in KINDS.values() for loss in kind.losses})


class Run(NamedTuple):
    """One training: columns of its rows. S is 0 for all classes."""

    data: str
    sampler: str
    sharing: str
    s: int
    loss: str
    rate: float
    bias: str


class Problem(NamedTuple):
    """A data set: its classes, their counts, its model below the head, and its batches."""

    classes: int
    counts: Any
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
    counts = train.label_counts() + 1
    return Problem(train.num_labels, counts, trunk, batches, test.dataset(BATCH), epochs)


def text_problem(file: Path) -> Problem:
    """Returns the next word of a text, with the model of examples/ngram_language_model.py."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
    import ngram_language_model as example

    vocabulary, numbers = example.number_words(example.read_words(file))

    def trunk() -> tuple[Any, Any, Any]:
        inputs = keras.Input([ORDER - 1], dtype="int64")
        words = tlo.layers.RowEmbedding(len(vocabulary), EMBEDDING)(inputs)
        flat = keras.layers.Flatten()(words)
        hidden = keras.layers.Dense(HIDDEN_OF_TEXT, activation="relu")(flat)
        return inputs, hidden, keras.optimizers.Adam(1e-3)

    train = example.ngrams(numbers[:-HELD_OUT], ORDER, BATCH, shuffle=True).repeat()
    test = example.ngrams(numbers[-HELD_OUT:], ORDER, BATCH, shuffle=False)
    counts = np.bincount(numbers[:-HELD_OUT], minlength=len(vocabulary)) + 1
    return Problem(len(vocabulary), counts, trunk, train, test, 3, STEPS_OF_TEXT)


def problem_of(name: str, source: str) -> Problem:
    """Returns the data set that an argument names."""
    return text_problem(Path(source)) if is_text(source) else xc_problem(name, source)


def is_text(source: str) -> bool:
    """Returns whether a source is a file, not a folder."""
    return Path(source).is_file()


def head_of(run: Run, problem: Problem) -> tuple[Any, Any]:
    """Returns the head and the loss of a run."""
    shared: dict[str, Any] = {"bias_initializer": "zeros", "seed": SEED}
    if run.bias == "log_frequency":
        shared["bias_initializer"] = tlo.initializers.LogFrequency(problem.counts)
    optimizer = tlo.optimizers.RowAdam(run.rate)
    loss = getattr(tlo.losses, run.loss)()
    backward = BACKWARD.get(run.sampler)
    if backward:
        head = tlo.heads.ExactSoftmaxHead(problem.classes, optimizer, backward=backward, **shared)
        return head, loss
    sampler = KINDS[run.sampler].make(run.s, run.sharing == "own", problem.counts)
    return tlo.heads.SampledHead(problem.classes, sampler, optimizer, **shared), loss


def train(run: Run, problem: Problem) -> list[dict[str, Any]]:
    """Trains; returns a row per epoch."""
    keras.utils.set_random_seed(SEED)
    head, loss = head_of(run, problem)
    inputs, hidden, optimizer = problem.trunk()
    model = keras.Model(inputs, head(hidden))
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.ExactLoss()]
    model.compile(optimizer, loss=loss, metrics=metrics)
    start, seconds = time.process_time(), []
    note = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seconds.append(time.process_time() - start)
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
            "classes": problem.classes,
            "epoch": epoch + 1,
            "precision_at_1": f"{curves['val_precision_at_1'][epoch]:.4f}",
            "exact_loss": f"{loss:.4f}",
            "perplexity": f"{math.exp(loss):.1f}" if problem.steps else "",
            "seconds": f"{seconds[epoch]:.0f}",
            **harness.machine(),
        }
        for epoch, loss in enumerate(curves["val_exact_loss"])
    ]


class Table:
    """The rows of the CSV, of finished runs."""

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


def runs_of(
    data: str, text: bool, sampler: str, sharing: str, arguments: argparse.Namespace, table: Table
) -> Iterator[Run]:
    """Yields the losses at S = 30, then the rates of the best, then its other S."""
    s, rates = 0 if sampler in BACKWARD else TUNED_AT, arguments.rates
    first = Run(data, sampler, sharing, s, "", rates[0], arguments.bias)
    losses = [loss for loss in KINDS[sampler].losses if loss in arguments.losses]
    if not losses:
        return
    runs = [first._replace(loss=loss) for loss in losses]
    yield from runs
    best = table.best(runs, text)
    runs = []
    for rate in rates:
        runs.append(best._replace(rate=rate))
        yield runs[-1]
        if len(runs) >= RATES_OF_ALL and table.best(runs, text) != runs[-1]:
            break
    best = table.best(runs, text)
    yield from (best._replace(s=size) for size in arguments.sizes if sampler not in BACKWARD)


def main() -> None:
    """Parses the command line, and trains settings that are not in the table yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sets", nargs="+", help="wordnet/hyper, wordnet/lemma, NAME=FOLDER or FILE")
    parser.add_argument("--samplers", nargs="+", choices=KINDS, default=list(KINDS))
    parser.add_argument("--sharing", nargs="+", choices=SHARING, default=list(SHARING))
    parser.add_argument("--sizes", nargs="+", type=int, default=list(SIZES))
    parser.add_argument("--losses", nargs="+", choices=LOSSES, default=LOSSES)
    parser.add_argument("--rates", nargs="+", type=float, default=list(RATES))
    parser.add_argument("--bias", choices=["log_frequency", "zeros"], default="log_frequency")
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--run", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    sources = dict(name.partition("=")[::2] for name in arguments.sets)
    if arguments.run:
        run = Run(*json.loads(arguments.run))
        print(json.dumps(train(run, problem_of(run.data, sources[run.data]))))
        return
    table = Table(arguments.output)
    for data, source in sources.items():
        rows = [
            (sampler, sharing)
            for sampler in arguments.samplers
            for sharing in KINDS[sampler].sharing
            if sharing in arguments.sharing
        ]
        for sampler, sharing in rows:
            text = is_text(source)
            for run in runs_of(data, text, sampler, sharing, arguments, table):
                if not table.has(run):
                    # In a separate process, which frees its memory at the end.
                    ended = harness.in_child(*arguments.sets, "--run", json.dumps(run))
                    table.add(json.loads(ended))
                    shown = ("precision_at_1", "exact_loss", "seconds")
                    print(*run, *(table.rows[-1][name] for name in shown), flush=True)


if __name__ == "__main__":
    main()
