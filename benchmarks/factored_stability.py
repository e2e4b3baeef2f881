# SPDX-License-Identifier: Apache-2.0
"""The accuracy of the factored update in float32 over many steps, for each stabilization.

Squared error on positive h, the hard case: U shrinks along the mean of h in every step. For
comparison the naive layer runs in float64 (the reference) and in float32. The learning rate of each
step is chosen so that 2 eta lambda_max of H^T diag(dL/dq) H is the value in the row.

    python benchmarks/factored_stability.py                # 100,000 steps each; writes CSV rows
    python benchmarks/factored_stability.py --steps 1000   # nothing is written
"""

from __future__ import annotations

import argparse
import os
from typing import Any

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import harness
import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.heads import FactoredHead
from tfx_largeout.ops.factored.factored_update import (
    MAX_CONDITION,
    factored_statistics,
    factored_update,
)
from tfx_largeout.ops.factored.singular_value_stabilization import METHODS, stabilize

CLASSES, WIDTH, BATCH = 500, 32, 16
RATES = (0.02, 0.2, 0.8)
ALL_STEPS = 100_000


def measure(stabilization: str, two_eta_lambda: float, steps: int) -> dict[str, Any]:
    """Trains both layers; returns a row."""
    keras.utils.set_random_seed(1)
    head = FactoredHead(
        CLASSES, 1.0, kernel_initializer=keras.initializers.RandomNormal(stddev=0.1, seed=1)
    )
    head.build((None, WIDTH))
    naive = tf.Variable(head.materialize()[0].astype("float64"))
    single = tf.Variable(head.materialize()[0])
    errors, conditions = [], []
    run = _loop(head, (naive, single), stabilization, two_eta_lambda)
    parts = 23  # not a divisor of the steps between two anchors
    for part in range(parts):
        try:
            run(tf.constant(part * steps // parts), tf.constant((part + 1) * steps // parts))
        except tf.errors.InvalidArgumentError:  # the state is no longer finite
            errors.append(np.inf)
            conditions.append(np.inf)
            break
        conditions.append(head.condition_number())
        errors.append(_difference(head.materialize()[0], naive.numpy()))
    drift = head.drift() if np.isfinite(errors[-1]) else (np.inf, np.inf)
    return {
        "stabilization": stabilization,
        "two_eta_lambda": two_eta_lambda,
        "steps": steps,
        "failed_before_step": "" if np.isfinite(errors[-1]) else len(errors) * steps // parts,
        "relative_error": f"{errors[-1]:.2e}",
        "largest_relative_error": f"{max(errors):.2e}",
        "relative_error_of_naive_float32": f"{_difference(single.numpy(), naive.numpy()):.2e}",
        "condition_number": f"{conditions[-1]:.3g}",
        "largest_condition_number": f"{max(conditions):.3g}",
        "drift_of_gram": f"{drift[0]:.2e}",
        "drift_of_inverse": f"{drift[1]:.2e}",
    }


def _difference(own: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(own - exact) / np.linalg.norm(exact))


def _loop(
    head: FactoredHead,
    layers: tuple[tf.Variable, ...],
    stabilization: str,
    two_eta_lambda: float,
) -> Any:
    limit = MAX_CONDITION if stabilization == "lazy" else None

    def step(index: tf.Tensor) -> tuple[tf.Tensor]:
        seed = tf.stack([index, 7])
        hidden = tf.abs(tf.random.stateless_normal([BATCH, WIDTH], seed))
        labels = tf.random.stateless_uniform([BATCH, 1], seed, 0, CLASSES, tf.int64)
        wide = tf.cast(hidden, tf.float64)
        largest = tf.linalg.eigvalsh(tf.matmul(wide, wide, transpose_b=True))[-1]
        rate = tf.cast(two_eta_lambda / (2 * largest), tf.float32)
        # L = sum over the batch of |o - t|^2, t = 1 at the label.
        gradients = (tf.fill([BATCH, 1], -2.0), tf.ones([BATCH]), tf.zeros([BATCH]))
        statistics = factored_statistics(head.state, hidden, labels)
        residuals = statistics.gram_hidden, statistics.u_hidden
        factored_update(
            head.state, hidden, labels, *residuals, gradients, rate, 0.0, max_condition=limit
        )
        if stabilization in METHODS:
            tf.cond(
                tf.equal(index % 100, 99),
                lambda: _stabilized(head, stabilization),
                lambda: tf.constant(0),
            )
        for weights in layers:
            _naive_step(weights, tf.cast(hidden, weights.dtype), labels, rate)
        return (index + 1,)

    @tf.function
    def run(start: tf.Tensor, end: tf.Tensor) -> tf.Tensor:
        return tf.while_loop(lambda i: i < end, step, (start,), parallel_iterations=1)[0]

    return run


def _naive_step(
    weights: tf.Variable, hidden: tf.Tensor, labels: tf.Tensor, rate: tf.Tensor
) -> None:
    error = tf.matmul(hidden, weights.read_value(), transpose_b=True)
    error -= tf.one_hot(labels[:, 0], CLASSES, dtype=weights.dtype)
    rate = 2 * tf.cast(rate, weights.dtype)
    weights.assign_sub(rate * tf.matmul(error, hidden, transpose_a=True))


def _stabilized(head: FactoredHead, method: str) -> tf.Tensor:
    stabilize(head.state, method, CLASSES)
    return tf.constant(0)


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=ALL_STEPS)
    parser.add_argument("--stabilizations", nargs="+", default=["lazy", "none", *METHODS])
    arguments = parser.parse_args()
    rows = []
    for stabilization in arguments.stabilizations:
        for rate in RATES:
            row = measure(stabilization, rate, arguments.steps)
            shape = {"classes": CLASSES, "width": WIDTH, "batch": BATCH}
            rows.append({**row, **shape, **harness.machine()})
            print(row, flush=True)
    if arguments.steps == ALL_STEPS:
        harness.write_csv(harness.RESULTS / "factored_stability.csv", rows)


if __name__ == "__main__":
    main()
