# SPDX-License-Identifier: Apache-2.0
"""Weights and moments in bfloat16: rounded at random without bias, or compensated."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.candidate_cases import IMPLEMENTATIONS, RULES, Weights, use
from oracles.row_update import update_row
from oracles.stochastic_rounding import (
    moment_bits,
    neighbours,
    rounded_at_random,
    rounded_to_nearest,
    weight_bits,
)

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update
from tfx_largeout.ops.rows.stochastic_rounding import rounded_at_random as round_tf

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
SGD = RowRule("sgd", (0.0, 0.0), rounding="stochastic")
LARGEST = float(tf.bfloat16.max)


def wide(x):
    return tf.cast(x, tf.float64).numpy()


def take(rule, weights, ids, gradient, slots=(), eta=1.0, **bits):
    rule = rule._replace(random_bits=rule.random_bits._replace(**bits))
    ids, gradient = tf.constant(ids, tf.int64), tf.constant(gradient, tf.float32)
    row_update(weights, slots, ids, gradient, rule, eta, implementation=take.implementation)


@pytest.fixture
def implementation(name, monkeypatch):
    take.implementation = use(name, monkeypatch)


@every_implementation
@pytest.mark.parametrize("shape", [(9, 1), (7, 16), (11, 67), (5, 3, 7), (23,)])
def test_random_bits_are_those_of_the_definition(implementation, shape):
    """For sums exact in float32, each weight equals the oracle's, for any order of rows."""
    rng = np.random.default_rng(0)
    weights = tf.Variable(tf.cast(rng.integers(-99, 99, shape) / 32, tf.bfloat16))
    gradient = rng.integers(-(2**15), 2**15, shape) / 2**16
    shard, width = ClassShard(2, 3), int(np.prod(shape[1:]))
    expected = (wide(weights) - gradient).reshape(shape[0], width)
    for row, x in enumerate(expected):
        bits = weight_bits(2**32 - 1, 2**40 + 5, 6, 2 + 3 * row, width)
        x[:] = rounded_at_random(x, bits)
    order = rng.permutation(shape[0])
    for ids in (order[:3], order[3:]):
        key = {"seed": 2**32 - 1, "step": tf.constant(2**40 + 5, tf.int64)}
        take(SGD, weights, ids, gradient[ids], variable=6, shard=shard, **key)
    np.testing.assert_array_equal(wide(weights).reshape(expected.shape), expected)


@every_implementation
@pytest.mark.parametrize("value", [1 + 0.1 / 128, 1 + 0.5 / 128, 2 - 0.001 / 128, -3e-30, 1.1e30])
def test_the_mean_of_many_roundings_is_the_value(implementation, value):
    """Random bits of other columns, rows and steps are independent of it."""
    rows, width, value = 1000, 32, float(np.float32(value))
    rounded = []
    for step in range(2):
        weights = tf.Variable(tf.zeros([rows, width], tf.bfloat16))
        take(SGD, weights, np.arange(rows), np.full((rows, width), -value), step=step)
        rounded.append(wide(weights))
    lower, upper = neighbours(value)
    part, gap, n = (abs(value) - lower) / (upper - lower), upper - lower, 2 * rows * width
    up = (np.abs(rounded) - lower) / gap
    assert set(np.unique(up)) == {0, 1}
    four_errors = 4 * np.sqrt(part * (1 - part) / n)
    assert abs(up.mean() - part) < four_errors
    deviation = up - part
    for left, right in (
        (deviation[:, :, 1:], deviation[:, :, :-1]),
        (deviation[:, 1:], deviation[:, :-1]),
        (deviation[1], deviation[0]),
    ):
        limit = 4 * part * (1 - part) / np.sqrt(left.size)
        assert abs((left * right).mean()) < limit


@every_implementation
def test_what_bfloat16_has_stays(implementation):
    values = [0.0, -0.0, 1.0, -3.5, 1e-40, -(2.0**-133), LARGEST, -LARGEST, np.inf, -np.inf]
    values = tf.cast(tf.constant(values), tf.bfloat16)
    weights = tf.Variable(tf.repeat(values[tf.newaxis], 200, axis=0))
    for step in range(3):
        take(SGD, weights, np.arange(200), np.zeros((200, len(values))), step=step)
    np.testing.assert_array_equal(wide(weights), np.tile(wide(values), (200, 1)))


def test_only_numbers_beyond_the_largest_become_infinite():
    bits = tf.constant([0, 2**16 - 1], tf.uint32)

    def roundings(x):
        return wide(round_tf(tf.constant([x, x], tf.float32), bits))

    below = np.nextafter(np.float32(LARGEST), np.float32(0))
    np.testing.assert_array_equal(roundings(-below)[1], -LARGEST)
    np.testing.assert_array_equal(roundings(LARGEST), [LARGEST, LARGEST])
    np.testing.assert_array_equal(roundings(np.float32(3.4e38)), [LARGEST, np.inf])
    assert np.isnan(roundings(np.nan)).all()


OTHERS = ("sgd", "nesterov", "adagrad, clipped", "adamw, clipped", "row-wise adagrad")


@every_implementation
@pytest.mark.parametrize("rule", [*OTHERS, "row-wise adamw, clipped"])
@pytest.mark.parametrize("rounding", ["stochastic", "compensated"])
def test_a_step_is_that_of_the_definition_up_to_the_rounding(implementation, rule, rounding):
    rng, rule = np.random.default_rng(0), RULES[rule]._replace(rounding=rounding)
    expected = Weights.of(wide(tf.cast(rng.normal(size=(30, 37)), tf.bfloat16)), rule)
    own = expected.variables("bfloat16", rule)
    gradient = rng.normal(size=(30, 37)).astype(np.float32)
    for row, g in enumerate(gradient):
        slots = expected.slots[:-1] if rounding == "compensated" else expected.slots
        update_row(expected.weight, slots, row, g, rule, 0.1)
    take(rule, own.weight, np.arange(30), gradient, own.slots, 0.1)
    got, want = wide(own.weight), expected.weight
    slots = list(zip(own.slots, expected.slots, strict=True))
    if rounding == "compensated":
        error, _ = slots.pop()
        np.testing.assert_allclose(got + wide(error), want, rtol=2.0**-16, atol=1e-6)
        assert np.mean(got == rounded_to_nearest(want)) > 0.99
    else:
        lower, upper = neighbours(want)
        is_neighbour = (np.abs(got) == lower) | (np.abs(got) == upper)
        assert is_neighbour.mean() > 0.995  # except for float32 rounding
        up = np.abs(got) == upper
        assert 0.4 < up.mean() < 0.6
    for slot, wanted in slots:
        np.testing.assert_allclose(wide(slot), wanted, rtol=1e-5, atol=1e-6)


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["momentum", "adam", "row-wise adam"])
def test_moments_of_bfloat16_are_those_of_the_definition(implementation, method, dtype):
    rule = {
        "momentum": RowRule("sgd", (0.5, 0.0)),
        "adam": RowRule("adam", (0.5, 0.75, 1e-7)),
        "row-wise adam": RowRule("adam", (0.5, 0.75, 1e-7), row_wise=True),
    }[method]._replace(moment_dtype="bfloat16")
    rng, (rows, width) = np.random.default_rng(0), (6, 37)
    own = Weights.of(np.zeros((rows, width)), rule).variables(dtype, rule)
    own.slots[0].assign(tf.cast(rng.integers(-99, 99, (rows, width)) / 32, tf.bfloat16))
    m, g = wide(own.slots[0]), rng.integers(-(2**11), 2**11, (rows, width)) / 2**12
    take(rule, own.weight, np.arange(rows), g, own.slots, 1.0, seed=4, step=7, variable=1)
    bits = [moment_bits(4, 7, 1, row, width) for row in range(rows)]
    first, second = (np.stack(each) for each in zip(*bits, strict=True))
    new_m = 0.5 * m - g if method == "momentum" else 0.5 * m + 0.5 * g
    np.testing.assert_array_equal(wide(own.slots[0]), rounded_at_random(new_m, first))
    if method == "adam":
        np.testing.assert_array_equal(wide(own.slots[1]), rounded_at_random(g**2 / 4, second))
    if method == "row-wise adam":
        assert own.slots[1].dtype == tf.float32
        np.testing.assert_allclose(own.slots[1], np.mean(g**2, axis=1) / 4, rtol=1e-6)
    if method != "momentum":  # the step uses moments before rounding
        v = g**2 / 4 if method == "adam" else np.mean(g**2, axis=1, keepdims=True) / 4
        step = np.sqrt(1 - 0.75) / (1 - 0.5) * new_m / (np.sqrt(v) + 1e-7)
        np.testing.assert_allclose(
            wide(own.weight), -step, rtol=1e-5 if dtype == "float32" else 4e-3
        )


def test_a_second_moment_of_bfloat16_would_stand_still_without_it():
    """From v = 0 with g = 1: 1 - 0.999^2000 = 0.86 in the mean, 0.06 where v is rounded."""
    rule = RowRule("adam", (0.9, 0.999, 1e-7), moment_dtype="bfloat16")
    own = Weights.of(np.zeros((40, 16)), rule).variables("bfloat16", rule)
    take.implementation = "auto"
    nearest = tf.zeros([], tf.bfloat16)
    for step in range(2000):
        take(rule, own.weight, np.arange(40), np.ones((40, 16)), own.slots, 1e-3, step=step)
        nearest = tf.cast(0.999 * tf.cast(nearest, tf.float32) + 0.001, tf.bfloat16)
    expected = 1 - 0.999**2000
    assert wide(own.slots[1]).mean() == pytest.approx(expected, rel=0.01)
    assert float(nearest) < 0.3 * expected


@every_implementation
def test_small_steps_add_up(implementation):
    """250 steps of 2^-11 from 1: rounded to the nearest, not one of them counts."""
    rows = np.arange(50)
    for rounding, tolerance in (("nearest", 0), ("stochastic", 0.02), ("compensated", 0.001)):
        rule = RowRule("sgd", (0.0, 0.0), rounding=rounding)
        own = Weights.of(np.ones((50, 5)), rule).variables("bfloat16", rule)
        for step in range(250):
            take(rule, own.weight, rows, np.full((50, 5), -(2.0**-11)), own.slots, step=step)
        total = wide(own.weight) + (wide(own.slots[0]) if own.slots else 0)
        expected = 1 if rounding == "nearest" else 1 + 250 * 2.0**-11
        assert total.mean() == pytest.approx(expected, abs=tolerance)


@every_implementation
def test_rows_of_norm_1_stay_there(implementation):
    rng = np.random.default_rng(0)
    for rounding in ("stochastic", "compensated"):
        rule = RowRule("sgd", (0.0, 0.0), unit_rows=True, rounding=rounding)
        weight = rng.normal(size=(20, 33))
        weight /= np.linalg.norm(weight, axis=1, keepdims=True)
        own = Weights.of(weight, rule).variables("bfloat16", rule)
        for step in range(30):
            gradient = rng.normal(size=(20, 33))
            take(rule, own.weight, np.arange(20), gradient, own.slots, 0.1, step=step)
        np.testing.assert_allclose(np.linalg.norm(wide(own.weight), axis=1), 1, atol=0.01)


def test_what_does_not_fit_is_refused():
    ids, gradient = tf.zeros([0], tf.int64), tf.zeros([0, 2])
    narrow = tf.Variable(tf.zeros([3, 2], tf.bfloat16))
    cases = [
        (SGD, tf.Variable(tf.zeros([3, 2])), [], "must be bfloat16 for rounding='stochastic'"),
        (SGD._replace(row_wise=True), narrow, [], "row_wise must be False for sgd"),
        (SGD._replace(rounding="up"), narrow, [], "rounding must be one of .*got 'up'"),
        (SGD._replace(moment_dtype="int8"), narrow, [], "moment_dtype must be one of"),
        (SGD._replace(rounding="compensated"), narrow, [], "must be 1 variables.*got 0"),
        (
            RULES["row-wise adagrad"],
            narrow,
            [tf.Variable(tf.zeros([3, 2]))],
            r"slot 'accumulator' of variable must have shape \(3,\)",
        ),
    ]
    for rule, variable, slots, message in cases:
        with pytest.raises(ValueError, match=message):
            row_update(variable, slots, ids, gradient, rule, 0.1)
