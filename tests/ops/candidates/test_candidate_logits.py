# SPDX-License-Identifier: Apache-2.0
"""Logits of labels and candidates equal the dense logits, in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.candidate_cases import IMPLEMENTATIONS, random_case, use
from oracles import candidate_update as oracle
from variants import thorough

from tfx_largeout.ops.candidates.candidate_logits import candidate_logits

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
own_or_shared = pytest.mark.parametrize("own", [False, True], ids=["shared", "own"])

SHAPES = [  # C, D, N, K, S
    (700, 64, 128, 1, 1000),
    (5000, 300, 33, 3, 257),
    (90, 123, 1, 40, 31),
    (50, 8, 300, 2, 70),
    (20, 5, 0, 1, 7),
    (20, 5, 3, 0, 0),
]


def variable(values, dtype="float32"):
    return None if values is None else tf.Variable(tf.cast(tf.constant(values), dtype))


def compute(kernel, bias, batch, dtype="float32", **arguments):
    hidden, labels, candidates = batch
    hidden = tf.constant(hidden, "float64" if dtype == "float64" else "float32")
    ids = tf.constant(labels), tf.constant(candidates)
    return candidate_logits(kernel, bias, hidden, *ids, **arguments)


def check(own, expected, tolerance):
    for got, want in zip(own[:2], expected[:2], strict=True):
        np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)
    np.testing.assert_array_equal(own.hits, expected[2])


@every_implementation
@own_or_shared
@pytest.mark.parametrize("seed", [*range(4), *thorough(*range(4, 16))])
def test_logits_are_those_of_all_classes(name, own, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed, own, steps=1)
    (batch, _), kernel, bias = case.batches[0], variable(case.kernel), variable(case.bias)
    result = compute(kernel, bias, batch, implementation=implementation)
    check(result, oracle.logits(case.kernel, case.bias, *batch), 5e-6)


@every_implementation
@own_or_shared
@pytest.mark.parametrize("seed", [0, *thorough(1)])
@pytest.mark.parametrize("shape", SHAPES)
def test_awkward_shapes(name, own, shape, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed, own, steps=1, shape=shape)
    (batch, _), kernel, bias = case.batches[0], variable(case.kernel), variable(case.bias)
    result = compute(kernel, bias, batch, implementation=implementation)
    check(result, oracle.logits(case.kernel, case.bias, *batch), 5e-6)


@every_implementation
@own_or_shared
@pytest.mark.parametrize("seed", [0, *thorough(1, 2, 3)])
def test_bfloat16_weights_are_computed_with_in_float32(name, own, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    case = random_case(seed, own, steps=1, shape=(60, 37, 20, 2, 50))
    batch, _ = case.batches[0]
    kernel, bias = variable(case.kernel, "bfloat16"), variable(case.bias, "bfloat16")
    rounded = [None if x is None else np.array(tf.cast(x, "float64")) for x in (kernel, bias)]
    result = compute(kernel, bias, batch, implementation=implementation)
    assert result.true_logits.dtype == result.candidate_logits.dtype == tf.float32
    check(result, oracle.logits(*rounded, *batch), 5e-6)


@own_or_shared
def test_float64(own):
    case = random_case(2, own, steps=1)
    batch, _ = case.batches[0]
    kernel, bias = variable(case.kernel, "float64"), variable(case.bias, "float64")
    result = compute(kernel, bias, batch, dtype="float64")
    assert result.true_logits.dtype == result.candidate_logits.dtype == tf.float64
    check(result, oracle.logits(case.kernel, case.bias, *batch), 1e-13)


@every_implementation
@own_or_shared
def test_in_one_graph_of_unknown_shapes(name, own, monkeypatch):
    implementation = use(name, monkeypatch)
    kernel, bias = variable(np.ones((50, 6))), variable(np.ones(50))
    ids = tf.TensorSpec([None, None], tf.int64)
    candidates = ids if own else tf.TensorSpec([None], tf.int64)
    call = tf.function(
        lambda *batch: candidate_logits(kernel, bias, *batch, implementation=implementation),
        input_signature=[tf.TensorSpec([None, 6]), ids, candidates],
    )
    for seed, shape in enumerate([(50, 6, 3, 2, 40), (50, 6, 9, 0, 5), (50, 6, 1, 3, 0)]):
        case = random_case(2 * seed, own, steps=1, shape=shape)
        kernel.assign(case.kernel)
        bias.assign(case.bias)
        batch, _ = case.batches[0]
        result = call(tf.constant(batch[0], tf.float32), *batch[1:])
        check(result, oracle.logits(case.kernel, case.bias, *batch), 5e-6)


@every_implementation
def test_a_row_that_no_one_asked_for_does_no_harm(name, monkeypatch):
    """Padding is not the row of class 0, with any content of this row."""
    implementation = use(name, monkeypatch)
    kernel = variable(np.array([[np.nan, np.inf], [1.0, 2.0]]))
    for candidates in (np.array([-1, 1]), np.array([[-1, 1]])):
        batch = np.ones((1, 2)), np.array([[-1, 1]]), candidates
        result = compute(kernel, None, batch, implementation=implementation)
        np.testing.assert_array_equal(result.true_logits, [[0, 3]])
        np.testing.assert_array_equal(result.candidate_logits, [[0, 3]])
        np.testing.assert_array_equal(result.hits, [[False, True]])


@every_implementation
@own_or_shared
@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        (0, float("nan"), "hidden must be finite"),
        (0, float("inf"), "hidden must be finite"),
        (1, 9, r"labels must be class ids in \[-1, 9\).*got.*9"),
        (1, -2, r"labels must be class ids in \[-1, 9\).*got.*-2"),
        (2, 9, r"candidates must be class ids in \[-1, 9\).*got.*9"),
        (2, -2, r"candidates must be class ids in \[-1, 9\).*got.*-2"),
    ],
)
def test_bad_values_are_refused(name, own, argument, value, message, monkeypatch):
    implementation = use(name, monkeypatch)
    batch = [np.ones((3, 4)), np.ones((3, 2), int), np.ones((3, 5) if own else 5, int)]
    batch[argument].flat[-2] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        compute(variable(np.ones((9, 4))), None, batch, implementation=implementation)


@every_implementation
@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 5), (3, 2), (7,)), "hidden must be .N, D. with the D of kernel"),
        (((3, 4), (2, 2), (7,)), "labels must be .N, K. with the N of hidden"),
        (((3, 4), (3, 2), (2, 7)), "candidates must be .S., or .N, S. with the N of hidden"),
    ],
)
def test_shapes_that_disagree_are_refused(name, shapes, message, monkeypatch):
    implementation = use(name, monkeypatch)
    batch = [np.ones(shape, dtype) for shape, dtype in zip(shapes, (float, int, int), strict=True)]
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        compute(variable(np.ones((9, 4))), None, batch, implementation=implementation)


def test_bad_arguments_of_the_wrapper():
    kernel, bias = variable(np.ones((9, 4))), variable(np.ones(8))
    hidden, labels, candidates = tf.ones([3, 4]), tf.ones([3, 2], tf.int64), tf.ones([5], tf.int64)
    with pytest.raises(TypeError, match="hidden must be float32; got float64"):
        candidate_logits(kernel, None, tf.cast(hidden, tf.float64), labels, candidates)
    with pytest.raises(TypeError, match="labels must be int64; got int32"):
        candidate_logits(kernel, None, hidden, tf.cast(labels, tf.int32), candidates)
    with pytest.raises(ValueError, match=r"bias must be \[C\] with the C of kernel, 9; got .*8"):
        candidate_logits(kernel, bias, hidden, labels, candidates)
    with pytest.raises(ValueError, match="candidates must have rank 1 or 2; got"):
        candidate_logits(kernel, None, hidden, labels, candidates[tf.newaxis, tf.newaxis])
    with pytest.raises(TypeError, match="weights must be float32, bfloat16 or float64; got"):
        candidate_logits(tf.Variable(tf.ones([9, 4], tf.float16)), None, hidden, labels, candidates)
