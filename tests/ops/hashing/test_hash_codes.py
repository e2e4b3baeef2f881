# SPDX-License-Identifier: Apache-2.0
"""Codes of vectors match the definition, in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.hash_index_cases import (
    IMPLEMENTATIONS,
    KINDS,
    expected_codes,
    functions_of,
    random_vectors,
    use,
)
from oracles import hash_index as oracle

from tfx_largeout.ops.hashing.hash_codes import HashFunctions, hash_codes

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
every_kind = pytest.mark.parametrize("kind", KINDS)

SHAPES = [  # D, window, n, L, K
    (8, 8, 65, 3, 2),
    (8, 3, 64, 4, 3),
    (30, 16, 63, 5, 2),
    (30, 2, 1, 7, 11),
    (127, 8, 150, 13, 6),
    (128, 16, 65, 6, 5),
    (128, 3, 0, 2, 4),
    (252, 2, 64, 10, 24),
    (252, 16, 150, 4, 6),
]


def tensors(functions):
    elements, planes, bins = functions
    return HashFunctions(tf.constant(elements), tf.constant(planes), bins)


@every_implementation
@every_kind
@pytest.mark.parametrize("shape", SHAPES)
def test_codes_are_those_of_the_definition(name, kind, shape, monkeypatch):
    implementation = use(name, monkeypatch)
    width, window, n, num_tables, hashes = shape
    rng = np.random.default_rng(width + n)
    functions = functions_of(kind, rng, width, window, num_tables * hashes)
    vectors = random_vectors(rng, n, width)
    codes = hash_codes(
        tf.constant(vectors), functions, num_tables, hashes, implementation=implementation
    )
    assert codes.dtype == tf.int32
    np.testing.assert_array_equal(codes, expected_codes(vectors, functions, num_tables, hashes))


@every_implementation
@every_kind
@pytest.mark.parametrize("seed", range(5))
def test_random_shapes(name, kind, seed, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(seed)
    width = int(rng.integers(2, 90))
    window = int(rng.integers(2, min(width, 9) + 1))
    n, num_tables, hashes = (int(rng.integers(1, end)) for end in (200, 9, 7))
    functions = functions_of(kind, rng, width, window, num_tables * hashes)
    vectors = random_vectors(rng, n, width)
    codes = hash_codes(
        tf.constant(vectors), functions, num_tables, hashes, implementation=implementation
    )
    np.testing.assert_array_equal(codes, expected_codes(vectors, functions, num_tables, hashes))


@every_implementation
def test_signs_of_rounded_products(name, monkeypatch):
    """Products that are near 0 may fall on either side."""
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(150, 127)).astype(np.float32)
    planes = rng.normal(size=(60, 127)).astype(np.float32)
    codes = hash_codes(
        tf.constant(vectors), HashFunctions.by_planes(planes), 60, 1, implementation=implementation
    )
    clear = np.abs(oracle.products(vectors, planes)) > 1e-3
    assert clear.mean() > 0.99
    np.testing.assert_array_equal(codes.numpy()[clear], oracle.sign_values(vectors, planes)[clear])


@every_implementation
def test_the_first_of_equal_coordinates_wins(name, monkeypatch):
    implementation = use(name, monkeypatch)
    functions = HashFunctions.by_winner(np.array([[3, 1, 0], [2, 3, 1]]))
    vectors = tf.constant([[0.0, 2, 1, 2], [-1, -1, -1, -1], [-0.0, 0, -0.0, -5], [0, 0, 0, 0]])
    codes = hash_codes(vectors, functions, 2, 1, implementation=implementation)
    np.testing.assert_array_equal(codes, [[0, 1], [0, 0], [1, 0], [-1, -1]])


@every_implementation
def test_an_empty_bin_takes_the_nearest_value_in_its_circle(name, monkeypatch):
    implementation = use(name, monkeypatch)
    functions = HashFunctions.by_winner(np.arange(24).reshape(12, 2), bins=6)
    vectors = np.zeros((5, 24), np.float32)
    vectors[0, [1, 6]] = 1  # bins 0 and 3 have 1 and 0; bins 1, 2, 4, 5 are empty
    vectors[1, [4, 9]] = 1  # bins 2 and 4: bin 3 is as near to both, and so is bin 0
    vectors[2, 11] = -1  # a bin with one negative number is not empty: 0 is greater
    vectors[3, 23] = 1  # no bin of the first permutation has anything
    codes = hash_codes(tf.constant(vectors), functions, 12, 1, implementation=implementation)
    nothing = [-1] * 6
    expected = [
        [1, 1, 0, 0, 0, 1, *nothing],
        [0, 0, 0, 1, 1, 1, *nothing],
        [0] * 6 + nothing,
        nothing + [1] * 6,
        nothing * 2,
    ]
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(expected_codes(vectors, functions, 12, 1), expected)


@every_implementation
def test_a_table_with_an_empty_permutation_has_no_code(name, monkeypatch):
    """With K = 5 functions per table, some use one permutation, some the next."""
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(1)
    functions = functions_of("dwta", rng, 7, 2, 20)  # 3 bins; one coordinate is in none
    vectors = np.eye(7, dtype=np.float32)
    codes = hash_codes(tf.constant(vectors), functions, 4, 5, implementation=implementation)
    expected = expected_codes(vectors, functions, 4, 5)
    assert 0 < (expected < 0).sum() < expected.size
    np.testing.assert_array_equal(codes, expected)


@every_implementation
@every_kind
def test_in_one_graph_of_unknown_shapes(name, kind, monkeypatch):
    implementation = use(name, monkeypatch)
    rng = np.random.default_rng(2)
    functions = functions_of(kind, rng, 20, 4, 12)
    call = tf.function(
        lambda vectors: hash_codes(
            vectors, tensors(functions), 4, 3, implementation=implementation
        ),
        input_signature=[tf.TensorSpec([None, 20])],
    )
    for n in (3, 0, 70):
        vectors = random_vectors(rng, n, 20)
        np.testing.assert_array_equal(call(vectors), expected_codes(vectors, functions, 4, 3))


@every_implementation
@every_kind
@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_vectors_must_be_finite(name, kind, value, monkeypatch):
    implementation = use(name, monkeypatch)
    functions = functions_of(kind, np.random.default_rng(0), 9, 3, 4)
    vectors = np.ones((100, 9), np.float32)
    vectors[77, 8] = value
    message = r"(?s)vectors must be finite; got.*77"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        hash_codes(tf.constant(vectors), functions, 2, 2, implementation=implementation)


ELEMENTS, PLANES = np.array([[0, 1], [2, 3], [1, 3], [2, 0]]), np.ones((4, 4), np.float32)


@pytest.mark.parametrize(
    ("functions", "arguments", "message"),
    [
        (HashFunctions.by_winner(ELEMENTS), (5, 1), r"num_tables = 5 hashes.*got 4"),
        (HashFunctions.by_winner(ELEMENTS, bins=3), (2, 2), "whole 3 bins; got 4"),
        (HashFunctions.by_winner(ELEMENTS + 1), (2, 2), r"elements must be in \[0, 4\); got 4"),
        (HashFunctions.by_winner(ELEMENTS - 1), (2, 2), r"elements must be in \[0, 4\); got -1"),
        (HashFunctions.by_winner(ELEMENTS[:, :1]), (2, 2), r"window of at least 2; got.*\[4,1\]"),
        (HashFunctions.by_planes(PLANES[:, :3]), (2, 2), r"planes must be.*D = 4.*got.*\[4,3\]"),
        (HashFunctions(ELEMENTS.astype("int32"), PLANES, 1), (2, 2), "one of elements and planes"),
        (HashFunctions.by_winner(np.tile(ELEMENTS, (7, 1))), (1, 25), r"at most 2\^24.*got 2\^25"),
    ],
)
@pytest.mark.cpu
def test_functions_that_disagree_are_refused(functions, arguments, message, monkeypatch):
    use("baseline", monkeypatch)
    monkeypatch.delenv("TFX_LARGEOUT_ISA")
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        hash_codes(tf.ones([3, 4]), functions, *arguments, implementation="op")


def test_bad_arguments_of_the_wrapper():
    functions = HashFunctions.by_winner(ELEMENTS)
    with pytest.raises(TypeError, match="vectors must be float32; got float64"):
        hash_codes(tf.ones([3, 4], tf.float64), functions, 2, 2)
    with pytest.raises(ValueError, match=r"implementation must be one of .* got 'fast'"):
        hash_codes(tf.ones([3, 4]), functions, 2, 2, implementation="fast")
