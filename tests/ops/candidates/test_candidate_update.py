# SPDX-License-Identifier: Apache-2.0
"""Steps on the rows of labels and candidates match the definition."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.candidate_cases import (
    IMPLEMENTATIONS,
    RULES,
    Weights,
    check_equal,
    random_case,
    use,
)
from oracles import candidate_update as oracle
from variants import thorough

from tfx_largeout.ops.candidates.candidate_update import candidate_update

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
own_or_shared = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])

SHAPES = [  # C, D, N, K, S
    (700, 64, 128, 1, 200),
    (5000, 300, 33, 3, 57),
    (90, 123, 1, 40, 31),
    (50, 8, 300, 2, 20),
    (300_000, 3, 50, 2, 300),
    (20, 5, 0, 1, 7),
    (20, 5, 3, 0, 0),
    (1, 1, 3, 2, 4),
]


class Layer:
    """The weights of a layer, for the oracle and for TensorFlow."""

    def __init__(self, case, rule, dtype="float32"):
        self.rule, self.dtype = rule, dtype
        self.kernel = Weights.of(case.kernel, rule)
        self.bias = None if case.bias is None else Weights.of(case.bias, rule)
        self.own_kernel = self.kernel.variables(dtype)
        self.own_bias = None if case.bias is None else self.bias.variables(dtype)

    def take_step(self, batch, gradients, learning_rate, **arguments):
        """Returns dL/dh of the op."""
        floats = "float64" if self.dtype == "float64" else "float32"
        bias = self.own_bias
        return candidate_update(
            self.own_kernel.weight,
            None if bias is None else bias.weight,
            self.own_kernel.slots,
            [] if bias is None else bias.slots,
            tf.constant(batch[0], floats),
            *(tf.constant(ids, tf.int64) for ids in batch[1:]),
            *(tf.constant(gradient, floats) for gradient in gradients),
            self.rule,
            learning_rate,
            **arguments,
        )

    def expect_step(self, batch, gradients, learning_rate):
        """Returns dL/dh of the oracle."""
        slots = self.kernel.slots, None if self.bias is None else self.bias.slots
        bias = None if self.bias is None else self.bias.weight
        weights = self.kernel.weight, bias, slots
        return oracle.update(*weights, batch, gradients, self.rule, learning_rate)

    def check(self, tolerance):
        check_equal(self.own_kernel, self.kernel, tolerance)
        if self.bias is not None:
            check_equal(self.own_bias, self.bias, tolerance)

    def arrays(self):
        return self.own_kernel.arrays() + ([] if self.bias is None else self.own_bias.arrays())


def check_steps(case, layer, tolerance, **arguments):
    for batch, gradients in case.batches:
        expected = layer.expect_step(batch, gradients, 0.05)
        gradient = layer.take_step(batch, gradients, 0.05, **arguments)
        scale = 1 + np.abs(expected).max(initial=0)
        np.testing.assert_allclose(gradient, expected, atol=tolerance * scale)
        layer.check(tolerance)


@every_implementation
@own_or_shared
@pytest.mark.parametrize("seed", [*range(4), *thorough(*range(4, 24))])
def test_steps_are_those_of_the_definition(name, own, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case, rule = random_case(seed, own), list(RULES.values())[seed % len(RULES)]
    check_steps(case, Layer(case, rule), 2e-5, implementation=implementation)


@every_implementation
@own_or_shared
@pytest.mark.parametrize("seed", [0, *thorough(1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes(name, own, shape, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed, own, steps=1, shape=shape)
    rule = RULES["adagrad" if seed else "adam"]
    check_steps(case, Layer(case, rule), 2e-5, implementation=implementation)


@own_or_shared
@pytest.mark.parametrize("seed", range(8))
def test_float64(own, seed):
    case, rule = random_case(seed, own), list(RULES.values())[seed % len(RULES)]
    check_steps(case, Layer(case, rule, "float64"), 1e-11)


@every_implementation
@own_or_shared
@pytest.mark.parametrize("rule", ["sgd", "adam"])
def test_bfloat16_is_rounded_once(name, own, rule, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(4, own, steps=1, shape=(40, 37, 20, 2, 30))
    rounded = [
        np.array(tf.cast(tf.cast(x, tf.bfloat16), tf.float64)) for x in (case.kernel, case.bias)
    ]
    case = case._replace(kernel=rounded[0], bias=rounded[1])
    layer = Layer(case, RULES[rule], "bfloat16")
    batch, gradients = case.batches[0]
    expected = layer.expect_step(batch, gradients, 0.05)
    gradient = layer.take_step(batch, gradients, 0.05, implementation=implementation)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-4)
    for own_weights, weights in ((layer.own_kernel, layer.kernel), (layer.own_bias, layer.bias)):
        got, exact = own_weights.arrays(), tf.cast(tf.cast(weights.weight, "bfloat16"), "float64")
        assert np.mean(got[0] == exact.numpy()) > 0.98
        np.testing.assert_allclose(got[0], weights.weight, rtol=2.0**-8, atol=1e-5)
        for slot, wanted in zip(got[1:], weights.slots, strict=True):
            np.testing.assert_allclose(slot, wanted, rtol=1e-4, atol=1e-4)


@every_implementation
@own_or_shared
def test_without_update_nothing_changes_but_the_gradient_is_there(name, own, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(6, own)
    layer = Layer(case, RULES["adam"])
    before, (batch, gradients) = layer.arrays(), case.batches[0]
    gradient = layer.take_step(batch, gradients, 0.05, update=False, implementation=implementation)
    np.testing.assert_allclose(
        gradient, layer.expect_step(batch, gradients, 0.05), rtol=1e-4, atol=1e-4
    )
    for old, new in zip(before, layer.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


@every_implementation
@own_or_shared
def test_without_gradient_the_step_is_the_same(name, own, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(6, own)
    layer, expected = Layer(case, RULES["adam"]), Layer(case, RULES["adam"])
    for batch, gradients in case.batches:
        expected.take_step(batch, gradients, 0.05, implementation=implementation)
        found = layer.take_step(
            batch, gradients, 0.05, gradient=False, implementation=implementation
        )
        assert found.shape == [0, batch[0].shape[1]]
        for got, wanted in zip(layer.arrays(), expected.arrays(), strict=True):
            np.testing.assert_array_equal(got, wanted)


@every_implementation
@own_or_shared
def test_a_named_row_is_touched_even_by_a_gradient_of_0(name, own, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(0, own, shape=(9, 3, 2, 1, 2))
    layer = Layer(case, RULES["adam"])
    candidates = np.array([[4, 4], [-1, 5]]) if own else np.array([4, 5])
    batch = case.batches[0][0][0], np.array([[1], [-1]]), candidates
    layer.take_step(batch, [np.zeros((2, 1)), np.zeros((2, 2))], 0.1, implementation=implementation)
    for weights in (layer.own_kernel, layer.own_bias):
        np.testing.assert_array_equal(weights.slots[2], [0, 1, 0, 0, 1, 1, 0, 0, 0])


@every_implementation
@own_or_shared
def test_gradients_at_padding_are_ignored(name, own, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(0, own, steps=1, shape=(9, 3, 2, 2, 3))
    candidates = np.array([[4, -1, 4], [-1, 5, 1]]) if own else np.array([4, -1, 1])
    labels = np.array([[-1, 2], [3, -1]])
    hidden, gradients = case.batches[0][0][0], case.batches[0][1]
    expected, layer = Layer(case, RULES["adam"]), Layer(case, RULES["adam"])
    batch = hidden, labels, candidates
    expected.take_step(batch, gradients, 0.1, implementation=implementation)
    gradients[0][labels < 0] = np.nan
    gradients[1][np.broadcast_to(candidates < 0, (2, 3))] = np.inf
    layer.take_step(batch, gradients, 0.1, implementation=implementation)
    for old, new in zip(expected.arrays(), layer.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


@every_implementation
@own_or_shared
def test_steps_in_one_graph_of_unknown_shapes(name, own, monkeypatch):
    implementation = use(name, monkeypatch)
    shapes = [(50, 6, 3, 2, 40), (50, 6, 9, 0, 5), (50, 6, 1, 3, 0)]
    case = random_case(0, own, steps=1, shape=shapes[0])
    layer = Layer(case, RULES["adam"])
    floats, ids = tf.TensorSpec([None, None]), tf.TensorSpec([None, None], tf.int64)
    candidates = ids if own else tf.TensorSpec([None], tf.int64)
    rate = tf.Variable(0.1)
    step = tf.function(
        lambda *arguments: candidate_update(
            layer.own_kernel.weight,
            layer.own_bias.weight,
            layer.own_kernel.slots,
            layer.own_bias.slots,
            *arguments,
            layer.rule,
            rate,
            implementation=implementation,
        ),
        input_signature=[tf.TensorSpec([None, 6]), ids, candidates, floats, floats],
    )
    for seed, shape in enumerate(shapes):
        batch, gradients = random_case(2 * seed, own, steps=1, shape=shape).batches[0]
        expected = layer.expect_step(batch, gradients, 0.1)
        rate.assign(0.1)
        arrays = (x.astype(np.float32) for x in (batch[0], *gradients))
        hidden, *gradients = (tf.constant(x) for x in arrays)
        gradient = step(hidden, *batch[1:], *gradients)
        np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
        layer.check(2e-5)


def bad_inputs():
    nan, infinity = float("nan"), float("inf")
    return {
        "hidden is NaN": ("hidden", nan, "hidden must be finite"),
        "label too large": ("labels", 9, "labels must be class ids.*got.*9"),
        "label too small": ("labels", -2, "labels must be class ids.*got.*-2"),
        "candidate too large": ("candidates", 9, "candidates must be class ids.*got.*9"),
        "candidate too small": ("candidates", -2, "candidates must be class ids.*got.*-2"),
        "gradient of labels": ("true_gradient", nan, "true_gradient must be finite"),
        "gradient of candidates": ("candidate_gradient", -infinity, "candidate_gradient must be"),
        "eta is negative": ("learning_rate", -0.5, "learning_rate must be finite.*got.*-0.5"),
        "eta is infinite": ("learning_rate", infinity, "learning_rate must be finite.*got.*inf"),
        "eta is too large": ("learning_rate", 20.0, "below 1 / weight_decay.*0.1.*got.*20"),
    }


@every_implementation
@own_or_shared
@pytest.mark.parametrize("update", [True, *thorough(False)])
@pytest.mark.parametrize("bad", list(bad_inputs()))
def test_bad_input_is_refused_and_changes_nothing(name, own, update, bad, monkeypatch):
    implementation = use(name, monkeypatch)
    arguments = {
        "hidden": np.ones((3, 4)),
        "labels": np.ones((3, 2), int),
        "candidates": np.ones((3, 5) if own else 5, int),
        "true_gradient": np.ones((3, 2)),
        "candidate_gradient": np.ones((3, 5)),
        "learning_rate": np.array([0.1]),
    }
    argument, value, message = bad_inputs()[bad]
    arguments[argument].flat[-1] = value
    case = random_case(0, own, steps=1, shape=(9, 4, 3, 2, 5))
    layer = Layer(case, RULES["adamw, clipped"])
    before = layer.arrays()
    *batch, true_gradient, candidate_gradient, rate = arguments.values()
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        layer.take_step(
            batch,
            [true_gradient, candidate_gradient],
            rate[0],
            update=update,
            implementation=implementation,
        )
    for old, new in zip(before, layer.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


@every_implementation
@pytest.mark.parametrize(
    ("argument", "shape", "message"),
    [
        (0, (3, 5), "hidden must be .N, D. with the D of kernel"),
        (1, (2, 2), "labels must be .N, K. with the N of hidden|true_gradient must be"),
        (2, (2, 5), "candidates must be .S., or .N, S. with the N of hidden"),
        (3, (3, 1), "true_gradient must be .N, K. as the labels"),
        (4, (3, 4), "candidate_gradient must be .N, S. with the N of hidden and the S of cand"),
        (4, (2, 5), "candidate_gradient must be .N, S. with the N of hidden and the S of cand"),
    ],
)
def test_shapes_that_disagree_are_refused(name, argument, shape, message, monkeypatch):
    implementation = use(name, monkeypatch)
    shapes = [(3, 4), (3, 2), (5,), (3, 2), (3, 5)]
    shapes[argument] = shape
    hidden, labels, candidates, *gradients = (np.ones(shape) for shape in shapes)
    layer = Layer(random_case(0, False, shape=(9, 4, 3, 2, 5)), RULES["sgd"])
    before = layer.arrays()
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        layer.take_step((hidden, labels, candidates), gradients, 0.1, implementation=implementation)
    for old, new in zip(before, layer.arrays(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_slots_that_fit_no_bias_are_refused():
    case = random_case(1, False, shape=(9, 4, 3, 2, 5))  # no bias
    layer = Layer(case, RULES["adagrad"])
    batch, gradients = case.batches[0]
    with pytest.raises(ValueError, match="bias_slots must be empty without a bias; got 1"):
        candidate_update(
            layer.own_kernel.weight,
            None,
            layer.own_kernel.slots,
            layer.own_kernel.slots,
            tf.constant(batch[0], tf.float32),
            *(tf.constant(ids) for ids in batch[1:]),
            *(tf.constant(gradient, tf.float32) for gradient in gradients),
            layer.rule,
            0.1,
        )
