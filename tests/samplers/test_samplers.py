# SPDX-License-Identifier: Apache-2.0
"""One suite that every sampler of the table passes."""

from __future__ import annotations

import functools
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from samplers.drawing import (
    assert_mean,
    assert_one_over_expected,
    counts_of_draws,
    draw,
    labels_of,
    many_draws,
    weights_of,
)
from samplers.samplers_table import CLASSES, SAMPLERS, built
from variants import cases_of, thorough

from tfx_largeout import losses
from tfx_largeout.labels import Labels
from tfx_largeout.statistics import CandidateStatistics

DRAWS, LABEL = 4000, 3
LABELS = [[0, 5, -1], [39, -1, -1], [-1, 7, 2]]

every_sampler = cases_of("row", SAMPLERS)


@functools.cache
def draws_of(row):
    return many_draws(built(row), LABEL, DRAWS)


# Form


@every_sampler
def test_shapes_dtypes_and_padding(row):
    sampler = built(row)
    ids, log_expected, true_log_expected = draw(sampler, LABELS)
    assert ids.dtype == tf.int64
    assert log_expected.dtype == true_log_expected.dtype == tf.float32
    assert ids.shape == log_expected.shape
    assert ids.shape.rank == (2 if sampler.per_example else 1)
    assert sampler.num_candidates(len(LABELS))[1] == sampler.per_example
    assert not sampler.per_example or ids.shape[0] == len(LABELS)
    assert true_log_expected.shape == (3, 3)
    assert np.all((ids >= -1) & (ids < CLASSES))
    np.testing.assert_array_equal(log_expected.numpy()[ids.numpy() < 0], 0)
    np.testing.assert_array_equal(true_log_expected.numpy()[np.array(LABELS) < 0], 0)
    counts = counts_of_draws(np.atleast_2d(ids), CLASSES)
    assert not row.unique or counts.max() <= 1


@every_sampler
def test_a_label_has_the_expected_count_of_the_candidate(row):
    sampler = built(row)
    ids, log_expected, true_log_expected = (
        np.asarray(field) for field in draw(sampler, np.arange(CLASSES).reshape(-1, 1))
    )
    there = ids >= 0
    np.testing.assert_allclose(log_expected[there], true_log_expected[ids[there], 0], rtol=1e-6)
    assert np.isfinite(true_log_expected).all()
    if row.unique:
        assert true_log_expected.max() <= 0
    if row.expected is not None:
        np.testing.assert_allclose(np.exp(true_log_expected[:, 0]), row.expected, rtol=2e-6)


@every_sampler
@pytest.mark.parametrize("dtype", [tf.int64, *thorough(tf.int32)])
def test_the_same_seed_gives_the_same_and_another_another(row, dtype):
    sampler, twin = built(row), built(row)
    first, again, other = (
        draw(who, LABELS, tf.constant(seed, dtype))
        for who, seed in ((sampler, [3, 4]), (twin, [3, 4]), (sampler, [3, 5]))
    )
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    if not row.name.endswith("all"):
        assert first.ids.shape != other.ids.shape or np.any(first.ids != other.ids)


@every_sampler
def test_graph_equals_eager_with_unknown_shapes(row):
    sampler = built(row)

    @tf.function(
        input_signature=[
            tf.TensorSpec([None, None]),
            tf.TensorSpec([None, None], tf.int64),
            tf.TensorSpec([2], tf.int32),
        ]
    )
    def run(hidden, ids, seed):
        return sampler.sample(hidden, Labels(ids), seed, weights_of(sampler))

    ids = tf.constant(LABELS, tf.int64)
    for step in range(5):
        eager = draw(sampler, LABELS, [7, step])
        for one, two in zip(run(tf.zeros([3, 3]), ids, [7, step]), eager, strict=True):
            np.testing.assert_allclose(one, two, rtol=1e-6)


@every_sampler
def test_it_may_be_built_inside_a_graph(row):
    sampler = row.make()

    @tf.function
    def run():
        sampler.build(CLASSES)
        return draw(sampler, LABELS).ids

    np.testing.assert_array_equal(run(), draw(built(row), LABELS).ids)
    np.testing.assert_array_equal(run(), draw(sampler, LABELS).ids)


# Claims


@every_sampler
def test_classes_are_drawn_as_often_as_expected(row):
    ids, log_expected, _ = draws_of(row)
    counts = counts_of_draws(ids, CLASSES)
    if row.expected is not None:
        assert_mean(counts, row.expected)
        return
    assert_one_over_expected(ids, log_expected, counts)


@every_sampler
def test_the_complementary_sum_is_unbiased(row):
    logits, label = np.random.default_rng(1).normal(size=CLASSES), LABEL
    ids, log_expected, true_log_expected = draws_of(row)
    labels = labels_of(np.full((DRAWS, 1), label))
    statistics = CandidateStatistics(
        labels=labels,
        true_logits=tf.fill([DRAWS, 1], tf.constant(logits[label], tf.float32)),
        candidate_logits=tf.constant(np.where(ids >= 0, logits[ids], 0), tf.float32),
        candidate_ids=tf.constant(ids),
        hits=tf.constant(ids == label),
        true_log_expected=tf.constant(true_log_expected),
        candidate_log_expected=tf.constant(log_expected),
        log_partition=tf.constant(0.0),
        num_classes=CLASSES,
    )
    values = losses.ComplementarySum().from_statistics(statistics).numpy().astype(np.float64)
    assert_mean(np.exp(values + logits[label]), np.exp(logits).sum())
    values = losses.SampledLogistic().from_statistics(statistics).numpy().astype(np.float64)
    one_against_all = np.logaddexp(0, logits).sum() - logits[label]
    assert_mean(values, one_against_all)


# Configuration


@every_sampler
def test_config_round_trip(row):
    sampler = built(row)
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(sampler)))
    copy = keras.saving.deserialize_keras_object(config)
    assert type(copy) is type(sampler)
    assert copy.get_config() == sampler.get_config()
    copy.build(CLASSES)
    np.testing.assert_array_equal(draw(copy, LABELS).ids, draw(sampler, LABELS).ids)


@every_sampler
def test_build_is_for_one_number_of_classes(row):
    sampler = row.make()
    with pytest.raises(ValueError, match=r"build\(num_classes\) must be called before sample"):
        draw(sampler, LABELS)
    sampler.build(CLASSES)
    sampler.build(CLASSES)
    with pytest.raises(ValueError, match=r"num_classes must be 40, for which .* got 41"):
        sampler.build(41)


@every_sampler
def test_the_seed_is_checked(row):
    sampler = built(row)
    with pytest.raises(ValueError, match=r"seed must have shape \[2\].* got shape \(3,\)"):
        draw(sampler, LABELS, [1, 2, 3])
    with pytest.raises(ValueError, match=r"seed must .* dtype float32"):
        draw(sampler, LABELS, [1.0, 2.0])
