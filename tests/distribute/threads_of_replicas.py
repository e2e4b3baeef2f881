# SPDX-License-Identifier: Apache-2.0
"""Workers in groups that have all classes each, as threads: a step, against one process.

As a program: checks it.
"""

from __future__ import annotations

import functools

import numpy as np
import pytest
import tensorflow as tf
import threads
import training

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import ALONE

SIZES = ((2, 2), (4, 2), (4, 4))  # workers, groups
WEIGHTS = np.linspace(0.5, 1.5, 9).astype("float32")
WEIGHTS[4] = 0


def step_of(workers, make, loss, parts=None):
    """What a step leaves: the loss of all, the gradients of this worker's h and of the scalars."""
    head = make()
    head.build((None, training.WIDTH))
    metric = tlo.metrics.MeanReciprocalRank(during_training=True)
    own = np.arange(9) if parts is None else parts[workers.rank]

    @tf.function(autograph=False)
    def step():
        h, y, weights = (tf.constant(x[own]) for x in (threads.H, threads.Y, WEIGHTS))
        with tf.GradientTape() as tape:
            tape.watch(h)
            logits = head(h, training=True)
            value = loss(y, logits, weights)
        gradients = tape.gradient(value, [h, *head.trainable_variables])
        head.take_step()
        metric.update_state(y, logits)
        exact = head(h, training=False)
        return value, *gradients, metric.result(), loss(y, exact, weights)

    for _ in range(2):
        value, of_h, *of_scalars, rank, exact = step()
    return {
        "loss": value.numpy(),
        "h": of_h.numpy(),
        "scalars": np.array([g.numpy() for g in of_scalars]),
        "evaluated": np.array([rank.numpy(), exact.numpy()]),
        "kernel": head.kernel.numpy(),
        "bias": np.zeros(0) if head.bias is None else head.bias.numpy(),
        **{f"slot {n}": np.asarray(s) for n, s in enumerate(head.slots_of(head.kernel))},
    }


def compare(make, loss, sizes=SIZES):
    expected = step_of(ALONE, make, loss)
    for size, groups in sizes:
        parts = np.split(np.arange(9), [2, 6, 6][: size - 1])
        run = functools.partial(step_of, make=make, loss=loss, parts=parts)
        steps = threads.on_all(run, size, groups)
        members = size // groups
        for rank, step in enumerate(steps):
            assert isinstance(step, dict), step
            for name, of_one in expected.items():
                if name == "h":
                    of_one = size * of_one[parts[rank]]
                elif name == "scalars":
                    step[name] = np.mean([each[name] for each in steps], axis=0)
                elif name not in ("loss", "evaluated"):  # by class, and the same in each group
                    np.testing.assert_array_equal(step[name], steps[rank % members][name])
                    of_one = of_one[rank % members :: members]
                assert_close(step[name], of_one, (size, groups, name))


def assert_close(got, expected, what):
    scale = 2e-6 * max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=scale, err_msg=str(what))


def check_sampled_softmax():
    compare(training.sampled, tlo.losses.ComplementarySum())


def check_exact_softmax():
    compare(training.exact, tlo.losses.SoftmaxCrossentropy(label_smoothing=0.2))


if __name__ == "__main__":
    threads.run_checks(globals())
