# SPDX-License-Identifier: Apache-2.0
"""Is the factored layer the naive layer, after thousands of steps of real training?

The WordNet reverse dictionary with a hidden layer, trained through FactoredHead in float32. For
comparison, a naive layer in float64 takes SGD steps on the same hidden activations, with gradients
from all of its logits. W and the curve of the loss are compared. A naive layer in float32 shows the
effect of rounding alone.

    python benchmarks/factored_equivalence.py                # 10,000 steps; writes CSV rows
    python benchmarks/factored_equivalence.py --steps 200    # nothing is written
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

import tfx_largeout as tlo
from tfx_largeout.datasets import load_wordnet, tf_idf
from tfx_largeout.labels import normalize_labels
from tfx_largeout.statistics import SphericalStatistics

WIDTH, BATCH, ALL_STEPS = 64, 64, 10_000
# Each loss with the largest learning rate, in powers of 10, that trains.
LOSSES = {
    "squared_error": (lambda **kw: tlo.losses.SquaredError(**kw), 1.0, {}),
    "spherical_softmax": (
        lambda **kw: tlo.losses.SphericalSoftmax(epsilon=0.1, **kw),
        1.0,
        {"use_bias": True, "bias_initializer": "ones"},
    ),
    "taylor_softmax": (lambda **kw: tlo.losses.TaylorSoftmax(**kw), 10.0, {}),
    "z_loss": (lambda **kw: tlo.losses.ZLoss(**kw), 1.0, {}),
}


class NaiveLayer:
    """W and b in a matrix of the given dtype, and the gradient of all of its logits."""

    def __init__(
        self, head: tlo.heads.FactoredHead, loss: Any, rate: float, dtype: tf.DType
    ) -> None:
        self.weights = tf.Variable(_weights(head), dtype=dtype)
        self.use_bias = head.use_bias
        self.loss, self.rate = loss, float(np.float32(rate))

    def step(self, hidden: tf.Tensor, labels: tf.Tensor) -> tf.Tensor:
        """Takes a step; returns the mean loss before it."""
        wide = tf.cast(hidden, self.weights.dtype)
        if self.use_bias:
            wide = tf.pad(wide, [[0, 0], [0, 1]], constant_values=1)
        num_classes = self.weights.shape[0]
        own = normalize_labels(labels, num_classes)
        logits = tf.matmul(wide, self.weights.read_value(), transpose_b=True)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            targets = tf.gather(logits, own.safe_ids, batch_dims=1)
            sums = tf.reduce_sum(logits**2, axis=1), tf.reduce_sum(logits, axis=1)
            statistics = SphericalStatistics(own, targets, *sums, num_classes)
            value = tf.reduce_mean(self.loss.from_statistics(statistics))
        error = tf.convert_to_tensor(tape.gradient(value, logits))
        self.weights.assign_sub(self.rate * tf.matmul(error, wide, transpose_a=True))
        return value


def measure(name: str, num_classes: int, steps: int) -> dict[str, Any]:
    """Trains both layers; returns a row."""
    make_loss, rate, arguments = LOSSES[name]
    keras.utils.set_random_seed(1)
    train, _ = tf_idf(*load_wordnet("hyper"))
    train = train.take(np.flatnonzero(_first_labels(train) < num_classes))
    inputs = keras.Input((train.num_features,), sparse=True)
    hidden = tlo.layers.SparseDense(WIDTH, activation="relu")(inputs)
    trunk = keras.Model(inputs, hidden)
    initializer = keras.initializers.RandomNormal(stddev=0.05, seed=1)
    head = tlo.heads.FactoredHead(num_classes, rate, kernel_initializer=initializer, **arguments)
    head.build((None, WIDTH))
    loss, optimizer = make_loss(), keras.optimizers.Adam(1e-3)
    optimizer.build(trunk.trainable_variables)
    naive, single = (NaiveLayer(head, loss, rate, dtype) for dtype in (tf.float64, tf.float32))

    @tf.function(reduce_retracing=True)
    def step(x: Any, y: Any) -> tuple[tf.Tensor, tf.Tensor]:
        with tf.GradientTape() as tape:
            hidden = trunk(x, training=True)
            value = loss(y, head(hidden, training=True))
        exact = naive.step(hidden, y)
        single.step(hidden, y)
        optimizer.apply(tape.gradient(value, trunk.trainable_variables))
        head.take_step()
        return tf.cast(value, tf.float64), exact

    curve = []
    batches = train.dataset(BATCH, shuffle=True, seed=1, drop_remainder=True).repeat()
    for x, y in batches.take(steps):
        y = y[:, :1]
        curve.append([float(v) for v in step(x, y)])
    exact = naive.weights.numpy()
    curves = np.array(curve)
    return {
        "loss": name,
        "steps": steps,
        "learning_rate": rate,
        "relative_error_of_w": f"{_difference(_weights(head), exact):.2e}",
        "relative_error_of_naive_float32": f"{_difference(single.weights.numpy(), exact):.2e}",
        "moved": f"{np.linalg.norm(exact) / (0.05 * (num_classes * WIDTH) ** 0.5):.3g}",
        "largest_relative_difference_of_the_loss": f"{_largest_difference(curves):.2e}",
        "first_loss": f"{curves[:50, 0].mean():.5g}",
        "last_loss": f"{curves[-50:, 0].mean():.5g}",
        "condition_number": f"{head.condition_number():.3g}",
        "drift_of_gram": f"{head.drift().gram:.2e}",
        "drift_of_inverse": f"{head.drift().inverse:.2e}",
    }


def _weights(head: tlo.heads.FactoredHead) -> np.ndarray:
    """Returns W `[C, D]`, or W and b `[C, D + 1]`."""
    kernel, bias = head.materialize()
    return kernel if bias is None else np.concatenate([kernel, bias[:, np.newaxis]], axis=1)


def _difference(own: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(own - exact) / np.linalg.norm(exact))


def _first_labels(examples: Any) -> np.ndarray:
    return np.asarray(examples.label_ids)[np.asarray(examples.label_splits)[:-1]]


def _largest_difference(curves: np.ndarray) -> float:
    return float((np.abs(curves[:, 0] - curves[:, 1]) / np.abs(curves[:, 1])).max())


def main() -> None:
    """Parses the command line, measures, and writes the rows."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=ALL_STEPS)
    parser.add_argument("--classes", type=int, default=2_000, help="the first classes only")
    parser.add_argument("--losses", nargs="+", default=list(LOSSES), choices=list(LOSSES))
    arguments = parser.parse_args()
    rows = []
    for name in arguments.losses:
        row = measure(name, arguments.classes, arguments.steps)
        shape = {"classes": arguments.classes, "width": WIDTH, "batch": BATCH}
        rows.append({**row, **shape, **harness.machine()})
        print(row, flush=True)
    if arguments.steps == ALL_STEPS:
        harness.write_csv(harness.RESULTS / "factored_equivalence.csv", rows)


if __name__ == "__main__":
    main()
