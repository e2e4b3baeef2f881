# SPDX-License-Identifier: Apache-2.0
"""A million steps of FactoredHead in float32: how far is W from a naive float64 layer's W?

Both see the same batches, of positive h, from a fixed pool. Each batch is scaled so that the
largest eigenvalue of H^T H is 1: with the squared error, 2 eta lambda_max of H^T diag(dL/dq) H is
the value in the row in every step, and the naive layer is stable below 2. A naive layer in float32
shows the effect of rounding alone.

The gradients of the squared error with respect to the statistics do not depend on W. The gradients
of the Taylor softmax do: with "own" each layer uses the gradients of its logits, as in training;
with "given" the naive layers use the head's gradients, which isolates the errors of the update.

    python benchmarks/factored_million_steps.py                 # writes CSV rows
    python benchmarks/factored_million_steps.py --steps 10000   # nothing is written
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.heads import FactoredHead
from tfx_largeout.labels import normalize_labels
from tfx_largeout.statistics import SphericalStatistics

CLASSES, WIDTH, BATCH, POOL = 200, 16, 8, 10_007
ALL_STEPS = 1_000_000
LOOKS = 100  # measurements of W, evenly spaced; and at 1,000, 10,000, ... steps, each a row


class Run(NamedTuple):
    """The settings of a training.

    Attributes:
        loss: The loss, summed over the batch.
        gradients: Whether a naive layer uses its "own" gradients or is "given" the head's.
        two_eta_lambda: For the Taylor softmax while all logits are 0.
        eta_decay: eta times the weight decay.
    """

    loss: str
    gradients: str
    two_eta_lambda: float
    eta_decay: float


RUNS = (
    Run("squared_error", "own", 0.02, 0),
    Run("squared_error", "own", 0.5, 0),
    Run("squared_error", "own", 0.9, 0),
    Run("squared_error", "own", 1.9, 0),
    Run("squared_error", "own", 0.001, 1e-5),
    Run("taylor_softmax", "given", 0.2, 1e-4),
    Run("taylor_softmax", "own", 0.2, 1e-4),
)
LOSSES = {"squared_error": tlo.losses.SquaredError(), "taylor_softmax": tlo.losses.TaylorSoftmax()}

Gradients = tuple[tf.Tensor, ...]  # with respect to a, q and s


class NaiveLayer:
    """All of W in a variable, and SGD."""

    def __init__(self, kernel: np.ndarray, dtype: tf.DType, run: Run, rate: float) -> None:
        self.kernel = tf.Variable(kernel, dtype=dtype)
        self.run = run
        self.rate = tf.constant(np.float32(rate), dtype)
        self.decay = self.rate * tf.constant(np.float32(run.eta_decay / rate), dtype)

    def step(self, hidden: tf.Tensor, labels: tf.Tensor, given: Gradients) -> None:
        """Takes a step."""
        hidden = tf.cast(hidden, self.kernel.dtype)
        kernel = self.kernel.read_value()
        logits = tf.matmul(hidden, kernel, transpose_b=True)
        if self.run.gradients == "own":
            given = self._gradients(logits, labels)
        targets, squares, sums = (tf.cast(g, logits.dtype) for g in given)
        error = 2 * squares[:, tf.newaxis] * logits + sums[:, tf.newaxis]
        error += targets * tf.one_hot(labels[:, 0], CLASSES, dtype=logits.dtype)
        change = self.rate * tf.matmul(error, hidden, transpose_a=True)
        self.kernel.assign(kernel - self.decay * kernel - change)

    def _gradients(self, logits: tf.Tensor, labels: tf.Tensor) -> Gradients:
        values = (
            tf.gather(logits, labels, batch_dims=1),
            tf.reduce_sum(logits**2, axis=1),
            tf.reduce_sum(logits, axis=1),
        )
        with tf.GradientTape() as tape:
            tape.watch(values)
            own = SphericalStatistics(normalize_labels(labels, CLASSES), *values, CLASSES)
            loss = tf.reduce_sum(LOSSES[self.run.loss].from_statistics(own))
        return tuple(tape.gradient(loss, values, unconnected_gradients="zero"))


def measure(run: Run, steps: int) -> Iterator[dict[str, Any]]:
    """Trains the three layers; yields rows."""
    keras.utils.set_random_seed(1)
    # At logits of 0, dL/dq of the Taylor softmax is 1 / (2 C).
    rate = run.two_eta_lambda / 2 * (1 if run.loss == "squared_error" else 2 * CLASSES)
    head = FactoredHead(
        CLASSES,
        tlo.optimizers.RowSGD(rate, weight_decay=run.eta_decay / rate),
        kernel_initializer=keras.initializers.RandomNormal(stddev=0.1, seed=1),
    )
    head.build((None, WIDTH))
    start = head.materialize()[0]
    layers = [NaiveLayer(start, dtype, run, rate) for dtype in (tf.float64, tf.float32)]
    train = _loop(head, layers, run)
    anchors, largest, done, clock = 0, 0.0, 0, time.perf_counter()
    powers = {10**power for power in range(3, 10)} | {steps}
    for look in sorted({steps * i // LOOKS for i in range(1, LOOKS + 1)} | powers):
        if look > steps:
            break
        anchors += int(train(tf.constant(done), tf.constant(look)))
        done = look
        exact, single = (layer.kernel.numpy().astype(np.float64) for layer in layers)
        condition = head.condition_number()
        own = head.materialize()[0].astype(np.float64)
        largest = max(largest, _frobenius(own, exact))
        if look not in powers:
            continue
        yield {
            **run._asdict(),
            "steps": look,
            "error_frobenius": f"{_frobenius(own, exact):.2e}",
            "error_largest_entry": f"{_largest(own, exact):.2e}",
            "error_frobenius_largest_so_far": f"{largest:.2e}",
            "error_of_naive_float32": f"{_frobenius(single, exact):.2e}",
            "norm_of_w": f"{np.linalg.norm(exact):.4g}",
            "new_anchors": anchors,
            "condition_number": f"{condition:.3g}",
            "drift_of_gram": f"{head.drift().gram:.2e}",
            "drift_of_inverse": f"{head.drift().inverse:.2e}",
            "seconds": round(time.perf_counter() - clock),
        }


def _frobenius(own: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(own - exact) / np.linalg.norm(exact))


def _largest(own: np.ndarray, exact: np.ndarray) -> float:
    return float(np.abs(own - exact).max() / np.abs(exact).max())


def _loop(head: FactoredHead, layers: list[NaiveLayer], run: Run) -> Any:
    """Returns a function that takes steps [start, end), and gives the number of new anchors."""
    hidden_pool, label_pool = _pool()

    def step(index: tf.Tensor, anchors: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        hidden, labels = hidden_pool[index % POOL], label_pool[index % POOL]
        before = head.state.current_slot.value.read_value()
        gradients = _head_step(head, LOSSES[run.loss], hidden, labels)
        is_new = head.state.current_slot.value.read_value() != before
        for layer in layers:
            layer.step(hidden, labels, gradients)
        return index + 1, anchors + tf.cast(is_new, tf.int32)

    @tf.function
    def train(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        first = (start, tf.constant(0))
        return tf.while_loop(lambda i, _: i < end, step, first, parallel_iterations=1)[1]

    return train


def _pool() -> tuple[tf.Tensor, tf.Tensor]:
    rng = np.random.default_rng(1)
    hidden = np.abs(rng.normal(size=[POOL, BATCH, WIDTH]))
    hidden /= np.linalg.norm(hidden, ord=2, axis=(1, 2), keepdims=True)
    labels = rng.integers(CLASSES, size=[POOL, BATCH, 1])
    return tf.constant(hidden, tf.float32), tf.constant(labels, tf.int64)


def _head_step(head: FactoredHead, loss: Any, hidden: tf.Tensor, labels: tf.Tensor) -> Gradients:
    """Takes a step of the head; returns the gradients with respect to a, q and s."""
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        normal = normalize_labels(labels, CLASSES)
        statistics = head.statistics(loss.trains_on, hidden, normal, training=True)
        value = tf.reduce_sum(loss.from_statistics(statistics))
    by = (statistics.target_logits, statistics.sum_of_squares, statistics.sum_of_logits)
    *gradients, of_hidden = tape.gradient(value, [*by, hidden], unconnected_gradients="zero")
    with tf.control_dependencies([of_hidden]):
        head.take_step()
        return tuple(tf.identity(gradient) for gradient in gradients)


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=ALL_STEPS)
    parser.add_argument("--runs", type=int, nargs="+", default=list(range(len(RUNS))))
    arguments = parser.parse_args()
    rows = []
    for run in arguments.runs:
        for row in measure(RUNS[run], arguments.steps):
            shape = {"classes": CLASSES, "width": WIDTH, "batch": BATCH}
            rows.append({**row, **shape, **harness.machine()})
            print(row, flush=True)
    if arguments.steps == ALL_STEPS:
        harness.write_csv(harness.RESULTS / "factored_million_steps.csv", rows)


if __name__ == "__main__":
    main()
