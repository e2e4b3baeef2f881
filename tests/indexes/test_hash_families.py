# SPDX-License-Identifier: Apache-2.0
"""How often hash functions agree, and how often an index finds a class, against theory."""

from __future__ import annotations

import math

import numpy as np
import pytest
import tensorflow as tf
from oracles import hash_index as oracle

from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash, WTAHash
from tfx_largeout.indexes.hash_family import HashFamily
from tfx_largeout.ops.hashing.hash_codes import hash_codes

COSINES = [-1.0, -0.7, 0.0, 0.4, 0.8, 0.97, 1.0]


def values(family, vectors, count, seed):
    """Values of `count` functions, `[n, count]`."""
    vectors = np.asarray(vectors, np.float32)
    functions = family.functions(vectors.shape[1], count, np.random.default_rng(seed))
    return hash_codes(tf.constant(vectors), functions, count, 1).numpy()


def agreement(family, x, y, count, seed):
    """Returns whether each of `count` functions gives x and y the same value."""
    first, second = values(family, np.stack([x, y]), count, seed)
    return first == second


def mean_and_error(samples):
    """The mean of independent samples, and its standard error."""
    return np.mean(samples), np.std(samples, ddof=1) / np.sqrt(len(samples))


def pair_at(cosine, width, rng):
    """Two vectors of different lengths at an angle."""
    basis, _ = np.linalg.qr(rng.normal(size=(width, 2)))
    return 3 * basis[:, 0], 0.5 * (cosine * basis[:, 0] + np.sqrt(1 - cosine**2) * basis[:, 1])


def correlated_pair(correlation, width, rng):
    """Two vectors whose coordinates are normal and have a correlation."""
    x, noise = rng.normal(size=(2, width))
    return x, correlation * x + np.sqrt(1 - correlation**2) * noise


@pytest.mark.parametrize("cosine", COSINES)
def test_sim_hash_agrees_as_the_angle_says(cosine):
    count = 40_000
    x, y = pair_at(cosine, 12, np.random.default_rng(1))
    p = 1 - np.arccos(cosine) / np.pi
    rate = agreement(SimHash(), x, y, count, seed=2).mean()
    # At angles 0 and pi rounding may decide about products that are nearly 0.
    assert abs(rate - p) <= 4 * np.sqrt(p * (1 - p) / count) + 1e-4
    np.testing.assert_allclose(SimHash().collision_probability(tf.constant(cosine)), p, atol=1e-6)


def test_collision_probability_of_cosines_that_are_rounded():
    got = SimHash().collision_probability(tf.constant([[1.0001, -1.0001]]))
    np.testing.assert_allclose(got, [[1, 0]], atol=1e-6)


@pytest.mark.parametrize("window", [2, 5, 8])
@pytest.mark.parametrize("family", [WTAHash, DWTAHash])
def test_winners_of_independent_vectors_agree_by_chance(family, window):
    """Each of `window` positions wins equally often: the probability is 1 / window."""
    vectors = np.random.default_rng(3).random((2, 3000, 40))
    first, second = (values(family(window), half, 30, seed=4) for half in vectors)
    rate, error = mean_and_error((first == second).mean(axis=1))  # pairs are independent
    assert abs(rate - 1 / window) <= 4 * error
    assert error < 0.01


def exact_agreement(x, y, window):
    """The probability that x and y have the same winner in a window: a sum over who it is.

    Coordinate i wins in both if all others of the window are among the n_i that are below it in
    both; so it is sum_i C(n_i, window - 1) / C(D, window).
    """
    below = ((x < x[:, np.newaxis]) & (y < y[:, np.newaxis])).sum(axis=1)
    return sum(math.comb(int(n), window - 1) for n in below) / math.comb(len(x), window)


def test_the_oracle_agrees_as_often_as_is_exact():
    x, y = correlated_pair(0.6, 30, np.random.default_rng(5))
    p, count, rng = exact_agreement(x, y, 3), 40_000, np.random.default_rng(20)
    elements = rng.permuted(np.tile(np.arange(30), (count, 1)), axis=1)[:, :3]
    first, second = oracle.winners(np.stack([x, y]), elements)
    assert abs((first == second).mean() - p) <= 4 * np.sqrt(p * (1 - p) / count)


def rate_of(family, x, y, count, seed):
    """The rate of agreement and its standard error: permutations are independent, bins are not."""
    agree = agreement(family, x, y, count, seed)
    bins = len(x) // family.window if isinstance(family, DWTAHash) else 1
    return mean_and_error(agree.reshape(-1, bins).mean(axis=1))


@pytest.mark.parametrize("window", [2, 4, 8])
@pytest.mark.parametrize("family", [WTAHash, DWTAHash])
def test_winners_of_correlated_vectors_agree_as_is_exact(family, window):
    """At each correlation; and more often the higher it is."""
    rates, errors = [], []
    for correlation in (0.0, 0.6, 0.9, 0.99):
        x, y = correlated_pair(correlation, 256, np.random.default_rng(5))
        count = 32_768  # whole permutations of 256 / window bins
        rate, error = rate_of(family(window), x, y, count, seed=6)
        assert abs(rate - exact_agreement(x, y, window)) <= 4 * error
        rates.append(rate)
        errors.append(error)
    assert np.all(np.diff(rates) > 4 * np.hypot(errors[1:], errors[:-1]))


def test_dwta_agrees_as_often_as_wta_where_no_bin_is_empty():
    for correlation in (0.3, 0.8, 0.95):
        x, y = correlated_pair(correlation, 64, np.random.default_rng(8))
        wta, of_wta = rate_of(WTAHash(4), x, y, 32_000, seed=9)
        dwta, of_dwta = rate_of(DWTAHash(4), x, y, 32_000, seed=10)
        assert abs(wta - dwta) <= 4 * np.hypot(of_wta, of_dwta)


def test_dwta_of_sparse_vectors_agrees_as_simulated():
    """With most bins empty: the oracle fills them, on other permutations."""
    rng = np.random.default_rng(11)
    x, y = correlated_pair(0.9, 60, rng)
    is_zero = rng.random(60) < 0.85
    x, y = np.where(is_zero, 0, x), np.where(is_zero, 0, y)
    groups, bins = 1500, 15
    rate, error = rate_of(DWTAHash(4), x, y, groups * bins, seed=12)
    elements = rng.permuted(np.tile(np.arange(60), (groups, 1)), axis=1).reshape(-1, 4)
    first, second = oracle.winner_values(np.stack([x, y]), elements, bins)
    expected, of_simulation = mean_and_error((first == second).reshape(groups, bins).mean(axis=1))
    assert abs(rate - expected) <= 4 * np.hypot(error, of_simulation)
    # Without filling, they would agree if a bin is empty.
    first, second = oracle.winners(np.stack([x, y]), elements)
    assert expected + 8 * error < (first == second).mean()


def test_the_scale_of_vectors_does_not_matter():
    x = np.random.default_rng(13).normal(size=40)
    for family in (SimHash(), WTAHash(4), DWTAHash(4)):
        assert agreement(family, x, 8 * x, 2000, seed=14).all()


@pytest.mark.parametrize(("window", "width"), [(8, 128), (3, 20), (5, 5), (16, 30)])
def test_dwta_cuts_permutations_into_bins(window, width):
    functions = DWTAHash(window).functions(width, 37, np.random.default_rng(0))
    bins = width // window
    assert functions.bins == bins
    assert 37 <= len(functions.elements) < 37 + bins
    for group in functions.elements.reshape(-1, bins * window):
        assert len(set(group)) == bins * window
        assert set(group) <= set(range(width))
    assert bins * window == width or len(set(functions.elements[:bins].flat)) < width


def test_wta_compares_different_coordinates():
    functions = WTAHash(6).functions(10, 200, np.random.default_rng(0))
    assert functions.elements.shape == (200, 6)
    assert all(len(set(row)) == 6 for row in functions.elements)
    counts = np.bincount(functions.elements.flat, minlength=10)
    assert counts.min() > 60  # each coordinate in 120 windows on average


INDEXES, HASHES, TABLES = 250, 3, 6
WIDTH = 6


@pytest.fixture(scope="module")
def frequencies():
    """How often each class is found, over indexes with different seeds."""
    kernel, found = tf.Variable(np.zeros((len(COSINES), WIDTH), np.float32)), np.zeros(len(COSINES))
    rng = np.random.default_rng(15)
    query = rng.normal(size=WIDTH)
    query /= np.linalg.norm(query)
    rows = []
    for cosine in COSINES:
        other = rng.normal(size=WIDTH)
        other -= other @ query * query
        rows.append(cosine * query + np.sqrt(1 - cosine**2) * other / np.linalg.norm(other))
    kernel.assign(rows)
    queries = tf.constant(query[np.newaxis, np.newaxis], tf.float32)
    for seed in range(INDEXES):
        index = HashIndex(SimHash(), HASHES, TABLES, seed=seed)
        index.rebuild(kernel)
        ids = index.candidates(
            queries, len(COSINES), tf.constant([seed, 0]), per_example=True
        ).numpy()
        found[ids[ids >= 0]] += 1
    return found / INDEXES


@pytest.mark.thorough
def test_a_class_is_found_as_theorem_1_says(frequencies):
    collision = 1 - np.arccos(COSINES) / np.pi
    p = 1 - (1 - collision**HASHES) ** TABLES
    assert np.all(np.abs(frequencies - p) <= 4 * np.sqrt(p * (1 - p) / INDEXES) + 1e-9)
    assert 0.1 < p[2] < 0.6  # there is something to see


@pytest.mark.thorough
def test_nearer_classes_are_found_more_often_as_theorem_2_says(frequencies):
    assert np.all(np.diff(frequencies) >= 0)
    assert np.all(np.diff(frequencies[1:5]) > 0)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: WTAHash(1), "window must be an integer of at least 2; got 1"),
        (lambda: DWTAHash(0), "window must be an integer of at least 2; got 0"),
        (lambda: DWTAHash(2.5), "window must be an integer .*; got 2.5"),
        (lambda: HashIndex(hashes_per_table=0), "hashes_per_table must be .* at least 1; got 0"),
        (lambda: HashIndex(hashes_per_table=1.5), "hashes_per_table must be an int.* got 1.5"),
        (lambda: HashIndex(num_tables=0), "num_tables must be an integer of at least 1; got 0"),
        (lambda: HashIndex(num_tables=-3), "num_tables must be .*; got -3"),
        (lambda: HashIndex(first_period=0.5), "first_period must be .* at least 1.*; got 0.5"),
        (lambda: HashIndex(growth=0.99), "growth must be a finite number at least 1.*; got 0.99"),
        (lambda: HashIndex(growth=float("inf")), "growth must be a finite number .*; got inf"),
        (lambda: HashIndex(growth=float("nan")), "growth must be a finite number .*; got nan"),
        (lambda: HashIndex(max_drift=0), "max_drift must be a finite number above 0; got 0"),
        (lambda: HashIndex(max_per_bucket=0), "max_per_bucket must be .* at least 1; got 0"),
        (lambda: HashIndex(seed=-1), "seed must be an integer of at least 0; got -1"),
        (
            lambda: HashIndex(SimHash(), hashes_per_table=25),
            r"hashes_per_table must give at most 2\^24 buckets; got 25, with 1 \* 2\^25",
        ),
        (
            lambda: HashIndex(WTAHash(16), hashes_per_table=7),
            r"hashes_per_table must give at most 2\^24 buckets; got 7, with 1 \* 16\^7",
        ),
    ],
)
def test_bad_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_as_many_buckets_as_are_allowed():
    assert HashIndex(WTAHash(8), hashes_per_table=8).num_buckets == 2**24


@pytest.mark.parametrize("family", [SimHash, "SimHash", 3])
def test_a_family_of_the_wrong_type(family):
    with pytest.raises(TypeError, match=r"family must be a HashFamily; got .*(SimHash|3)"):
        HashIndex(family)


@pytest.mark.parametrize("family", [WTAHash(8), DWTAHash(8)])
def test_a_window_wider_than_vectors(family):
    with pytest.raises(ValueError, match="window must be at most D = 7; got 8"):
        HashIndex(family, 2, 3).rebuild(tf.Variable(tf.ones([5, 7])))


@pytest.mark.parametrize("family", [WTAHash(4), DWTAHash(4)])
def test_families_without_a_formula_say_so(family):
    with pytest.raises(NotImplementedError, match=f"{type(family).__name__} has no closed form"):
        family.collision_probability(tf.constant(0.5))


def test_a_family_of_ones_own():
    class Constant(HashFamily):
        """One function: the first coordinate against the second."""

        num_values = 2

        def functions(self, width, count, rng):
            return WTAHash(2).functions(2, count, rng)._replace(bins=1)

    index = HashIndex(Constant(), 1, 2)
    index.rebuild(tf.Variable([[1.0, 2, 9], [2, 1, 9], [5, 6, -9]]))
    codes = index.codes(tf.constant([[3.0, 4, 5]])).numpy()
    bucket = [
        index.entries.numpy()[t, slice(*index.starts.numpy()[t, codes[0, t] : codes[0, t] + 2])]
        for t in range(2)
    ]
    np.testing.assert_array_equal(bucket, [[0, 2]] * 2)
