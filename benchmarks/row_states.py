# SPDX-License-Identifier: Apache-2.0
"""Bytes per class, and the loss, with weights and slots of an optimizer in few bytes.

A row is an optimizer of a `SampledHead` on the WordNet reverse dictionary (139,536 classes, D =
128): the bytes per class of W, b and their slots; the time of a training step, and of only the
update of 20,000 rows, relative to the same method in float32, measured in turns; the mean training
loss of each epoch of 25,600 examples; and the exact loss on 1,024 test examples after the last one,
and its difference from float32.

    taskset -c 0 python benchmarks/row_states.py
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.datasets import load_wordnet, tf_idf
from tfx_largeout.optimizers import RowAdagrad, RowAdam

WIDTH, BATCH, SAMPLED, ROWS = 128, 512, 1000, 20_000
EXAMPLES, HELD_OUT = 25_600, 1024
NARROW = {"stochastic_rounding": True, "seed": 0}


class Kept(NamedTuple):
    """How a head is kept: the dtype of its weights, and its optimizer."""

    method: str
    dtype: str
    options: Mapping[str, Any] = MappingProxyType({})

    @property
    def optimizer(self) -> Any:
        """A new one."""
        if self.method == "adagrad":
            return RowAdagrad(0.3, **self.options)
        return RowAdam(0.005, **self.options)


ADAM = {"row_wise": True, "moment_dtype": "bfloat16", **NARROW}
KINDS = {
    "adagrad": Kept("adagrad", "float32"),
    "adagrad bfloat16": Kept("adagrad", "bfloat16"),
    "adagrad stochastic": Kept("adagrad", "bfloat16", NARROW),
    "adagrad stochastic row-wise": Kept("adagrad", "bfloat16", {"row_wise": True, **NARROW}),
    "adagrad compensated": Kept("adagrad", "bfloat16", {"compensation": True}),
    "adam": Kept("adam", "float32"),
    "adam bfloat16": Kept("adam", "bfloat16"),
    "adam stochastic": Kept("adam", "bfloat16", NARROW),
    "adam stochastic row-wise, bfloat16 m": Kept("adam", "bfloat16", ADAM),
    "adam compensated": Kept("adam", "bfloat16", {"compensation": True}),
}


def model_of(kept: Kept, features: int, classes: int) -> Any:
    """Returns a compiled model."""
    keras.utils.set_random_seed(0)
    head = tlo.heads.SampledHead(
        classes, tlo.samplers.LogUniform(SAMPLED), kept.optimizer, seed=0, dtype=kept.dtype
    )
    inputs = keras.Input([features], sparse=True)
    trunk = tlo.layers.SparseDense(WIDTH, activation="relu")
    model = keras.Model(inputs, head(trunk(inputs)))
    model.compile(tlo.optimizers.RowRMSprop(2e-3), loss=tlo.losses.ComplementarySum())
    return model


def bytes_a_class(head: Any) -> float:
    """Returns the bytes of the variables with a row per class."""
    variables = {id(v): v for v in (*head.variables, *head.optimizer.variables)}
    rows = [v for v in variables.values() if tuple(v.shape[:1]) == (head.num_classes,)]
    return sum(np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in rows) / head.num_classes


def update_of(kept: Kept, classes: int) -> Callable[[], Any]:
    """Returns a function that takes a step on ROWS rows, in a graph."""
    table = keras.Variable(np.ones([classes, WIDTH], "float32"), dtype=kept.dtype)
    optimizer = kept.optimizer
    optimizer.build([table])
    rng = np.random.default_rng(0)
    ids = tf.constant(rng.permutation(classes)[:ROWS])
    gradient = tf.constant(rng.normal(size=[ROWS, WIDTH]).astype("float32"))

    @tf.function(autograph=False)
    def step() -> None:
        for _ in range(10):
            rule = optimizer.rule_of(table)
            tlo.ops.rows.row_update.row_update(
                table, optimizer.slots_of(table), ids, gradient, rule, 1e-3
            )

    return step


def main() -> None:
    """Trains, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--quick", action="store_true", help="one epoch, no CSV")
    arguments = parser.parse_args()
    epochs = 1 if arguments.quick else arguments.epochs
    train, test = tf_idf(*load_wordnet("hyper"))
    rng = np.random.default_rng(0)
    train = train.take(np.sort(rng.permutation(len(train))[:EXAMPLES]))
    test = test.take(np.sort(rng.permutation(len(test))[:HELD_OUT]))
    classes = train.num_labels
    updates = {name: update_of(kept, classes) for name, kept in KINDS.items()}
    update_seconds = harness.alternate(updates, arguments.repeats)
    updates.clear()
    models = {name: model_of(kept, train.num_features, classes) for name, kept in KINDS.items()}
    losses: dict[str, list[float]] = {name: [] for name in models}
    seconds: dict[str, list[float]] = {name: [] for name in models}
    for epoch in range(epochs):
        for name, model in models.items():
            batches = train.dataset(BATCH, shuffle=True, seed=epoch)
            clock = StepClock()
            history = model.fit(batches, shuffle=False, verbose=0, callbacks=[clock]).history
            seconds[name].append(float(np.median(clock.seconds)))
            losses[name] += history["loss"]
            print(epoch + 1, name, round(losses[name][-1], 4), flush=True)
    final = {name: model.evaluate(test.dataset(BATCH), verbose=0) for name, model in models.items()}
    rows = []
    for name, kept in KINDS.items():
        base = kept.method
        rows.append(
            {
                "optimizer": name,
                "bytes_a_class": round(float(bytes_a_class(models[name].layers[-1])), 1),
                "update_ratio": round(update_seconds[name] / update_seconds[base], 3),
                "step_ratio": round(float(np.median(seconds[name]) / np.median(seconds[base])), 3),
                "step_ms": round(1e3 * float(np.median(seconds[name])), 2),
                "epochs": epochs,
                "loss": round(final[name], 4),
                "over_float32": round(final[name] / final[base] - 1, 5),
                "training_losses": " ".join(f"{loss:.4f}" for loss in losses[name]),
                **harness.machine(),
            }
        )
        print({key: rows[-1][key] for key in list(rows[-1])[:8]})
    if not arguments.quick:
        harness.write_csv(harness.RESULTS / "row_states.csv", rows)


class StepClock(keras.callbacks.Callback):
    """The seconds of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds: list[float] = []

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.seconds.append(time.perf_counter() - self._start)


if __name__ == "__main__":
    main()
