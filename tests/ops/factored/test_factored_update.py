# SPDX-License-Identifier: Apache-2.0
"""The factored ops take the steps of the naive layer, in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.factored_cases import random_case
from ops.factored_layer import (
    IMPLEMENTATIONS,
    check_consistency,
    reanchor,
    state_of,
    use,
    weights_of,
)
from oracles import factored_update as oracle
from variants import each_once, product, thorough

from tfx_largeout.ops.factored import factored_update as ops

TOLERANCE = {"float32": 2e-4, "float64": 1e-10}

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)


def take_step(
    state, hidden, labels, gradients, learning_rate, weight_decay=0.0, update=True, **arguments
):
    """Runs both ops, eagerly; returns their results."""
    implementation = arguments.get("implementation", "auto")
    hidden, labels = tf.convert_to_tensor(hidden, state.dtype), tf.convert_to_tensor(labels)
    gradients = tuple(tf.convert_to_tensor(g, state.dtype) for g in gradients)
    statistics = ops.factored_statistics(state, hidden, labels, implementation=implementation)
    gradient = ops.factored_update(
        state,
        hidden,
        labels,
        *statistics[3:],
        gradients,
        learning_rate,
        weight_decay,
        update=update,
        **arguments,
    )
    return statistics, gradient


def snapshot(state):
    return [variable.numpy() for variable in state]


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("seed", [*range(3), *thorough(*range(3, 24))])
def test_steps_are_those_of_the_naive_layer(name, dtype, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed, steps=6, dtype=np.dtype(dtype))
    weights, state = case.weights, state_of(case.weights, dtype)
    tolerance = TOLERANCE[dtype]
    rng = np.random.default_rng(seed)
    for hidden, labels, gradients in case.batches:
        if rng.random() < 0.4:
            reanchor(state, implementation)
        expected = oracle.statistics(weights, hidden, labels)
        rates = (case.learning_rate, case.weight_decay)
        statistics, gradient = take_step(
            state, hidden, labels, gradients, *rates, implementation=implementation
        )
        scale = 1 + np.abs(expected[1]).max()
        for own, naive in zip(statistics[:3], expected, strict=True):
            np.testing.assert_allclose(own, naive, rtol=tolerance, atol=tolerance * scale)
        weights, naive = oracle.naive_step(weights, hidden, labels, gradients, *rates)
        np.testing.assert_allclose(gradient, naive, rtol=tolerance, atol=tolerance * scale)
        scale = np.abs(weights).max()
        np.testing.assert_allclose(weights_of(state), weights, atol=tolerance * scale)
        gram, row_sum = weights.T @ weights, weights.sum(axis=0)
        np.testing.assert_allclose(state.gram, gram, atol=tolerance * np.abs(gram).max())
        np.testing.assert_allclose(state.row_sum, row_sum, atol=tolerance * np.sqrt(gram.max()) * 8)
        check_consistency(state)
    before = weights_of(state)
    ops.factored_settle(state, implementation=implementation)
    np.testing.assert_allclose(weights_of(state), before, atol=tolerance * np.abs(before).max())
    assert int(state.slot_rows[int(state.current_slot)]) == state.num_classes
    check_consistency(state)


@every_implementation
@pytest.mark.parametrize("two_eta_lambda", [0.3, 1.4])
def test_steps_in_one_graph_of_unknown_shapes(name, two_eta_lambda, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(30, 5))
    state = state_of(weights, "float64")
    floats, ids = tf.TensorSpec([None, 5], tf.float64), tf.TensorSpec([None, None], tf.int64)
    vector = tf.TensorSpec([None], tf.float64)
    matrix = tf.TensorSpec([None, None], tf.float64)
    step = tf.function(
        lambda hidden, labels, *gradients: take_step(
            state, hidden, labels, gradients, rate, 0.1, implementation=implementation
        ),
        autograph=False,
        input_signature=[floats, ids, matrix, vector, vector],
    )
    rate = tf.Variable(0.0, dtype=tf.float64)
    for batch, num_labels in ((1, 1), (3, 2), (4, 0), (9, 3), (5, 1), (2, 4)):
        hidden, labels = rng.normal(size=(batch, 5)), rng.integers(-1, 30, (batch, num_labels))
        g_q = np.ones(batch)
        gradients = (rng.normal(size=(batch, num_labels)), g_q, rng.normal(size=batch))
        rate.assign(two_eta_lambda / 2 / np.linalg.norm(hidden, 2) ** 2)
        weights, expected = oracle.naive_step(
            weights, hidden, labels, gradients, float(rate), weight_decay=0.1
        )
        _, gradient = step(hidden, labels, *gradients)
        np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(weights_of(state), weights, rtol=1e-9, atol=1e-9)
        check_consistency(state)


@every_implementation
def test_without_update_nothing_changes_but_the_gradient_is_there(name, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(1)
    hidden, labels, gradients = case.batches[0]
    state = state_of(case.weights)
    before = snapshot(state)
    _, gradient = take_step(
        state, hidden, labels, gradients, 0.1, update=False, implementation=implementation
    )
    _, expected = oracle.naive_step(case.weights, hidden, labels, gradients, 0.1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
    for old, new in zip(before, snapshot(state), strict=True):
        np.testing.assert_array_equal(old, new)


NEAR_THE_LIMIT = [0.96, 0.999999, 1.0, 1.000001, 1.5, 1.99]


@pytest.mark.parametrize(
    ("two_eta_lambda", "name", "dtype", "batch"),
    [
        *product(NEAR_THE_LIMIT, IMPLEMENTATIONS[:-1], ["float32", "float64"], [1, 3, 40]),
        # The composed one is slow.
        *each_once(NEAR_THE_LIMIT, IMPLEMENTATIONS[-1:], ["float32", "float64"], [1, 3, 40]),
    ],
)
def test_steps_up_to_the_limit_of_the_naive_layer(two_eta_lambda, name, dtype, batch, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(batch)
    weights = rng.normal(size=(30, 7)).astype(dtype).astype("float64")
    state = state_of(weights, dtype)
    for _ in range(12):  # more than there are slots
        hidden = np.abs(rng.normal(size=(batch, 7))).astype(dtype).astype("float64")
        labels = rng.integers(0, 30, (batch, 2))
        g_q = np.ones(batch) / batch
        largest = np.linalg.norm(hidden.T @ (g_q[:, np.newaxis] * hidden), 2)
        learning_rate = float(np.dtype(dtype).type(two_eta_lambda / 2 / largest))
        gradients = (-2 * np.ones((batch, 2)) / batch, g_q, 0.01 * np.ones(batch))
        weights, _ = oracle.naive_step(weights, hidden, labels, gradients, learning_rate)
        take_step(state, hidden, labels, gradients, learning_rate, implementation=implementation)
        tolerance = TOLERANCE[dtype] * np.abs(weights).max()
        np.testing.assert_allclose(weights_of(state), weights, atol=tolerance)
        check_consistency(state)


@pytest.mark.parametrize(("name", "signs"), product(IMPLEMENTATIONS, ["positive", "mixed"]))
def test_a_step_that_diverges_is_refused(name, signs, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    hidden, labels = rng.normal(size=(4, 5)), rng.integers(0, 9, (4, 1))
    g_q = np.ones(4)
    if signs == "mixed":
        g_q[2] = -0.5
    largest = np.linalg.eigvalsh(hidden.T @ (g_q[:, np.newaxis] * hidden)).max()
    gradients = (np.ones((4, 1)), g_q, np.zeros(4))
    state = state_of(rng.normal(size=(9, 5)))
    before = snapshot(state)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)learning_rate.*lambda_max"
    ) as caught:
        take_step(state, hidden, labels, gradients, 1.02 / largest, implementation=implementation)
    assert str(1.02 / largest)[:5] in caught.value.message
    assert str(largest)[:5] in caught.value.message
    for old, new in zip(before, snapshot(state), strict=True):
        np.testing.assert_array_equal(old, new)
    count = tf.Variable(0)

    @tf.function(autograph=False)
    def counted(rate):
        results = take_step(state, hidden, labels, gradients, rate, implementation=implementation)
        with tf.control_dependencies([results[1]]):
            count.assign_add(1)

    with pytest.raises(tf.errors.InvalidArgumentError, match="lambda_max"):
        counted(tf.constant(1.02 / largest, state.dtype))
    assert int(count) == 0
    take_step(state, hidden, labels, gradients, 0.98 / largest, implementation=implementation)


@pytest.mark.parametrize(("name", "batch"), product(IMPLEMENTATIONS, [4, 40]))
def test_weight_decay_lowers_the_limit(name, batch, monkeypatch):
    """W' = (beta - 2 eta lambda_max) W along that direction: above 1 + beta it grows."""
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    hidden, labels = rng.normal(size=(batch, 5)), rng.integers(0, 9, (batch, 1))
    gradients = (np.ones((batch, 1)), np.ones(batch), np.zeros(batch))
    state = state_of(rng.normal(size=(9, 5)))
    unit = 1 / np.linalg.norm(hidden, 2) ** 2  # eta where 2 eta lambda_max is 2
    before = snapshot(state)
    for rate in (0.96 * unit, 0.94 * unit):
        arguments = (state, hidden, labels, gradients, rate, 0.1 / rate)
        if rate > 0.95 * unit:
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)learning_rate.*decay"):
                take_step(*arguments, implementation=implementation)
            for old, new in zip(before, snapshot(state), strict=True):
                np.testing.assert_array_equal(old, new)
        else:
            take_step(*arguments, implementation=implementation)


@every_implementation
def test_at_a_rate_of_0_no_weight_changes_and_the_gradient_is_there(name, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    weights, hidden = rng.normal(size=(30, 5)), rng.normal(size=(3, 5))
    labels = rng.integers(0, 30, (3, 2))
    gradients = (rng.normal(size=(3, 2)), np.ones(3), rng.normal(size=3))
    state = state_of(weights, "float64")
    _, gradient = take_step(state, hidden, labels, gradients, 0.0, implementation=implementation)
    naive, expected = oracle.naive_step(weights, hidden, labels, gradients, 0.0, 0.0)
    np.testing.assert_allclose(gradient, expected, rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(weights_of(state), naive, rtol=1e-12, atol=1e-12)


def bad_inputs():
    nan, infinity = float("nan"), float("inf")
    rate, decay = "learning_rate must be .*finite", "weight_decay"
    return {
        "hidden is NaN": ("hidden", (1, 2), nan, "hidden must be finite"),
        "hidden is infinite": ("hidden", (0, 0), infinity, "hidden must be finite"),
        "label too large": ("labels", (1, 0), 9, "labels must be.*got.*9"),
        "label too small": ("labels", (1, 0), -2, "labels must be.*got.*-2"),
        "gradient of the targets": ("g_target", (1, 0), nan, "g_target must be finite"),
        "gradient of the squares": ("g_squares", 0, infinity, "g_squares must be finite"),
        "gradient of the sum": ("g_sum", 1, nan, "g_sum must be finite"),
        "eta is negative": ("learning_rate", (), -0.5, f"{rate}.*got.*-0.5"),
        "eta is NaN": ("learning_rate", (), nan, f"{rate}.*got.*nan"),
        "decay is negative": ("weight_decay", (), -0.5, f"{decay}.*-0.5"),
        "decay is too large": ("weight_decay", (), 10.0, f"{decay}.*10"),
    }


@pytest.mark.parametrize(("case", "name"), product(list(bad_inputs()), IMPLEMENTATIONS))
def test_bad_input_is_refused_and_changes_nothing(name, case, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    arguments = {
        "hidden": rng.normal(size=(3, 4)),
        "labels": rng.integers(0, 9, (3, 2)),
        "g_target": np.ones((3, 2)),
        "g_squares": np.full(3, 0.01),
        "g_sum": np.zeros(3),
        "learning_rate": np.array(0.1),
        "weight_decay": np.array(0.0),
    }
    argument, position, value, message = bad_inputs()[case]
    arguments[argument][position] = value
    state = state_of(rng.normal(size=(9, 4)))
    before = snapshot(state)
    gradients = [arguments.pop(key) for key in ("g_target", "g_squares", "g_sum")]
    rates = [float(arguments.pop(key)) for key in ("learning_rate", "weight_decay")]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        take_step(state, *arguments.values(), gradients, *rates, implementation=implementation)
    for old, new in zip(before, snapshot(state), strict=True):
        np.testing.assert_array_equal(old, new)


@every_implementation
@pytest.mark.parametrize(
    "argument, shape",
    [
        ("hidden", (3, 5)),
        ("hidden", (2, 4)),
        ("labels", (4, 2)),
        ("gram_hidden", (3, 5)),
        ("u_hidden", (2, 4)),
        ("g_target", (3, 1)),
        ("g_squares", (2,)),
        ("g_sum", (4,)),
        ("learning_rate", (1,)),
        ("weight_decay", (1,)),
    ],
)
def test_a_wrong_shape_is_refused_and_changes_nothing(name, argument, shape, monkeypatch):
    implementation = use(name, monkeypatch)
    shapes = {
        "hidden": (3, 4),
        "labels": (3, 2),
        "gram_hidden": (3, 4),
        "u_hidden": (3, 4),
        "g_target": (3, 2),
        "g_squares": (3,),
        "g_sum": (3,),
        "learning_rate": (),
        "weight_decay": (),
        argument: shape,
    }
    tensors = {key: tf.fill(size, 0.01) for key, size in shapes.items()}
    tensors["labels"] = tf.zeros(shapes["labels"], tf.int64)
    gradients = [tensors.pop(key) for key in ("g_target", "g_squares", "g_sum")]
    rates = [tensors.pop(key) for key in ("learning_rate", "weight_decay")]
    state = state_of(np.random.default_rng(0).normal(size=(9, 4)))
    before = snapshot(state)
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=r"(?s)shape|rank|must be \["
    ):
        ops.factored_update(
            state, *tensors.values(), gradients, *rates, implementation=implementation
        )
    for old, new in zip(before, snapshot(state), strict=True):
        np.testing.assert_array_equal(old, new)


def test_bad_arguments_of_the_wrappers():
    state = state_of(np.ones((4, 2)))
    labels = tf.zeros([1, 1], tf.int64)
    with pytest.raises(TypeError, match="hidden must have the dtype of the state, float32; got"):
        ops.factored_statistics(state, tf.zeros([1, 2], tf.float64), labels)
    with pytest.raises(ValueError, match="implementation must be one of"):
        ops.factored_statistics(state, tf.zeros([1, 2]), labels, implementation="fast")


@every_implementation
def test_many_reanchorings_keep_the_weights(name, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(50, 6))
    state = state_of(weights, "float64")
    for turn in range(30):
        hidden, labels = rng.normal(size=(5, 6)), rng.integers(0, 50, (5, 1))
        gradients = (rng.normal(size=(5, 1)), 0.02 * rng.random(5), 0.01 * rng.normal(size=5))
        weights, _ = oracle.naive_step(weights, hidden, labels, gradients, 0.5)
        take_step(state, hidden, labels, gradients, 0.5, implementation=implementation)
        reanchor(state, implementation)
        np.testing.assert_allclose(weights_of(state), weights, rtol=1e-9, atol=1e-9)
        check_consistency(state)
        assert np.count_nonzero(state.slot_rows) >= min(turn, 7)
    np.testing.assert_array_equal(state.u, np.eye(6))


@every_implementation
def test_statistics_without_update_of_rows_change_nothing(name, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(9, 4))
    state = state_of(weights, "float64")
    hidden, labels = rng.normal(size=(3, 4)), rng.integers(-1, 9, (3, 2))
    gradients = (rng.normal(size=(3, 2)), 0.02 * rng.random(3), np.zeros(3))
    take_step(state, hidden, labels, gradients, 0.5, implementation=implementation)
    reanchor(state, implementation)
    before = snapshot(state)
    expected = oracle.statistics(weights_of(state), hidden, labels)
    own = ops.factored_statistics(
        state, tf.constant(hidden), tf.constant(labels), update_rows=False
    )
    for value, naive in zip(own[:3], expected, strict=True):
        np.testing.assert_allclose(value, naive, rtol=1e-9, atol=1e-9)
    for old, new in zip(before, snapshot(state), strict=True):
        np.testing.assert_array_equal(old, new)
