# SPDX-License-Identifier: Apache-2.0
"""Preconditioners: L-BFGS against the dense recursion, the damping, pairs, the diagonal."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from oracles import hessian_free as oracle

from tfx_largeout.hessian_free import (
    DiagonalPreconditioner,
    IdentityPreconditioner,
    LBFGSPreconditioner,
)
from tfx_largeout.hessian_free.conjugate_gradient import CurvaturePairs, conjugate_gradient

SIZE = 30


def positive_definite(seed=0):
    root = np.random.default_rng(seed).normal(size=(SIZE, SIZE))
    return root @ root.T / SIZE + 0.1 * np.eye(SIZE)


def random_pairs(count, matrix=None, seed=1):
    steps = np.random.default_rng(seed).normal(size=(count, SIZE))
    return steps, steps @ (positive_definite() if matrix is None else matrix)


def prepared(steps, differences, dtype=tf.float64, pairs_damping=0.0, damping=0.0):
    preconditioner = LBFGSPreconditioner(max(len(steps), 1))
    vectors = (list(tf.constant(part, dtype)) for part in (steps, differences))
    preconditioner.observe(CurvaturePairs.of(*vectors), pairs_damping)
    preconditioner.prepare(damping)
    return preconditioner


def matrix_of(preconditioner, dtype=tf.float64):
    return np.stack([preconditioner(column) for column in tf.eye(SIZE, dtype=dtype)], axis=1)


@pytest.mark.parametrize("count", [1, 2, 7, 16])
def test_lbfgs_is_the_dense_recursion(count):
    steps, differences = random_pairs(count)
    expected = oracle.lbfgs_matrix(steps, differences)
    found = matrix_of(prepared(steps, differences))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


def test_lbfgs_is_the_dense_recursion_in_float32():
    matrix = positive_definite()
    b = tf.constant(np.random.default_rng(2).normal(size=SIZE), tf.float32)
    product = tf.constant(matrix, tf.float32)
    _, run = conjugate_gradient(
        lambda v: tf.linalg.matvec(product, v), b, max_iterations=16, num_pairs=16
    )
    assert len(run.pairs) == 16
    preconditioner = LBFGSPreconditioner(16)
    preconditioner.observe(run.pairs, 0.0)
    preconditioner.prepare(0.0)
    vectors = (np.stack(part).astype(float) for part in (run.pairs.steps, run.pairs.differences))
    expected = oracle.lbfgs_matrix(*vectors)
    found = matrix_of(preconditioner, tf.float32)
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6 * np.abs(expected).max())


def test_lbfgs_is_symmetric_positive_definite_and_keeps_the_last_secant():
    steps, differences = random_pairs(9)
    preconditioner = prepared(steps, differences)
    matrix = matrix_of(preconditioner)
    np.testing.assert_allclose(matrix, matrix.T, atol=1e-10)
    assert np.linalg.eigvalsh(matrix).min() > 0
    np.testing.assert_allclose(preconditioner(tf.constant(differences[-1])), steps[-1], atol=1e-10)


def test_a_full_set_of_conjugate_pairs_is_the_inverse():
    matrix = positive_definite()
    eigenvectors = np.linalg.eigh(matrix)[1].T
    found = matrix_of(prepared(eigenvectors, eigenvectors @ matrix))
    np.testing.assert_allclose(found, np.linalg.inv(matrix), rtol=1e-8, atol=1e-8)


def test_pairs_follow_the_damping():
    matrix = positive_definite()
    steps, differences = random_pairs(6, matrix + 0.5 * np.eye(SIZE))
    found = matrix_of(prepared(steps, differences, pairs_damping=0.5, damping=0.2))
    expected = oracle.lbfgs_matrix(*random_pairs(6, matrix + 0.2 * np.eye(SIZE)))
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-8)


def test_pairs_without_curvature_are_left_out():
    steps, differences = random_pairs(5)
    bad_steps = np.concatenate([steps, np.eye(SIZE)[:3], np.zeros([1, SIZE])])
    bad_differences = np.concatenate(
        [differences, -np.eye(SIZE)[:1], np.eye(SIZE)[5:7], np.zeros([1, SIZE])]
    )
    found = matrix_of(prepared(bad_steps, bad_differences))
    np.testing.assert_allclose(found, oracle.lbfgs_matrix(steps, differences), atol=1e-9)
    only_bad = prepared(bad_steps[5:], bad_differences[5:])
    np.testing.assert_array_equal(matrix_of(only_bad), np.eye(SIZE))


def test_without_pairs_it_is_the_identity():
    preconditioner = LBFGSPreconditioner(4)
    preconditioner.prepare(1.0)
    preconditioner.observe(CurvaturePairs(4), 1.0)
    preconditioner.prepare(1.0)
    np.testing.assert_array_equal(matrix_of(preconditioner), np.eye(SIZE))
    np.testing.assert_array_equal(matrix_of(IdentityPreconditioner()), np.eye(SIZE))


def test_state_is_restored_exactly():
    steps, differences = random_pairs(7)
    preconditioner = prepared(steps, differences, tf.float32, 0.5, 0.7)
    other = LBFGSPreconditioner(7)
    other.restore({name: np.array(value) for name, value in preconditioner.state().items()})
    other.prepare(0.7)
    residual = tf.random.normal([SIZE])
    np.testing.assert_array_equal(other(residual), preconditioner(residual))
    other.restore({})
    np.testing.assert_array_equal(other(residual), residual)


def test_diagonal():
    squares = tf.random.uniform([SIZE])
    preconditioner = DiagonalPreconditioner()
    residual = tf.random.normal([SIZE])
    np.testing.assert_array_equal(preconditioner(residual), residual)
    preconditioner.prepare(0.3, lambda: squares)
    np.testing.assert_allclose(preconditioner(residual), residual / (squares + 0.3) ** 0.75, 1e-6)


@pytest.mark.parametrize(("capacity", "length"), [(4, 3), (4, 4), (4, 250), (16, 47), (1, 9)])
def test_pairs_are_spread_evenly_over_the_run(capacity, length):
    pairs = CurvaturePairs(capacity)
    for number in range(1, length + 1):
        if pairs.wants(number):
            pairs.add(number, tf.constant([float(number)]), tf.constant([-float(number)]))
    numbers = pairs.numbers
    assert len(pairs) == min(capacity, length)
    assert numbers == sorted(numbers)
    assert [float(s[0]) for s in pairs.steps] == numbers
    assert [-float(y[0]) for y in pairs.differences] == numbers
    gaps = set(np.diff(numbers))
    assert not gaps or max(gaps) <= 2 * min(gaps)
    assert length - numbers[-1] < 2 * max(gaps | {length})


def test_arguments_are_checked():
    with pytest.raises(ValueError, match="num_pairs must be an integer of at least 1; got 0"):
        LBFGSPreconditioner(0)
    with pytest.raises(ValueError, match="exponent must be a finite number above 0"):
        DiagonalPreconditioner(2)
    with pytest.raises(ValueError, match="capacity must be an integer of at least 1; got 'a'"):
        CurvaturePairs("a")
