# SPDX-License-Identifier: Apache-2.0
"""Workers in groups that have all classes each, as threads: a step, against one process.

As a program: checks it.
"""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
import threads
import training

import tfx_largeout as tlo
from tfx_largeout.distribute.workers import ALONE

WEIGHTS = np.linspace(0.5, 1.5, 9).astype("float32")
WEIGHTS[4] = 0


def step_of(workers, make, loss, parts=None, weights=WEIGHTS):
    """Results of a step: the total loss, gradients of this worker's h, and of the scalars."""
    head = make()
    head.build((None, training.WIDTH))
    metric = tlo.metrics.MeanReciprocalRank(during_training=True)
    own = np.arange(9) if parts is None else parts[workers.rank]

    @tf.function(autograph=False)
    def step():
        h, y, weight = (tf.constant(x[own]) for x in (threads.H, threads.Y, weights))
        with tf.GradientTape() as tape:
            tape.watch(h)
            logits = head(h, training=True)
            value = loss(y, logits, weight)
        gradients = tape.gradient(value, [h, *head.trainable_variables])
        head.take_step()
        metric.update_state(y, logits)
        exact = head(h, training=False)
        return value, *gradients, metric.result(), loss(y, exact, weight)

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


def compare(make, loss, size=4, groups=2):
    expected = step_of(ALONE, make, loss)
    parts = np.split(np.arange(9), [2, 6, 6][: size - 1])
    run = functools.partial(step_of, make=make, loss=loss, parts=parts)
    steps = threads.on_all(run, size, groups)
    members = size // groups
    for step in steps:
        assert isinstance(step, dict), step
    scalars = np.mean([step["scalars"] for step in steps], axis=0)
    assert_close(scalars, expected["scalars"], "scalars")
    for rank, step in enumerate(steps):
        for name, of_one in expected.items():
            if name == "scalars":
                continue
            if name == "h":
                of_one = size * of_one[parts[rank]]
            elif name not in ("loss", "evaluated"):  # by class, and the same in each group
                np.testing.assert_array_equal(step[name], steps[rank % members][name])
                of_one = of_one[rank % members :: members]
            assert_close(step[name], of_one, name)


def assert_close(got, expected, what):
    scale = 2e-6 * max(np.abs(expected).max(initial=0), 1)
    np.testing.assert_allclose(got, expected, rtol=2e-6, atol=scale, err_msg=what)


LOSS = tlo.losses.ComplementarySum()
HEADS = {
    "sampled": training.sampled,
    "bernoulli": lambda: training.sampled(training.SAMPLERS["bernoulli"]()),
    "explicit": lambda: training.sampled(explicit_classes=[0, 5, 202]),
    "adam": lambda: training.sampled(optimizer=tlo.optimizers.RowAdam(0.05, epsilon=1e-3)),
    "momentum": lambda: training.sampled(
        optimizer=tlo.optimizers.RowSGD(0.1, 0.9, weight_decay=0.1, row_clip_norm=0.05)
    ),
}


def check_sampled_softmax():
    compare(HEADS["sampled"], LOSS)


@pytest.mark.thorough
def check_sampled_softmax_of_two_workers():
    compare(HEADS["sampled"], LOSS, size=2)


def check_groups_without_examples():
    """Of the last batch of an epoch: one example."""
    compare_one_example([[0], [], [], []])

    def best(workers):
        head = training.sampled()
        head.build((None, training.WIDTH))
        return tlo.TopK(head, 5)(tf.constant(threads.H[: int(workers.rank == 0)]))[1].numpy()

    for rank, found in enumerate(threads.on_all(best, 4, 2)):
        np.testing.assert_array_equal(found, best(ALONE) if rank == 0 else np.zeros([0, 5]))


@pytest.mark.thorough
def check_groups_that_are_filled_up():
    compare_one_example([[0], [3], [4], [5]])


def compare_one_example(parts):
    """Only example 0 has a weight."""
    weights = np.array([0.5] + 8 * [-0.0], "float32")
    expected = step_of(ALONE, training.sampled, LOSS, [np.arange(1)], weights)
    parts = [np.array(part, int) for part in parts]
    run = functools.partial(step_of, make=training.sampled, loss=LOSS, parts=parts, weights=weights)
    for rank, step in enumerate(threads.on_all(run, 4, 2)):
        assert isinstance(step, dict), step
        for name in ("loss", "evaluated"):
            assert_close(step[name], expected[name], name)
        for name in ("kernel", "bias", "slot 0"):
            assert_close(step[name], expected[name][rank % 2 :: 2], name)
        assert np.any(step["h"]) == (rank == 0)


@pytest.mark.thorough
def check_exact_softmax():
    loss = tlo.losses.SoftmaxCrossentropy(label_smoothing=0.2)
    compare(training.exact, loss)
    whole = functools.partial(training.exact, num_selected=training.CLASSES)
    compare(whole, loss)


def cosines(kind, *arguments, **options):
    options |= {**training.weights(), "cosine_scale": 5.0, "learn_scale": True, "seed": 1}
    del options["bias_initializer"]
    return kind(training.CLASSES, *arguments, tlo.optimizers.RowAdagrad(0.1), **options)


@pytest.mark.thorough
def check_learned_scalars():
    """Log Z of NCE, and the scale of cosines."""
    compare(HEADS["sampled"], tlo.losses.NoiseContrastive("learned"))
    sampled = functools.partial(cosines, tlo.heads.SampledHead, tlo.samplers.LogUniform(40))
    compare(sampled, tlo.losses.SampledSoftmax(cosine_margin=0.1))
    exact = functools.partial(cosines, tlo.heads.ExactSoftmaxHead, backward="all")
    compare(exact, tlo.losses.SoftmaxCrossentropy(cosine_margin=0.1))


def check_starts_and_rows_that_differ():
    """Replicas start as the first one; rows that one worker sets are noticed in the step."""

    def run(workers):
        start = keras.initializers.RandomNormal()  # without a seed: each has another one
        head = tlo.heads.SampledHead(
            training.CLASSES,
            tlo.samplers.LogUniform(40),
            tlo.optimizers.RowAdam(0.1),
            kernel_initializer=start,
            seed=1,
            name="head",
        )
        head.build((None, training.WIDTH))
        found = head.kernel.numpy()
        if workers.rank == 1:
            head.kernel.assign(found + 1)
        loss = tlo.losses.ComplementarySum()
        with pytest.raises(tf.errors.InvalidArgumentError, match="rows of W of the head must be"):
            tf.function(training_step, autograph=False)(head, loss)
        return found

    first, second = threads.on_all(run, 2, 2)
    np.testing.assert_array_equal(first, second)


def training_step(head, loss):
    h = tf.constant(threads.H)
    with tf.GradientTape() as tape:
        tape.watch(h)
        value = loss(threads.Y, head(h, training=True))
    gradient = tape.gradient(value, h)
    head.take_step()
    return gradient


def check_what_is_refused():
    def run(workers):
        for make, what in (
            (training.dense, "DenseHead 'head'"),
            (training.factored, "FactoredHead 'head'"),
            (functools.partial(training.looking, "shared"), "a head with HashIndex"),
            (functools.partial(training.looking, "exact_top_k"), "a head with ExactTopK"),
        ):
            with pytest.raises(RuntimeError, match=f"{what}.* must be built with data_replicas=1"):
                make().build((None, training.WIDTH))

    for error in threads.on_all(run, 2, 2):
        assert error is None, error


@pytest.mark.thorough
def check_bfloat16_on_the_wire():
    parts = np.split(np.arange(9), [2, 6, 6])
    loss = tlo.losses.ComplementarySum()
    run = functools.partial(step_of, make=training.sampled, loss=loss, parts=parts)
    exact = threads.on_all(run, 4, 2)
    steps = threads.on_all(run, 4, 2, wire_dtype=tf.bfloat16)
    for rank, step in enumerate(steps):
        for name in ("loss", "kernel", "bias"):
            np.testing.assert_allclose(step[name], exact[rank][name], rtol=0.02, atol=0.002)
        for name in ("kernel", "bias", "slot 0"):
            np.testing.assert_array_equal(step[name], steps[rank % 2][name])
            assert not np.array_equal(step[name], exact[rank][name])


@pytest.mark.thorough
def check_heads():
    for make in HEADS.values():
        compare(make, tlo.losses.BlackOut(), groups=4)


@pytest.mark.thorough
def check_losses():
    for name in ("black_out", "importance_sampling", "active_set", "ranking"):
        compare(HEADS["sampled"], training.LOSSES[name]())


if __name__ == "__main__":
    threads.run_checks(globals())
