# SPDX-License-Identifier: Apache-2.0
"""Training goes on when a count of steps goes past 2^31, where int32 ends."""

from __future__ import annotations

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from heads.taken_step import take_step

import tfx_largeout as tlo
from tfx_largeout.labels import normalize_labels

CLASSES, WIDTH, BATCH = 40, 6, 8
END = 2**31


def data(steps):
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(steps, BATCH, WIDTH)).astype(np.float32)
    return zip(hidden, rng.integers(CLASSES, size=(steps, BATCH, 1)), strict=True)


def train(head, loss, steps):
    """Takes steps; returns the losses."""
    step = tf.function(functools.partial(take_step, head, loss), autograph=False)
    return [step(tf.constant(h), tf.constant(y))[0].numpy() for h, y in data(steps)]


def sampled_head(learning_rate=0.01, **arguments):
    sampler = tlo.samplers.LogUniform(10)
    optimizer = tlo.optimizers.RowAdam(learning_rate)
    head = tlo.heads.SampledHead(CLASSES, sampler, optimizer, seed=3, **arguments)
    head.build((None, WIDTH))
    return head


def factored_head(learning_rate=0.01, **arguments):
    initializer = keras.initializers.RandomNormal(stddev=0.1, seed=1)
    arguments = {"kernel_initializer": initializer, **arguments}
    head = tlo.heads.FactoredHead(CLASSES, learning_rate, **arguments)
    head.build((None, WIDTH))
    return head


def test_a_sampled_head_goes_on():
    head = sampled_head()
    head.optimizer.iterations.assign(END - 5)
    age = head.optimizer.slots_of(head.kernel)[2]
    age.assign(tf.fill(age.shape, tf.constant(END - 5, age.dtype)))
    before = head.kernel.numpy()
    losses = train(head, tlo.losses.ComplementarySum(), 15)
    assert head.optimizer.iterations.numpy() == END + 10
    assert np.all(np.isfinite(losses))
    change = np.abs(head.kernel.numpy() - before)
    assert 0 < change.max() < 15 * 0.1  # Adam's steps are about as long as its rate
    assert age.numpy().min() >= END - 5
    assert age.numpy().max() == END - 1


def test_draws_do_not_repeat():
    head, (hidden, labels) = sampled_head(), next(data(1))
    hidden, labels = tf.constant(hidden), normalize_labels(labels, CLASSES)

    def ids_at(step):
        head.optimizer.iterations.assign(step)
        return tuple(head.candidates(hidden, labels).ids.numpy())

    assert head.optimizer.iterations.dtype == "int64"
    steps = [5, END - 1, END, END + 5, 2 * END + 5, 2**40 + 5]
    assert len({ids_at(step) for step in steps}) == len(steps)
    assert ids_at(END + 5) == ids_at(END + 5)
    seed = tf.constant([3, END + 5], tf.int64)
    expected = head.sampler.sample(hidden, labels, seed).ids
    assert ids_at(END + 5) == tuple(expected.numpy())


@pytest.mark.parametrize("stabilization", ["lazy", "svd"])
def test_a_factored_head_takes_the_same_steps(stabilization):
    young, old = (factored_head(stabilization=stabilization) for _ in range(2))
    begin = END - 5  # an old head has its checks every 100 steps where a young one has them
    young.optimizer.iterations.assign(begin % 100)
    old.optimizer.iterations.assign(begin)
    losses = [train(head, tlo.losses.TaylorSoftmax(), 60) for head in (young, old)]
    assert old.optimizer.iterations.numpy() == END + 55
    np.testing.assert_array_equal(*losses)
    np.testing.assert_array_equal(young.materialize()[0], old.materialize()[0])


schedules = keras.optimizers.schedules
FAR = END + 10
SCHEDULES = {
    "exponential": (schedules.ExponentialDecay(0.1, END, 0.5), 0.1 * 0.5 ** (FAR / END)),
    "staircase": (schedules.ExponentialDecay(0.1, END - 1000, 0.5, staircase=True), 0.05),
    "inverse time": (schedules.InverseTimeDecay(0.1, END, 0.5), 0.1 / (1 + 0.5 * FAR / END)),
    "polynomial": (
        schedules.PolynomialDecay(0.1, 2 * END, 0.02),
        0.08 * (1 - FAR / (2 * END)) + 0.02,
    ),
    "cosine": (schedules.CosineDecay(0.1, 4 * END), 0.05 * (1 + np.cos(np.pi * FAR / (4 * END)))),
    "piecewise, just before": (schedules.PiecewiseConstantDecay([FAR], [0.1, 0.02]), 0.1),
    "piecewise, just behind": (schedules.PiecewiseConstantDecay([FAR - 1], [0.1, 0.02]), 0.02),
}


@pytest.mark.parametrize("name", list(SCHEDULES))
@pytest.mark.parametrize("make", [sampled_head, factored_head])
def test_schedules_go_on(name, make):
    schedule, expected = SCHEDULES[name]
    head = make(schedule)
    owner = head.optimizer
    owner.iterations.assign(FAR)
    np.testing.assert_allclose(owner.learning_rate, expected, rtol=1e-6)
    loss = tlo.losses.TaylorSoftmax() if make is factored_head else tlo.losses.ComplementarySum()
    assert np.all(np.isfinite(train(head, loss, 2)))
    assert owner.iterations.numpy() == FAR + 2
