# SPDX-License-Identifier: Apache-2.0
"""choose_hash_index: the target is met on other queries, by the cheapest tables, and repeatably."""

from __future__ import annotations

import logging

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash, choose_hash_index
from tfx_largeout.indexes.choose_hash_index import Found, TableTrials, _grid, _Target, found_by

CLASSES, WIDTH, QUERIES = 3000, 16, 200


def problem(classes=CLASSES, queries=QUERIES, seed=0):
    """Rows of many lengths, biases, and queries that are each near a row."""
    rng = np.random.default_rng(seed)
    kernel = rng.normal(size=(classes, WIDTH)) * rng.gamma(2, 0.5, size=(classes, 1))
    bias = rng.normal(size=classes)
    near = kernel[rng.integers(0, classes, queries)]
    hidden = near + 0.5 * rng.normal(size=near.shape)
    return [array.astype(np.float32) for array in (kernel, bias, hidden)]


def best_of(kernel, bias, hidden, k):
    return np.argsort(-(hidden.astype(float) @ kernel.T + bias), axis=1)[:, :k]


def inner_product(**options):
    return HashIndex(SimHash(), similarity="inner_product", **options)


def by_angle(**options):
    return HashIndex(DWTAHash(4), **options)


def recall_of(index, kernel, bias, hidden, num_found, k):
    """Returns the recall with `num_found` candidates per query, found as by `TopK`."""
    index.rebuild(tf.Variable(kernel), tf.Variable(bias))
    seed = tf.constant([5, 6])
    found = index.candidates(hidden[:, np.newaxis], num_found, seed, per_example=True).numpy()
    best = best_of(kernel, bias, hidden, k)
    return np.mean([np.isin(b, f).mean() for b, f in zip(best, found, strict=True)])


@pytest.mark.parametrize("make", [inner_product, by_angle])
@pytest.mark.parametrize("target", [{"recall": 0.6}, {"recall": 0.9}, {"num_found": 100}])
def test_the_target_is_met_on_held_out_queries(make, target):
    kernel, bias, hidden = problem(queries=2 * QUERIES)
    if make is by_angle:
        bias = 0 * bias
        kernel /= np.linalg.norm(kernel, axis=1, keepdims=True)
    seen, held_out = np.split(hidden, 2)
    index, found = choose_hash_index(make(), kernel, bias, seen, k=5, **target)
    assert 5 < found["num_found"] < CLASSES / 4
    recall = recall_of(index, kernel, bias, held_out, found["num_found"], 5)
    assert recall >= target.get("recall", 0.4)
    assert found["num_found"] == target.get("num_found", found["num_found"])
    assert found["recall"] == pytest.approx(recall, abs=0.06)


@pytest.mark.parametrize("make", [inner_product, by_angle])
def test_with_all_rows_the_trial_is_what_tables_find(make):
    kernel, bias, hidden = problem(1000, 50)
    kernel[::7] = 0  # in no bucket by angle
    hidden[3] = 0  # finds nothing
    best = best_of(kernel, bias, hidden, 5)
    like = make(max_per_bucket=1000)
    weights = tf.Variable(kernel), tf.Variable(bias)
    trials = TableTrials(like, *weights, tf.constant(hidden), best, 4 * 12)
    for hashes in (1, 3, 4):
        for num_tables, expected in trials.found(hashes, [2, 7, 12]).items():
            index = make(hashes_per_table=hashes, num_tables=num_tables, max_per_bucket=1000)
            index.rebuild(*weights)
            found = found_by(index, tf.constant(hidden), best)
            np.testing.assert_allclose(expected.recall(1000), found.recall(1000), atol=1e-6)


@pytest.mark.parametrize("make", [inner_product, by_angle])
@pytest.mark.parametrize("num_found", [10, 50, 200])
def test_a_trial_knows_how_many_candidates_it_takes(make, num_found):
    kernel, bias, hidden = problem(1000, 60)
    best = best_of(kernel, bias, hidden, 5)
    index = make(hashes_per_table=3, num_tables=12)
    weights = tf.Variable(kernel), tf.Variable(bias)
    index.rebuild(*weights)
    trials = TableTrials(index, *weights, tf.constant(hidden), best, 36)
    expected = trials.found(3, [12])[12].recall(num_found).mean()
    recalls = []  # in other orders of the tables; the trial uses one
    for draw in range(40):
        seed = tf.constant([3, draw])
        ids = index.candidates(hidden[:, np.newaxis], num_found, seed, True).numpy()
        recalls.append(np.mean([np.isin(b, i).mean() for b, i in zip(best, ids, strict=True)]))
    assert abs(expected - np.mean(recalls)) < 3 * np.std(recalls)
    assert np.std(recalls) < 0.06


def test_found_by_gives_the_places_of_the_best():
    kernel, bias, hidden = problem(500, 40)
    index = inner_product(hashes_per_table=3, num_tables=5, max_per_bucket=20)
    index.rebuild(tf.Variable(kernel), tf.Variable(bias))
    found = found_by(index, tf.constant(hidden), best_of(kernel, bias, hidden, 5))
    assert 0.1 < found.recall(20).mean() < found.recall(100).mean() < 1
    ids = index.candidates(hidden[:32, np.newaxis], 20, tf.constant([0, 0], tf.int64), True)
    best = best_of(kernel, bias, hidden[:32], 5)
    shares = [np.isin(b, i).mean() for b, i in zip(best, ids.numpy(), strict=True)]
    np.testing.assert_allclose(found.recall(20)[:32], shares)


def test_a_trial_knows_how_much_of_a_bucket_is_read():
    kernel, bias, hidden = problem(1000, 40)
    best = best_of(kernel, bias, hidden, 5)
    index = inner_product(hashes_per_table=2, num_tables=3, max_per_bucket=20)
    weights = tf.Variable(kernel), tf.Variable(bias)
    index.rebuild(*weights)
    expected = TableTrials(index, *weights, tf.constant(hidden), best, 6).found(2, [3])[3]
    queries, draws, recall = tf.constant(hidden[:, np.newaxis]), 300, []
    for draw in range(draws):
        ids = index.candidates(queries, 1000, tf.constant([7, draw]), True).numpy()
        recall.append(np.mean([np.isin(b, f).mean() for b, f in zip(best, ids, strict=True)]))
    difference = np.mean(recall) - expected.recall(1000).mean()
    assert abs(difference) < 4 * np.std(recall) / np.sqrt(draws)


@pytest.mark.parametrize("target", [{"recall": 0.8}, {"num_found": 60}])
def test_hardly_any_other_is_better(target):
    kernel, bias, hidden = problem(1000, 64)
    grid = {"hashes_per_table": [2, 3, 4, 5, 6], "num_tables": [3, 6, 12]}
    _, chosen = choose_hash_index(inner_product(), kernel, bias, hidden, k=5, **target, **grid)
    best = best_of(kernel, bias, hidden, 5)
    recalls = []
    for hashes in grid["hashes_per_table"]:
        for num_tables in grid["num_tables"]:
            index = inner_product(hashes_per_table=hashes, num_tables=num_tables)
            index.rebuild(tf.Variable(kernel), tf.Variable(bias))
            found = found_by(index, tf.constant(hidden), best)
            recalls.append(found.recall(chosen["num_found"]).mean())
    assert np.ptp(recalls) > 0.3
    assert chosen["recall"] in recalls
    assert chosen["recall"] > max(recalls) - 0.05


@pytest.mark.thorough
def test_it_is_repeatable_and_changes_nothing(caplog):
    kernel, bias, hidden = problem()
    weights = keras.Variable(kernel), keras.Variable(bias)
    like = inner_product(seed=3, first_period=77, name="tables")

    def choose(like=like):
        return choose_hash_index(like, *weights, hidden, recall=0.7)

    keras.utils.set_random_seed(4)
    numbers = np.random.get_state()[1].copy()
    with caplog.at_level(logging.INFO, "tfx_largeout"):
        index, statistics = choose()
    assert f"{statistics}" in caplog.text
    np.testing.assert_array_equal(np.random.get_state()[1], numbers)
    drawn = tf.random.uniform([]).numpy()
    keras.utils.set_random_seed(4)
    assert tf.random.uniform([]).numpy() == drawn
    other, again = choose()
    assert again == statistics and other.get_config() == index.get_config()
    assert not (like.built or index.built)
    config = {key: statistics[key] for key in ("hashes_per_table", "num_tables")}
    assert index.get_config() == {**like.get_config(), **config}
    for weight, value in zip(weights, (kernel, bias), strict=True):
        np.testing.assert_array_equal(weight.numpy(), value)
    like.rebuild(*weights)
    tables = [weight.numpy() for weight in like.weights]
    assert choose()[1] == statistics  # of a built index
    for weight, table in zip(like.weights, tables, strict=True):
        np.testing.assert_array_equal(weight.numpy(), table)


def test_the_choice_is_saved_with_a_model(tmp_path):
    kernel, bias, hidden = problem(300)
    index, statistics = choose_hash_index(inner_product(), kernel, bias, hidden, recall=0.5)
    sampler = tlo.samplers.LSHEmbedding(20, tlo.samplers.Uniform(5))
    head = tlo.heads.SampledHead(300, sampler, tlo.optimizers.RowSGD(0.1), index=index)
    model = keras.Sequential([keras.Input((WIDTH,)), head])
    model.compile("sgd", tlo.losses.ComplementarySum())
    model.fit(hidden, np.arange(QUERIES), verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").layers[-1].index
    assert loaded.hashes_per_table == statistics["hashes_per_table"]
    assert loaded.num_tables == statistics["num_tables"]


ARRAYS = problem(200, 20)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"like": SimHash()}, TypeError, "like must be a HashIndex; got <"),
        ({"recall": None}, ValueError, "either recall or num_found must be given; got"),
        ({"num_found": 5}, ValueError, "either recall or num_found must be given; got"),
        ({"recall": 0}, ValueError, "recall must be a finite number above 0 and at most 1; got 0"),
        ({"recall": -0.5}, ValueError, "recall must be .* above 0 and at most 1; got -0.5"),
        ({"recall": 1.1}, ValueError, "recall must be .* at most 1; got 1.1"),
        (
            {"recall": None, "num_found": 0},
            ValueError,
            "num_found must be an integer of at least 1; got 0",
        ),
        (
            {"recall": None, "num_found": 201},
            ValueError,
            "num_found must be at most num_classes=200; got 201",
        ),
        ({"recall": 0}, ValueError, "recall must be .*above 0.*; got 0"),
        ({"k": 0}, ValueError, "k must be an integer of at least 1; got 0"),
        ({"k": 201}, ValueError, "k must be at most num_classes=200; got 201"),
        ({"num_tables": []}, ValueError, r"num_tables must be a sequence of integers; got \[\]"),
        ({"num_tables": 5}, ValueError, "num_tables must be a sequence of integers; got 5"),
        ({"num_tables": [0]}, ValueError, "each of num_tables must be an integer of at least 1"),
        ({"hashes_per_table": [2.5]}, ValueError, "each of hashes_per_table must be an integer"),
        ({"hashes_per_table": [30]}, ValueError, "hashes_per_table must give at most 2.24 buckets"),
        ({"queries": ARRAYS[2][:1]}, ValueError, r"N at least 2; got shapes .* and \[1, 16\]"),
        ({"queries": ARRAYS[2][:, :5]}, ValueError, "queries must be as wide as kernel, 16; got"),
        ({"queries": ARRAYS[2] * np.nan}, tf.errors.InvalidArgumentError, "finite"),
        ({"kernel": ARRAYS[0] * np.inf}, tf.errors.InvalidArgumentError, "finite"),
        (
            {"hashes_per_table": [6], "num_tables": [1]},
            ValueError,
            "recall must be one that an index meets by two standard errors; got 0.9, and the most "
            ".* with hashes_per_table=6 and num_tables=1",
        ),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    kernel, bias, hidden = ARRAYS
    given = {"like": inner_product(), "kernel": kernel, "bias": bias, "queries": hidden}
    with pytest.raises(error, match=message):
        choose_hash_index(**{**given, "recall": 0.9, **arguments})


def test_without_hashes_per_table_all_that_leave_few_buckets_empty_are_tried():
    like = inner_product(length_ranges=4)
    # 4 C = 12,000 buckets at most, 3,000 in each of 4 ranges, and 2^11 < 3000 < 2^12.
    assert _grid(like, None, [5, 7], CLASSES) == ([*range(1, 12)], [5, 7])


def test_the_cost_of_a_target_has_no_margin():
    before = np.array([[[0.0]], [[20.0]]])  # two queries, whose best class is in one bucket
    found = Found(before, np.full_like(before, 10.0), np.ones_like(before))
    with_half, with_margin = (_Target(0.5, None).num_found_for(found, e) for e in (0, 2))
    assert _Target(0.5, None).cost(found) == with_half == 10 < with_margin
    assert _Target(None, 25).cost(found) == pytest.approx(-0.75)
