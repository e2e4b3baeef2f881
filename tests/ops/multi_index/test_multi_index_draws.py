# SPDX-License-Identifier: Apache-2.0
"""The custom op's draws equal the draws of TensorFlow's own ops, and its definition."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from oracles import inverted_multi_index as oracle

from tfx_largeout.ops.multi_index.multi_index_draws import ClassLists, multi_index_draws

SIZES = [(1, 3, 2, 5), (4, 50, 11, 40), (7, 20, 3, 1), (13, 400, 30, 100), (2, 9, 0, 3)]
ways = pytest.mark.parametrize("implementation", ["op", "composed"])


class Problem:
    """Classes with random codes and weights, scores and random numbers."""

    def __init__(self, words, classes, batch, draws, seed=0):
        rng = np.random.default_rng(seed)
        self.first, self.second = rng.normal(scale=3, size=(2, batch, words))
        self.codes = rng.integers(0, words**2, classes).astype(np.int32)
        self.weights = rng.integers(1, 2**30, classes).astype(np.int32)
        self.lists = ClassLists.of(tf.constant(self.codes), tf.constant(self.weights), words**2)
        self.uniform = rng.random((batch, draws, 3))

    def draw(self, implementation, **changed):
        values = {"first": self.first, "second": self.second, "uniform": self.uniform, **changed}
        first, second, uniform = (tf.constant(values[name]) for name in values if name != "lists")
        lists = changed.get("lists", self.lists)
        return multi_index_draws(first, second, lists, uniform, implementation=implementation)

    def distribution(self):
        k1, k2 = np.divmod(self.codes, self.first.shape[1])
        logits = self.first[:, k1] + self.second[:, k2] + np.log(self.weights)
        weights = np.exp(logits - logits.max(axis=1, keepdims=True))
        return weights / weights.sum(axis=1, keepdims=True)


@pytest.mark.parametrize("sizes", SIZES)
def test_the_op_draws_what_composed_ops_draw(sizes):
    problem = Problem(*sizes)
    (ids, log_q), (expected, expected_log_q) = (problem.draw(x) for x in ("op", "composed"))
    np.testing.assert_array_equal(ids, expected)
    np.testing.assert_allclose(log_q, expected_log_q, rtol=1e-12, atol=1e-12)
    of_ids = np.take_along_axis(np.log(problem.distribution()), ids.numpy(), axis=1)
    np.testing.assert_allclose(log_q, of_ids, rtol=1e-10, atol=1e-10)


def test_the_oracle_agrees():
    problem = Problem(5, 60, 4, 6)
    q = problem.distribution()
    unit = np.eye(5)
    hidden = np.concatenate([problem.first, problem.second], axis=1)  # with unit vectors as words
    of_words = oracle.distribution(hidden, problem.codes, unit, unit, problem.weights, "pq")
    np.testing.assert_allclose(q, of_words, rtol=1e-12)


@ways
def test_examples_without_a_sum_have_no_draws(implementation):
    problem = Problem(4, 50, 6, 5)
    first = problem.first.copy()
    first[1, 2], first[3, 0], first[4] = np.nan, np.inf, -1e9
    ids, log_q = problem.draw(implementation, first=first)
    whole, whole_log_q = problem.draw(implementation)
    has_none = np.isin(np.arange(6), [1, 3, 4])
    assert np.all(ids.numpy()[has_none] == -1) and np.all(log_q.numpy()[has_none] == 0)
    np.testing.assert_array_equal(ids.numpy()[~has_none], whole.numpy()[~has_none])
    np.testing.assert_array_equal(log_q.numpy()[~has_none], whole_log_q.numpy()[~has_none])


@ways
@pytest.mark.parametrize("uniform", [0.0, np.nextafter(1, 0)])
def test_numbers_at_the_ends_of_their_range_draw_classes_that_are_there(implementation, uniform):
    for seed in range(20):
        problem = Problem(6, 9, 5, 3, seed)  # most pairs are empty
        ids, log_q = problem.draw(implementation, uniform=np.full((5, 3, 3), uniform))
        assert np.all(ids.numpy() >= 0) and np.all(np.isfinite(log_q))


@ways
@pytest.mark.parametrize("value", [-0.1, 1.0, np.nan])
def test_numbers_out_of_range_are_refused(implementation, value):
    problem = Problem(4, 50, 6, 5)
    uniform = problem.uniform.copy()
    uniform[2, 1, 0] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"uniform must be in \[0, 1\); got"):
        problem.draw(implementation, uniform=uniform)


@ways
@pytest.mark.parametrize(
    ("name", "place", "value"),
    [
        *(("codes", slice(None), value) for value in (-1, 16, 2**31 - 1)),
        *(("entries", slice(None), value) for value in (-1, 50, 2**31 - 1)),
        *(("starts", 7, value) for value in (-1, 51, 2**31 - 1, -(2**31))),
        ("starts", 0, 1),
        ("starts", 16, 49),
        ("sums", 50, 0),
    ],
)
def test_damaged_lists_are_refused(implementation, name, place, value):
    problem = Problem(4, 50, 6, 50)
    damaged = getattr(problem.lists, name).numpy()
    damaged[place] = value
    lists = problem.lists._replace(**{name: tf.constant(damaged)})
    with pytest.raises(tf.errors.InvalidArgumentError, match="damaged: call rebuild"):
        problem.draw(implementation, lists=lists)
