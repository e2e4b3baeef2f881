# SPDX-License-Identifier: Apache-2.0
"""Steps on rows match the definition, and Keras's if all rows are touched."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from ops.candidate_cases import IMPLEMENTATIONS, RULES, UNIT_RULES, Weights, check_equal, use
from oracles.row_update import update_row

from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update import row_update

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
every_rule = pytest.mark.parametrize("rule", list(RULES))


def take_step(variables, ids, gradient, rule, learning_rate, dtype="float32", **arguments):
    gradient = tf.constant(gradient, "float64" if dtype == "float64" else "float32")
    ids = tf.constant(ids, tf.int64)
    row_update(variables.weight, variables.slots, ids, gradient, rule, learning_rate, **arguments)


@every_implementation
@every_rule
@pytest.mark.parametrize("shape", [(40, 1), (23, 16), (30, 67), (50, 300), (31,)])
def test_steps_are_those_of_the_definition(name, rule, shape, monkeypatch):
    implementation = use(name, monkeypatch)
    rng, rule = np.random.default_rng(0), RULES[rule]
    expected = Weights.of(rng.normal(size=shape).astype(np.float32), rule)
    own = expected.variables()
    for step in range(6):
        ids = rng.permutation(shape[0])[: rng.integers(0, shape[0])]
        gradient = rng.normal(size=(len(ids), *shape[1:])).astype(np.float32)
        for row, g in zip(ids, gradient, strict=True):
            update_row(expected.weight, expected.slots, row, g, rule, 0.1 / (1 + step))
        take_step(own, ids, gradient, rule, 0.1 / (1 + step), implementation=implementation)
        check_equal(own, expected, 3e-6)


def unit_weights(rng, shape):
    weight = rng.normal(size=shape)
    weight /= np.linalg.norm(weight, axis=1, keepdims=True)
    weight[3] = 0  # has no direction before its first step
    return weight


@every_implementation
@pytest.mark.parametrize("rule", list(UNIT_RULES))
@pytest.mark.parametrize("shape", [(23, 16), (40, 1), (30, 67)])
def test_rows_are_kept_at_norm_1(name, rule, shape, monkeypatch):
    implementation = use(name, monkeypatch)
    rng, rule = np.random.default_rng(0), UNIT_RULES[rule]
    expected = Weights.of(unit_weights(rng, shape).astype(np.float32), rule)
    own = expected.variables()
    for _ in range(5):
        ids = rng.permutation(shape[0])[:12]
        gradient = rng.normal(size=(len(ids), shape[1])).astype(np.float32)
        for row, g in zip(ids, gradient, strict=True):
            update_row(expected.weight, expected.slots, row, g, rule, 0.3)
        take_step(own, ids, gradient, rule, 0.3, implementation=implementation)
        check_equal(own, expected, 5e-6)
    norms = np.linalg.norm(own.weight, axis=1)
    np.testing.assert_allclose(norms[norms > 0], 1, atol=1e-6)


def test_rows_of_bfloat16_are_kept_at_norm_1():
    rule, results = UNIT_RULES["sgd"], []
    for implementation in ("auto", "composed"):
        rng = np.random.default_rng(0)
        own = Weights.of(unit_weights(rng, (20, 33)), rule).variables("bfloat16")
        gradient = rng.normal(size=(20, 33)).astype(np.float32)
        take_step(own, np.arange(20), gradient, rule, 0.2, implementation=implementation)
        results.append(tf.cast(own.weight, tf.float64).numpy())
    np.testing.assert_allclose(np.linalg.norm(results[0], axis=1), 1, atol=4e-3)
    np.testing.assert_allclose(*results, atol=4e-3)


def test_norms_of_a_bias_are_refused():
    rule = UNIT_RULES["sgd"]
    with pytest.raises(ValueError, match="must be of rank 2 where its rows are kept at norm 1"):
        row_update(tf.Variable([1.0, 2.0]), [], tf.constant([0], tf.int64), [1.0], rule, 0.1)


@every_rule
def test_float64(rule):
    rng, rule = np.random.default_rng(0), RULES[rule]
    expected = Weights.of(rng.normal(size=(9, 5)), rule)
    own = expected.variables("float64")
    for _ in range(5):
        ids, gradient = rng.permutation(9)[:6], rng.normal(size=(6, 5))
        for row, g in zip(ids, gradient, strict=True):
            update_row(expected.weight, expected.slots, row, g, rule, 0.1)
        take_step(own, ids, gradient, rule, tf.constant(0.1, tf.float64), dtype="float64")
        check_equal(own, expected, 1e-12)


KERAS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "nesterov": lambda: keras.optimizers.SGD(0.1, momentum=0.8, nesterov=True, weight_decay=0.05),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.1, epsilon=1e-4),
}


@every_implementation
@pytest.mark.parametrize("rule", list(KERAS))
def test_keras_takes_the_same_steps_where_all_rows_are_touched(name, rule, monkeypatch):
    implementation = use(name, monkeypatch)
    rng, optimizer, rule = np.random.default_rng(1), KERAS[rule](), RULES[rule]
    own = Weights.of(rng.normal(size=(12, 20)).astype(np.float32), rule).variables()
    theirs = keras.Variable(own.weight.numpy())
    optimizer.build([theirs])
    for _ in range(40):
        gradient = rng.normal(size=(12, 20)).astype(np.float32)
        optimizer.apply([tf.constant(gradient)], [theirs])
        take_step(own, range(12), gradient, rule, 0.1, implementation=implementation)
        np.testing.assert_allclose(own.weight, theirs.numpy(), rtol=1e-4, atol=1e-5)


@every_implementation
def test_adam_corrects_its_bias_by_the_age_of_the_row(name, monkeypatch):
    """The first step of a row is as long as the rate, however late it comes."""
    implementation = use(name, monkeypatch)
    rule = RULES["adam"]
    own = Weights.of(np.zeros((2, 4)), rule).variables()
    for _ in range(50):
        take_step(own, [0], np.ones((1, 4)), rule, 0.01, implementation=implementation)
    take_step(own, [1], -3 * np.ones((1, 4)), rule, 0.01, implementation=implementation)
    np.testing.assert_allclose(own.weight[1], np.full(4, 0.01), rtol=2e-3)  # epsilon
    np.testing.assert_array_equal(own.slots[2], [50, 1])


@every_implementation
@pytest.mark.parametrize("age", [0, 999, 4095, 4096, 65_535, 10**6, 2**31 - 3])
def test_adam_at_any_age(name, age, monkeypatch):
    implementation = use(name, monkeypatch)
    rule = RowRule("adam", (0.9, 0.99999, 1e-7))
    expected = Weights.of(np.ones((1, 5)), rule)
    expected.slots[1][:], expected.slots[2][:] = 2.0, age
    own = expected.variables()
    update_row(expected.weight, expected.slots, 0, np.ones(5), rule, 0.5)
    take_step(own, [0], np.ones((1, 5)), rule, 0.5, implementation=implementation)
    check_equal(own, expected, 1e-6)


@every_implementation
def test_an_age_does_not_wrap(name, monkeypatch):
    implementation = use(name, monkeypatch)
    rule, last = RowRule("adam", (0.9, 0.999, 1e-7)), 2**31 - 1
    ages = [last - 5, last - 1, last]
    # Beyond the limit the correction is 1, so such a row continues like any old row.
    own, young = (Weights.of(np.ones((3, 5)), rule) for _ in range(2))
    own.slots[2][:], young.slots[2][:] = ages, 10**6
    own, young = own.variables(), young.variables()
    for step in range(10):
        gradient = np.full((3, 5), step - 4.0)
        for weights in (own, young):
            take_step(weights, range(3), gradient, rule, 0.1, implementation=implementation)
    np.testing.assert_array_equal(own.slots[2], [last] * 3)
    np.testing.assert_array_equal(young.slots[2], [10**6 + 10] * 3)
    for got, want in zip(own.arrays()[:3], young.arrays()[:3], strict=True):
        np.testing.assert_array_equal(got, want)


@every_implementation
@every_rule
def test_bfloat16_is_rounded_once(name, rule, monkeypatch):
    implementation = use(name, monkeypatch)
    rng, rule = np.random.default_rng(2), RULES[rule]
    start = tf.cast(tf.cast(rng.normal(size=(30, 37)), tf.bfloat16), tf.float64).numpy()
    expected = Weights.of(start, rule)
    own = expected.variables("bfloat16")
    gradient = rng.normal(size=(30, 37)).astype(np.float32)
    for row, g in enumerate(gradient):
        update_row(expected.weight, expected.slots, row, g, rule, 0.1)
    take_step(own, range(30), gradient, rule, 0.1, implementation=implementation)
    got, want = own.arrays(), [expected.weight, *expected.slots]
    half_a_unit = 2.0**-8 * np.abs(want[0]) + 1e-5  # 8 bits: up to 2^-8 of a number just above 2^n
    assert np.all(np.abs(got[0] - want[0]) <= half_a_unit / 1.0)
    exact = tf.cast(tf.cast(want[0], tf.bfloat16), tf.float64).numpy()
    assert np.mean(got[0] == exact) > 0.99
    for slot, wanted in zip(got[1:], want[1:], strict=True):
        np.testing.assert_allclose(slot, wanted, rtol=1e-5, atol=1e-6)


def bad_inputs():
    nan = float("nan")
    return {
        "id too large": ("ids", (1,), 9, "ids must be class ids in .*got.*9"),
        "id too small": ("ids", (1,), -1, "ids must be class ids in .*got.*-1"),
        "id repeated": ("ids", (1,), 0, "ids must not repeat a row; got.*0"),
        "gradient is NaN": ("gradient", (2, 1), nan, "gradient must be finite"),
        "gradient is infinite": ("gradient", (0, 0), float("inf"), "gradient must be finite"),
        "eta is negative": ("learning_rate", (), -0.5, "learning_rate must be finite.*got.*-0.5"),
        "eta is NaN": ("learning_rate", (), nan, "learning_rate must be finite.*got.*nan"),
        "eta is too large": ("learning_rate", (), 20.0, "below 1 / weight_decay.*0.1.*got.*20"),
    }


@every_implementation
@pytest.mark.parametrize("case", list(bad_inputs()))
def test_bad_input_is_refused_and_changes_nothing(name, case, monkeypatch):
    implementation = use(name, monkeypatch)
    argument, position, value, message = bad_inputs()[case]
    arguments = {
        "ids": np.array([0, 3, 4]),
        "gradient": np.ones((3, 2)),
        "learning_rate": np.array(0.1),
    }
    arguments[argument][position] = value
    rule = RowRule("adam", (0.9, 0.999, 1e-7), weight_decay=0.1)
    own = Weights.of(np.ones((9, 2)), rule).variables()
    before = own.arrays()
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        take_step(
            own,
            arguments["ids"],
            arguments["gradient"],
            rule,
            float(arguments["learning_rate"]),
            implementation=implementation,
        )
    for old, new in zip(before, own.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


@every_implementation
def test_a_gradient_of_another_shape_is_refused(name, monkeypatch):
    implementation = use(name, monkeypatch)
    own = Weights.of(np.ones((9, 2)), RULES["sgd"]).variables()
    arguments = {"implementation": implementation}
    for shape in ([3, 3], [2, 2], [3]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"gradient must be \[n, D\]"):
            take_step(own, [0, 1, 2], np.ones(shape), RULES["sgd"], 0.1, **arguments)


def test_a_bad_rule_is_refused():
    variable = tf.Variable(tf.zeros([3, 2]))
    for rule, message in {
        RowRule("rmsprop", (0.9,)): "method must be one of sgd, adagrad, adam; got 'rmsprop'",
        RowRule("adam", (0.9, 0.999)): "hyperparameters of adam must be 3 numbers; got",
        RowRule("adam", (1.0, 0.999, 1e-7)): "beta must be at least 0 and below 1; got 1.0",
        RowRule("adam", (0.9, 0.999, 0.0)): "epsilon must be at least 1e-37.*got 0.0",
        RowRule("sgd", (float("nan"), 0.0)): "momentum must be at least 0 and below 1; got nan",
        RowRule("sgd", (0.0, 0.0), -0.1): "weight_decay must be at least 0 and finite; got -0.1",
        RowRule("sgd", (0.0, 0.0), 0.0, 0.0): "row_clip_norm must be at least 1e-37.*got 0.0",
    }.items():
        with pytest.raises(ValueError, match=message):
            row_update(variable, [], tf.zeros([0], tf.int64), tf.zeros([0, 2]), rule, 0.1)


def test_bad_slots_and_dtypes_are_refused():
    variable, rule = tf.Variable(tf.zeros([3, 2])), RULES["adagrad"]
    ids, gradient = tf.zeros([0], tf.int64), tf.zeros([0, 2])
    with pytest.raises(ValueError, match=r"slots of variable must be 1 variables.*got 0"):
        row_update(variable, [], ids, gradient, rule, 0.1)
    with pytest.raises(ValueError, match=r"slot 'accumulator' of variable must have shape"):
        row_update(variable, [tf.Variable(tf.zeros([3]))], ids, gradient, rule, 0.1)
    with pytest.raises(TypeError, match="slot 'accumulator' of variable must be float32; got"):
        row_update(variable, [tf.Variable(tf.zeros([3, 2], "float64"))], ids, gradient, rule, 0.1)
    with pytest.raises(TypeError, match="ids must be int64; got int32"):
        row_update(variable, [], tf.zeros([0], tf.int32), gradient, RULES["sgd"], 0.1)
    with pytest.raises(TypeError, match="gradient must be float32; got float64"):
        row_update(variable, [], ids, tf.zeros([0, 2], tf.float64), RULES["sgd"], 0.1)
    with pytest.raises(ValueError, match="implementation must be one of"):
        row_update(variable, [], ids, gradient, RULES["sgd"], 0.1, implementation="fast")
