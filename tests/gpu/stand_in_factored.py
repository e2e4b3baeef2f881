# SPDX-License-Identifier: Apache-2.0
"""Steps of a factored layer on GPU:0 compared with the naive layer, with a stand-in driver.

LD_LIBRARY_PATH=DRIVER python stand_in_factored.py LIBRARY   # of kernels that run on the processor
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

sys.path.append(str(Path(__file__).parents[1]))
from ops.factored_layer import check_consistency, state_of, weights_of

from tfx_largeout.ops import library
from tfx_largeout.ops.factored.factored_update import factored_statistics, factored_update

CLASSES, WIDTH, BATCH, LABELS = 40, 7, 5, 3
DECAY = 0.1


class Problem:
    """Batches, gradients of their statistics, and the naive layer's results."""

    def __init__(self, seed, signs):
        self.rng = np.random.default_rng(seed)
        self.signs = signs
        self.weights = self.rng.normal(size=(CLASSES, WIDTH)).astype("float32").astype("float64")

    def batch(self, step, dtype):
        """Returns H, labels, the gradients, and a rate for a given 2 eta lambda_max."""
        hidden = self.rng.normal(size=(BATCH, WIDTH)).astype(dtype)
        labels = self.rng.integers(-1, 6, (BATCH, LABELS))  # with repeats
        gradients = [self.rng.normal(size=s).astype(dtype) for s in ((BATCH, LABELS), BATCH, BATCH)]
        if self.signs == "positive":
            gradients[1] = np.abs(gradients[1])
        largest = np.linalg.eigvalsh(hidden.T @ (gradients[1][:, np.newaxis] * hidden))[-1]
        return hidden, labels, gradients, np.asarray(step / (2 * largest), dtype)

    def naive_step(self, weights, hidden, labels, gradients, rate):
        """Returns a, q, s, dL/dH and the next W, in float64."""
        logits = hidden.astype("float64") @ weights.T
        g_target, g_squares, g_sum = (g.astype("float64") for g in gradients)
        g_logits = 2 * g_squares[:, np.newaxis] * logits + g_sum[:, np.newaxis]
        for i, k in np.argwhere(labels >= 0):
            g_logits[i, labels[i, k]] += g_target[i, k]
        targets = np.where(labels >= 0, np.take_along_axis(logits, np.maximum(labels, 0), 1), 0)
        after = weights - float(rate) * (DECAY * weights + g_logits.T @ hidden)
        statistics = targets, np.sum(logits**2, 1), np.sum(logits, 1)
        return (*statistics, g_logits @ weights), after


def take_step(state, hidden, labels, gradients, rate, update=True):
    """Returns the statistics and dL/dH, as a training step finds them."""
    statistics = factored_statistics(state, hidden, labels, update_rows=update)
    gradient = factored_update(
        state, hidden, labels, *statistics[3:], gradients, rate, DECAY, update=update
    )
    return (*statistics[:3], gradient)


def on_gpu(arrays):
    with tf.device("GPU:0"):
        return tf.nest.map_structure(tf.constant, arrays)


def check_steps(dtype, signs, steps):
    problem = Problem(len(steps), signs)
    with tf.device("GPU:0"):
        state = state_of(problem.weights, dtype)
    assert "GPU:0" in state.v.device and "GPU:0" in state.row_slot.device
    before = [variable.value() for variable in state]  # share the variables' buffers
    first = [x.numpy() for x in before]
    weights = problem.weights
    in_graph = tf.function(lambda *batch: take_step(state, *batch))
    rtol, atol = (2e-5, 2e-4) if dtype == "float32" else (1e-11, 1e-10)
    for i, step in enumerate(steps):
        batch = problem.batch(step, dtype)
        expected, weights = problem.naive_step(weights, *batch)
        take = in_graph if i % 2 else lambda *batch: take_step(state, *batch)
        with tf.device("GPU:0"):
            found = take(*on_gpu(batch))
        for ours, theirs in zip(found, expected, strict=True):
            assert "GPU:0" in ours.device, ours.device
            np.testing.assert_allclose(ours.numpy(), theirs, rtol=rtol, atol=atol)
        np.testing.assert_allclose(weights_of(state), weights, rtol=rtol, atol=atol)
        check_consistency(state)
    for value, was in zip(before, first, strict=True):
        np.testing.assert_array_equal(value.numpy(), was)


def check_evaluation_changes_nothing():
    problem = Problem(7, "mixed")
    with tf.device("GPU:0"):
        state = state_of(problem.weights)
    take_step(state, *on_gpu(problem.batch(1.5, "float32")))  # leaves stale rows
    before = [variable.numpy() for variable in state]
    take_step(state, *on_gpu(problem.batch(0.5, "float32")), update=False)
    for variable, was in zip(state, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), was)


def check_refusals():
    problem = Problem(3, "positive")
    with tf.device("GPU:0"):
        state = state_of(problem.weights)
    hidden, labels, gradients, rate = problem.batch(0.5, "float32")
    before = [variable.numpy() for variable in state]
    infinite = [gradients[0], gradients[1], np.full_like(gradients[2], np.inf)]
    out_of_range = np.where(labels == labels[2, 1], CLASSES, labels)
    first = tuple(np.argwhere(out_of_range == CLASSES)[0])
    nan = hidden.copy()
    nan[3, 2] = np.nan
    for batch, message in (
        ((nan, labels, gradients, rate), "hidden must be finite; got nan at position [3, 2]"),
        (
            (hidden, out_of_range, gradients, rate),
            f"got {CLASSES} at position [{first[0]}, {first[1]}]",
        ),
        ((hidden, labels, infinite, rate), "g_sum must be finite; got inf at position [0]"),
        ((hidden, labels, gradients, -rate), "learning_rate must be at least 0 and finite; got -"),
        ((hidden, labels, gradients, 5 * rate), "2 learning_rate lambda_max"),
        ((hidden, labels, gradients, rate[np.newaxis]), "must be scalars"),
        ((hidden[:, 1:], labels, gradients, rate), "hidden must be [B, D] with the D of v, 7"),
    ):
        try:
            take_step(state, *on_gpu(batch))
        except tf.errors.InvalidArgumentError as error:
            assert message in str(error), error
        else:
            raise AssertionError(f"not refused: {message}")
        for variable, was in zip(state, before, strict=True):
            np.testing.assert_array_equal(variable.numpy(), was)
    take_step(state, *on_gpu((hidden, labels, gradients, rate)))  # variables are unlocked again


if __name__ == "__main__":
    assert tf.config.list_physical_devices("GPU"), "no GPU"
    assert library.load() is not None
    os.environ["TFX_LARGEOUT_GPU_KERNELS"] = sys.argv[1]
    assert library.load_gpu_kernels()
    check_steps("float32", "positive", [0.5, 0.5, 0.9, 1.5, 1.0, 0.5])
    check_steps("float64", "mixed", [0.5, 1.9, 0.5])
    check_evaluation_changes_nothing()
    check_refusals()
    assert "FactoredHead" in library.library_status()
    print("GPU ops agree with those of the processor")
