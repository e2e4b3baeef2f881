# SPDX-License-Identifier: Apache-2.0
"""conjugate_gradient: against a dense solve and the recursion of the oracle, and its errors."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from oracles import hessian_free as oracle

from tfx_largeout.hessian_free import LBFGSPreconditioner
from tfx_largeout.hessian_free.conjugate_gradient import conjugate_gradient


def system(size=60, condition=1e3, seed=0):
    rng = np.random.default_rng(seed)
    basis = np.linalg.qr(rng.normal(size=(size, size)))[0]
    a = (basis * np.geomspace(1, 1 / condition, size)) @ basis.T
    return (a + a.T) / 2, rng.normal(size=size)


def product_of(a, dtype=tf.float64):
    matrix = tf.constant(a, dtype)
    return lambda v: tf.linalg.matvec(matrix, v)


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("preconditioned", [False, True])
def test_solution_is_that_of_a_dense_solve(start, preconditioned):
    a, b = system()
    inverse = tf.constant(1 / np.diag(a))
    x, statistics = conjugate_gradient(
        product_of(a),
        tf.constant(b),
        x0=tf.ones(60, tf.float64) if start else None,
        preconditioner=(lambda r: inverse * r) if preconditioned else None,
        tolerance=1e-11,
        progress=0,
    )
    assert statistics.reason == "tolerance"
    assert statistics.products == statistics.iterations + start
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-8, atol=1e-7)


@pytest.mark.parametrize("preconditioned", [False, True])
def test_iterates_are_those_of_the_recursion(preconditioned):
    a, b = system(condition=30)
    rng = np.random.default_rng(1)
    root = rng.normal(size=(60, 60)) / 20
    inverse = np.eye(60) + root @ root.T if preconditioned else np.eye(60)
    start = rng.normal(size=60)
    _, statistics = conjugate_gradient(
        product_of(a),
        tf.constant(b),
        tf.constant(start),
        product_of(inverse),
        max_iterations=25,
        progress=0,
        num_pairs=25,
    )
    xs, rs = oracle.conjugate_gradient(a, b, start, inverse, 25)
    assert [kept.iteration for kept in statistics.iterates] == [
        1, 2, 3, 4, 5, 7, 9, 11, 14, 18, 24, 25,
    ]  # fmt: skip
    for kept in statistics.iterates:
        np.testing.assert_allclose(kept.solution, xs[kept.iteration], rtol=1e-9, atol=1e-9)
        assert kept.value == pytest.approx(oracle.quadratic(a, b, xs[kept.iteration]))
    np.testing.assert_allclose(statistics.values, [oracle.quadratic(a, b, x) for x in xs])
    assert statistics.residual_norm == pytest.approx(np.linalg.norm(rs[-1]))
    for i, (s, y) in enumerate(
        zip(statistics.pairs.steps, statistics.pairs.differences, strict=True)
    ):
        np.testing.assert_allclose(s, xs[i + 1] - xs[i], atol=1e-10)
        np.testing.assert_allclose(y, rs[i] - rs[i + 1], atol=1e-10)
        np.testing.assert_allclose(y, a @ s.numpy(), atol=1e-10)


def test_the_model_falls_in_each_iteration():
    a, b = system(condition=1e5)
    _, statistics = conjugate_gradient(product_of(a, tf.float32), tf.constant(b, tf.float32))
    assert np.all(np.diff(statistics.values) < 0)


@pytest.mark.parametrize("progress", [5e-4, 2e-2])
def test_it_stops_where_martens_does(progress):
    a, b = system(200, 1e4)
    _, free = conjugate_gradient(product_of(a), tf.constant(b), progress=0, max_iterations=250)
    _, stopped = conjugate_gradient(
        product_of(a), tf.constant(b), progress=progress, max_iterations=250
    )
    assert stopped.reason == "progress"
    assert stopped.iterations == oracle.martens_stop(free.values, progress)
    assert 10 <= stopped.iterations < free.iterations == 250


def test_a_preconditioner_may_change_from_iteration_to_iteration():
    a, b = system(condition=100)
    calls = []

    def changing(r):
        calls.append(1)
        return r * (1 + 0.2 * np.sin(len(calls) * np.arange(60)))

    x, statistics = conjugate_gradient(
        product_of(a), tf.constant(b), None, changing, tolerance=1e-10, progress=0
    )
    assert statistics.reason == "tolerance"
    np.testing.assert_allclose(x, np.linalg.solve(a, b), rtol=1e-6, atol=1e-6)


def test_float32_asks_for_no_more_than_it_can_have():
    a, b = system(condition=10)
    x, statistics = conjugate_gradient(
        product_of(a, tf.float32), tf.constant(b, tf.float32), tolerance=0, progress=0
    )
    assert statistics.reason == "tolerance"
    assert statistics.residual_norm <= 1e-6 * np.linalg.norm(b)
    assert np.linalg.norm(a @ x.numpy() - b) <= 5e-6 * np.linalg.norm(b)


@pytest.mark.parametrize(
    ("matrix", "preconditioner", "reason"),
    [
        (np.diag([1.0, -1.0]), None, "curvature"),
        (np.zeros([2, 2]), None, "curvature"),
        (np.diag([1.0, math.nan]), None, "not finite"),
        (np.diag([1.0, math.inf]), None, "not finite"),
        (np.eye(2), lambda r: -r, "preconditioner"),
        (np.eye(2), lambda r: r * math.nan, "not finite"),
    ],
)
def test_it_leaves_where_it_can_not_go_on(matrix, preconditioner, reason):
    b = tf.constant([1.0, 3.0])
    x, statistics = conjugate_gradient(product_of(matrix, tf.float32), b, None, preconditioner)
    assert statistics.reason == reason
    assert statistics.iterations == 0
    assert statistics.iterates == []
    np.testing.assert_array_equal(x, [0, 0])


def test_negative_curvature_met_on_the_way_keeps_the_last_iterate():
    x, statistics = conjugate_gradient(
        product_of(np.diag([1.0, 2.0, -0.1])), tf.constant([1.0, 1.0, 0.3], tf.float64)
    )
    assert statistics.reason == "curvature"
    assert statistics.iterations == statistics.iterates[-1].iteration > 0
    np.testing.assert_array_equal(x, statistics.iterates[-1].solution)


def test_nothing_to_solve():
    x, statistics = conjugate_gradient(lambda v: v, tf.zeros(4))
    assert (statistics.iterations, statistics.reason) == (0, "tolerance")
    np.testing.assert_array_equal(x, np.zeros(4))
    x, statistics = conjugate_gradient(lambda v: v, tf.ones(4), max_iterations=0)
    assert (statistics.iterations, statistics.reason) == (0, "iterations")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_iterations": -1}, "max_iterations must be an integer of at least 0; got -1"),
        ({"tolerance": -1}, "tolerance must be a finite number at least 0; got -1"),
        ({"progress": math.nan}, "progress must be a finite number at least 0; got nan"),
        ({"num_pairs": 0.5}, "num_pairs must be an integer of at least 0; got 0.5"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        conjugate_gradient(lambda v: v, tf.ones(2), **arguments)


def test_pairs_of_the_run_before_save_iterations():
    """The matrix is a Gauss-Newton one in kind: a few large eigenvalues, many small ones."""
    rng = np.random.default_rng(3)
    basis = np.linalg.qr(rng.normal(size=(300, 300)))[0]
    spectrum = 1e-3 + np.exp(-np.arange(300) / 12)
    a = (basis * spectrum) @ basis.T
    b = tf.constant(rng.normal(size=300))
    arguments = {"tolerance": 1e-4, "progress": 0}
    _, first = conjugate_gradient(product_of(a), b, num_pairs=64, **arguments)
    assert first.iterations >= 40
    needed = {}
    for pairs in (32, 64):
        _, run = conjugate_gradient(product_of(a), b, num_pairs=pairs, **arguments)
        preconditioner = LBFGSPreconditioner(pairs)
        preconditioner.observe(run.pairs, 0.0)
        preconditioner.prepare(0.0)
        other = b + 0.3 * tf.constant(rng.normal(size=300))
        _, again = conjugate_gradient(product_of(a), other, None, preconditioner, **arguments)
        needed[pairs] = again.iterations
    assert needed[32] <= 0.93 * first.iterations
    assert needed[64] <= 0.90 * first.iterations
