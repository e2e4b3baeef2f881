# SPDX-License-Identifier: Apache-2.0
"""The factored step in two halves: what shards must add up leaves one and enters the other."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.factored_cases import random_case
from ops.factored_layer import IMPLEMENTATIONS, state_of, use, weights_of
from oracles import factored_update as oracle
from variants import thorough

from tfx_largeout.ops.exact.class_shard import ClassShard
from tfx_largeout.ops.factored import factored_update as ops

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def tensors_of(batch, dtype):
    hidden, labels, gradients = batch
    return (
        tf.constant(hidden, dtype),
        tf.constant(labels, tf.int64),
        tuple(tf.constant(g, dtype) for g in gradients),
    )


def statistics_of(state, hidden, labels, implementation):
    statistics = ops.factored_statistics(state, hidden, labels, implementation=implementation)
    return statistics.gram_hidden, statistics.u_hidden


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 6))])
def test_both_halves_are_the_step_to_the_last_bit(name, dtype, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed, steps=4, dtype=np.dtype(dtype))
    whole, halves = state_of(case.weights, dtype), state_of(case.weights, dtype)
    rates = (case.learning_rate, case.weight_decay)
    for step, batch in enumerate(case.batches):
        hidden, labels, gradients = tensors_of(batch, dtype)
        if step == 2:
            for state in (whole, halves):
                ops.factored_reanchor(state, implementation=implementation)
        outputs = []
        for state in (whole, halves):
            products = statistics_of(state, hidden, labels, implementation)
            sums = None
            if state is halves:
                sums = ops.factored_target_sums(
                    state, labels, gradients[0], implementation=implementation
                )
            outputs.append(
                ops.factored_update(
                    state,
                    hidden,
                    labels,
                    *products,
                    gradients,
                    *rates,
                    target_sums=sums,
                    implementation=implementation,
                )
            )
        np.testing.assert_array_equal(*outputs)
        for a, b in zip(whole.variables, halves.variables, strict=True):
            np.testing.assert_array_equal(a, b)


def shard_of(weights, first, stride):
    """The state of a shard: its rows, and what is the same in all shards."""
    shard, layer = state_of(weights[first::stride], "float64"), state_of(weights, "float64")
    for name in ("gram", "row_sum"):
        getattr(shard, name).assign(getattr(layer, name))
    return shard


@every_implementation
@pytest.mark.parametrize("stride", [2, 3])
@pytest.mark.parametrize("seed", [0, *thorough(*range(1, 6))])
def test_shards_take_the_step_of_the_naive_layer(name, stride, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed + 30, steps=5)
    weights = np.concatenate([case.weights] * 2)  # at least as many classes as shards
    num_classes = len(weights)
    states = [shard_of(weights, first, stride) for first in range(stride)]
    shards = [ClassShard(first, stride, num_classes) for first in range(stride)]
    rates = (case.learning_rate, case.weight_decay)
    for batch in case.batches:
        hidden, labels, gradients = tensors_of(batch, "float64")
        sums = sum(
            ops.factored_target_sums(
                state, labels, gradients[0], shard, implementation=implementation
            )
            for state, shard in zip(states, shards, strict=True)
        )
        weights, expected = oracle.naive_step(weights, *batch, *rates)
        for first, (state, shard) in enumerate(zip(states, shards, strict=True)):
            rows = tf.where(labels % stride == first, labels // stride, -1)
            products = statistics_of(state, hidden, rows, implementation)
            gradient = ops.factored_update(
                state,
                hidden,
                labels,
                *products,
                gradients,
                *rates,
                target_sums=sums,
                shard=shard,
                implementation=implementation,
            )
            scale = 1 + np.abs(weights).max()
            np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9 * scale**2)
            of_shard = weights_of(state)
            np.testing.assert_allclose(of_shard, weights[first::stride], atol=1e-9 * scale)
    for state in states[1:]:  # all but the rows is the same in all shards
        for name in ("u", "u_inverse_transpose", "gram", "shift", "row_sum"):
            np.testing.assert_array_equal(getattr(state, name), getattr(states[0], name))


@every_implementation
def test_a_shard_without_sums_is_refused(name, monkeypatch):
    implementation = use(name, monkeypatch)
    state = state_of(np.eye(3))
    x = tf.ones([2, 3])
    with pytest.raises(ValueError, match="target_sums must be given with a shard; got None"):
        ops.factored_update(
            state,
            x,
            tf.zeros([2, 1], tf.int64),
            x,
            x,
            (x[:, :1], x[:, 0], x[:, 0]),
            0.1,
            0.0,
            shard=ClassShard(0, 2, 6),
            implementation=implementation,
        )


@every_implementation
def test_rows_that_are_no_classes_are_refused(name, monkeypatch):
    implementation = use(name, monkeypatch)
    state = state_of(np.eye(3))
    labels = tf.constant([[0], [2]], tf.int64)
    with pytest.raises(tf.errors.InvalidArgumentError, match="first_class, class_stride and num"):
        ops.factored_target_sums(
            state, labels, tf.ones([2, 1]), ClassShard(0, 2, 4), implementation=implementation
        )
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be class ids"):
        ops.factored_target_sums(
            state, labels + 4, tf.ones([2, 1]), ClassShard(0, 2, 5), implementation=implementation
        )
