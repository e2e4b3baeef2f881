# SPDX-License-Identifier: Apache-2.0
"""softmax_update: against the definition in float64."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, random_labels, use
from variants import product

from tfx_largeout.ops.exact.softmax_update import softmax_update
from tfx_largeout.ops.rows.row_rule import RowRule

SGD = RowRule("sgd", (0.0, 0.0))
ADAM = RowRule("adam", (0.9, 0.999, 1e-7), weight_decay=0.01)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


class Problem:
    """A layer, a batch, gradients of the loss, and the expected results, in float64."""

    def __init__(
        self,
        classes,
        width,
        batch,
        num_labels=2,
        has_bias=True,
        dtype="float32",
        rounds=False,
        has_mean=False,
    ):
        rng = np.random.default_rng(0)
        kernel = rng.normal(size=(classes, width)) / np.sqrt(width)
        self.kernel = tf.Variable(tf.cast(kernel, dtype))
        self.bias = tf.Variable(tf.cast(rng.normal(size=classes), dtype)) if has_bias else None
        self.dtype = tf.float64 if dtype == "float64" else tf.float32
        self.hidden = tf.cast(rng.normal(size=(batch, width)), self.dtype)
        self.labels = random_labels(rng, batch, num_labels, classes)
        target = rng.normal(size=(batch, num_labels))
        self.target_gradient = tf.cast(target, self.dtype)
        self.log_z_gradient = tf.cast(rng.normal(size=batch), self.dtype)
        self.mean_gradient = None
        if has_mean:  # as large as labels' gradients, for a class
            self.mean_gradient = tf.cast(classes * rng.normal(size=batch), self.dtype)
        self.compute(rounds)
        self.logsumexp = tf.cast(self.exact_logsumexp, self.dtype)

    def compute(self, rounds):
        """The formulas; with `rounds`, products are of factors rounded to bfloat16."""
        factors = self.kernel, self.hidden
        if rounds:
            factors = [tf.cast(factor, tf.bfloat16) for factor in factors]
        kernel, hidden = (tf.cast(factor, tf.float64).numpy() for factor in factors)
        bias = 0 if self.bias is None else tf.cast(self.bias, tf.float64).numpy()
        logits = hidden @ kernel.T + bias
        peak = logits.max(axis=1, keepdims=True)
        self.exact_logsumexp = peak[:, 0] + np.log(np.exp(logits - peak).sum(axis=1))
        p = np.exp(logits - self.exact_logsumexp[:, np.newaxis])
        gradient = tf.cast(self.log_z_gradient, tf.float64).numpy()[:, np.newaxis] * p
        rows, columns = np.nonzero(self.labels >= 0)
        of_labels = tf.cast(self.target_gradient, tf.float64).numpy()[rows, columns]
        np.add.at(gradient, (rows, self.labels[rows, columns]), of_labels)
        if self.mean_gradient is not None:
            mean = tf.cast(self.mean_gradient, tf.float64).numpy()
            gradient += mean[:, np.newaxis] / gradient.shape[1]
        self.bias_gradient = gradient.sum(axis=0)
        if rounds:
            gradient = tf.cast(tf.cast(gradient, tf.bfloat16), tf.float64).numpy()
        self.hidden_gradient = gradient @ kernel
        self.kernel_gradient = gradient.T @ hidden

    def step(self, implementation, rule=SGD, rate=1.0, **options):
        """Takes a step; returns dL/dh, and by how much W and b fell."""
        variables = [v for v in (self.kernel, self.bias) if v is not None]
        self.slots = [slots_of(rule, variable) for variable in variables]
        before = [tf.cast(v, tf.float64).numpy() for v in variables]
        hidden_gradient = softmax_update(
            self.kernel,
            self.bias,
            self.slots[0],
            self.slots[1] if self.bias is not None else [],
            self.hidden,
            tf.constant(self.labels),
            self.logsumexp,
            self.target_gradient,
            self.log_z_gradient,
            rule,
            rate,
            mean_gradient=self.mean_gradient,
            implementation=implementation,
            **options,
        )
        after = [tf.cast(v, tf.float64).numpy() for v in variables]
        falls = [old - new for old, new in zip(before, after, strict=True)]
        return hidden_gradient.numpy(), *falls


def slots_of(rule, variable):
    shape = {"age": variable.shape[:1]}
    dtypes = {"age": tf.uint32}
    slot_dtype = tf.float64 if variable.dtype == tf.float64 else tf.float32
    return [
        tf.Variable(tf.zeros(shape.get(name, variable.shape), dtypes.get(name, slot_dtype)))
        for name in rule.slots
    ]


def assert_close(got, expected, relative):
    """Within a share of the largest."""
    np.testing.assert_allclose(
        got, expected, rtol=0, atol=relative * (1e-30 + np.abs(expected).max())
    )


@pytest.mark.parametrize(
    ("implementation", "sizes", "has_mean"),
    product(
        IMPLEMENTATIONS,
        [(1009, 17, 70), (61, 130, 200), (2, 1, 1), (300, 33, 5), (125, 600, 34)],
        [False, True],
    ),
)
def test_values(implementation, sizes, has_mean, monkeypatch):
    problem = Problem(*sizes, has_mean=has_mean)
    hidden, kernel, bias = problem.step(use(implementation, monkeypatch))
    assert_close(hidden, problem.hidden_gradient, 5e-6)
    assert_close(kernel, problem.kernel_gradient, 5e-6)
    assert_close(bias, problem.bias_gradient, 5e-6)


def assert_close_but_for_ties(got, expected):
    """A number near the middle of two bfloat16 numbers may be rounded either way."""
    assert_close(got, expected, 4e-3)
    assert np.abs(got - expected).mean() < 1e-4 * np.abs(expected).mean()


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("has_mean", [False, True])
def test_bfloat16_products(implementation, dtype, has_mean, monkeypatch):
    problem = Problem(500, 40, 200, dtype=dtype, rounds=True, has_mean=has_mean)
    kernel = problem.kernel.numpy()
    hidden, *_ = problem.step(use(implementation, monkeypatch), products="bfloat16", update=False)
    assert_close_but_for_ties(hidden, problem.hidden_gradient)
    np.testing.assert_array_equal(kernel, problem.kernel.numpy())
    if dtype == "float32":  # a step of a bfloat16 weight is rounded
        _, kernel, bias = problem.step(use(implementation, monkeypatch), products="bfloat16")
        assert_close_but_for_ties(kernel, problem.kernel_gradient)
        assert_close(bias, problem.bias_gradient, 1e-5)


@every_implementation
def test_bfloat16_weights(implementation, monkeypatch):
    problem = Problem(500, 40, 200, dtype="bfloat16")
    hidden, kernel, _ = problem.step(use(implementation, monkeypatch))
    assert_close(hidden, problem.hidden_gradient, 5e-6)
    assert_close(kernel, problem.kernel_gradient, 2**-8)


def test_float64():
    problem = Problem(100, 7, 9, dtype="float64", has_mean=True)
    hidden, kernel, bias = problem.step("auto")
    assert_close(hidden, problem.hidden_gradient, 1e-14)
    assert_close(kernel, problem.kernel_gradient, 1e-14)
    assert_close(bias, problem.bias_gradient, 1e-14)


@every_implementation
def test_without_bias_and_without_labels(implementation, monkeypatch):
    problem = Problem(100, 7, 9, num_labels=0, has_bias=False)
    hidden, kernel = problem.step(use(implementation, monkeypatch))
    assert_close(hidden, problem.hidden_gradient, 5e-6)
    assert_close(kernel, problem.kernel_gradient, 5e-6)


@every_implementation
def test_a_row_gets_one_step_of_the_rule(implementation, monkeypatch):
    problem = Problem(300, 9, 50)
    before = problem.kernel.numpy()
    hidden, kernel, _ = problem.step(use(implementation, monkeypatch), ADAM, 0.01)
    assert_close(hidden, problem.hidden_gradient, 5e-6)
    # The first step of Adam is the learning rate, by the sign; weights have decayed before.
    expected = 0.01 * np.sign(problem.kernel_gradient) + 0.01 * 0.01 * before
    is_clear = np.abs(problem.kernel_gradient) > 0.1
    np.testing.assert_allclose(kernel[is_clear], expected[is_clear], atol=1e-5)
    for *_, age in problem.slots:
        np.testing.assert_array_equal(age, 1)


@every_implementation
def test_no_examples(implementation, monkeypatch):
    problem = Problem(300, 9, 50, has_mean=True)
    problem.hidden, problem.labels = problem.hidden[:0], problem.labels[:0]
    problem.logsumexp, problem.log_z_gradient = problem.logsumexp[:0], problem.log_z_gradient[:0]
    problem.target_gradient = problem.target_gradient[:0]
    problem.mean_gradient = problem.mean_gradient[:0]
    hidden, kernel, bias = problem.step(use(implementation, monkeypatch))
    assert hidden.shape == (0, 9)
    assert not kernel.any()
    assert not bias.any()


@every_implementation
def test_large_logits(implementation, monkeypatch):
    problem = Problem(300, 9, 50)
    problem.bias.assign_add(tf.fill([300], 100.0))
    problem.logsumexp += 100
    hidden, kernel, _ = problem.step(use(implementation, monkeypatch))
    assert_close(hidden, problem.hidden_gradient, 1e-4)
    assert_close(kernel, problem.kernel_gradient, 1e-4)


@pytest.mark.parametrize("implementation", ["op", "composed"])
@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("hidden", np.nan, "hidden must be finite"),
        ("logsumexp", np.inf, "logsumexp must be finite"),
        ("target_gradient", np.nan, "target_gradient must be finite"),
        ("log_z_gradient", np.inf, "logsumexp_gradient must be finite"),
        ("mean_gradient", np.nan, "mean_gradient must be finite"),
    ],
)
def test_a_refused_step_changes_nothing(implementation, name, value, message, monkeypatch):
    use("baseline" if implementation == "op" else "composed", monkeypatch)
    problem = Problem(30, 3, 5, has_mean=True)
    problem.labels[0, 0] = 3
    numbers = getattr(problem, name).numpy()
    numbers.flat[0] = value
    setattr(problem, name, tf.constant(numbers))
    before = problem.kernel.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        problem.step(implementation, ADAM)
    np.testing.assert_array_equal(before, problem.kernel.numpy())
    assert not any(slot.numpy().any() for slots in problem.slots for slot in slots)


def test_gradients_at_padding_are_ignored():
    results = []
    for at_padding in (0.0, np.nan):
        problem = Problem(30, 3, 5)
        problem.labels[:, 1] = -1
        problem.compute(rounds=False)
        numbers = problem.target_gradient.numpy()
        numbers[:, 1] = at_padding
        problem.target_gradient = tf.constant(numbers)
        hidden, *_ = problem.step("auto")
        results.append((np.array(hidden), problem.kernel.numpy()))
    for expected, found in zip(*results, strict=True):
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("logsumexp", []),
        ("target_gradient", [2]),
        ("log_z_gradient", [4]),
        ("mean_gradient", [4]),
        ("mean_gradient", [5, 1]),
    ],
)
@pytest.mark.parametrize("implementation", ["op", "composed"])
def test_wrong_shapes(implementation, name, shape, monkeypatch):
    use("baseline" if implementation == "op" else "composed", monkeypatch)
    problem = Problem(30, 3, 5)
    setattr(problem, name, tf.zeros(shape))
    argument = name.replace("log_z", "logsumexp")
    with pytest.raises(ValueError, match=rf"{argument} must be \[B.*got shape \("):
        problem.step(implementation)


def test_bad_products():
    with pytest.raises(ValueError, match=r"products must be .*; got 'int8'"):
        Problem(30, 3, 5).step("auto", products="int8")
