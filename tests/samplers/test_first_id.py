# SPDX-License-Identifier: Apache-2.0
"""Padding and unknown ids come first and are not drawn; others are drawn as documented."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import samplers as oracle
from samplers.drawing import (
    assert_mean,
    assert_one_over_expected,
    counts_of_draws,
    draw,
    many_draws,
)
from samplers.samplers_table import CLASSES, COUNTS
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout import samplers

FIRST, DRAWS = 5, 4000
LEFT = CLASSES - FIRST
PADDED_COUNTS = np.append([0, 10**6, 0, 7, 1], COUNTS[FIRST:])


class Row:
    """A sampler from `FIRST` on, the same over the classes that are left, and E of these."""

    def __init__(self, name, make, expected=None):
        self.name, self.make, self.expected = name, make, expected


def _bernoulli(per_example=False, expected=6.5):
    return lambda counts, **kw: samplers.Bernoulli(counts, expected, per_example, **kw)


ROWS = [
    Row("uniform", lambda c, **kw: samplers.Uniform(6, **kw), 6 * oracle.uniform(LEFT)),
    Row("uniform_all", lambda c, **kw: samplers.Uniform(LEFT, **kw), np.ones(LEFT)),
    Row(
        "uniform_per_example",
        lambda c, **kw: samplers.Uniform(6, per_example=True, **kw),
        6 * oracle.uniform(LEFT),
    ),
    Row("log_uniform", lambda c, **kw: samplers.LogUniform(6, **kw)),
    Row("log_uniform_most", lambda c, **kw: samplers.LogUniform(30, **kw)),
    Row(
        "log_uniform_repeats",
        lambda c, **kw: samplers.LogUniform(9, unique=False, **kw),
        9 * oracle.log_uniform(LEFT),
    ),
    Row(
        "log_uniform_per_example",
        lambda c, **kw: samplers.LogUniform(9, per_example=True, **kw),
        9 * oracle.log_uniform(LEFT),
    ),
    Row("unigram", lambda c, **kw: samplers.Unigram(c, 6, 0.5, **kw)),
    Row(
        "unigram_repeats",
        lambda c, **kw: samplers.Unigram(c, 9, unique=False, **kw),
        9 * oracle.unigram(COUNTS[FIRST:]),
    ),
    Row("bernoulli", _bernoulli(), oracle.bernoulli(COUNTS[FIRST:], 6.5)),
    Row("bernoulli_most", _bernoulli(expected=33), oracle.bernoulli(COUNTS[FIRST:], 33)),
    Row("bernoulli_per_example", _bernoulli(True), oracle.bernoulli(COUNTS[FIRST:], 6.5)),
]

every_row = cases_of("row", ROWS)


def built(row):
    sampler = row.make(PADDED_COUNTS, first_id=FIRST)
    sampler.build(CLASSES)
    return sampler


@pytest.mark.all_cases
@every_row
def test_it_draws_as_from_the_classes_that_are_left(row):
    twin = row.make(COUNTS[FIRST:])
    twin.build(LEFT)
    labels = np.array([[FIRST, 2, -1], [CLASSES - 1, -1, 0], [-1, 7, 20]])
    ids, log_expected, of_labels = draw(built(row), labels)
    others = draw(twin, np.maximum(labels - FIRST, -1))
    np.testing.assert_array_equal(ids, np.where(others.ids >= 0, others.ids + FIRST, -1))
    np.testing.assert_array_equal(log_expected, others.log_expected)
    np.testing.assert_array_equal(of_labels, others.true_log_expected)  # 0 where E is 1
    np.testing.assert_array_equal(of_labels.numpy()[labels < FIRST], 0)


@every_row
def test_the_first_ids_are_never_drawn_and_the_others_as_often_as_expected(row):
    ids, log_expected, _ = many_draws(built(row), 1, DRAWS)
    counts = counts_of_draws(ids, CLASSES)
    np.testing.assert_array_equal(counts[:, :FIRST], 0)
    if row.expected is not None:
        assert_mean(counts[:, FIRST:], row.expected)
        return
    assert_one_over_expected(ids, log_expected, counts)


@every_row
def test_it_is_saved(row):
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(built(row))))
    copy = keras.saving.deserialize_keras_object(config)
    copy.build(CLASSES)
    assert copy.first_id == FIRST
    np.testing.assert_array_equal(draw(copy, [[1]]).ids, draw(built(row), [[1]]).ids)


@pytest.mark.parametrize(
    "loss",
    [
        tlo.losses.ComplementarySum(),
        tlo.losses.SampledSoftmax(),
        tlo.losses.NoiseContrastive(),
        tlo.losses.BlackOut(),
    ],
    ids=lambda loss: loss.name,
)
def test_a_label_below_the_first_id_trains(loss):
    sampler = samplers.LogUniform(6, first_id=FIRST)
    head = tlo.heads.SampledHead(CLASSES, sampler, tlo.optimizers.RowSGD(0.5), seed=1)
    model = keras.Sequential([keras.Input([3]), head])
    model.compile(keras.optimizers.SGD(0.5), loss=loss)
    x, y = np.eye(3, dtype="float32"), np.array([0, 2, FIRST + 1])
    before = model.evaluate(x, y, verbose=0)
    history = model.fit(x, y, epochs=30, verbose=0).history["loss"]
    assert np.isfinite(history).all()
    assert model.evaluate(x, y, verbose=0) < before - 1
    untouched = np.setdiff1d(np.arange(FIRST), y)
    start = keras.ops.convert_to_numpy(head.kernel)[untouched].copy()
    model.fit(x, y, epochs=3, verbose=0)
    np.testing.assert_array_equal(keras.ops.convert_to_numpy(head.kernel)[untouched], start)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: samplers.LogUniform(2, first_id=-1), "first_id must be an integer of at least 0"),
        (lambda: samplers.Uniform(2, first_id=1.5), "first_id must be an integer of at least 0"),
        (lambda: samplers.LogUniform(1, first_id=9).build(9), "less than num_classes=9; got 9"),
        (
            lambda: samplers.LogUniform(7, first_id=3).build(9),
            "at most num_classes=9 - first_id=3 for unique candidates; got 7",
        ),
        (lambda: samplers.Unigram([1, 2], 1, first_id=2), "less than the number of counts, 2"),
        (lambda: samplers.Bernoulli([1, 2], 1, first_id=2), "less than the number of counts, 2"),
        (
            lambda: samplers.Bernoulli([1, 2, 3], 2.5, first_id=1).build(3),
            "at most num_classes=3 - first_id=1; got 2.5",
        ),
    ],
)
def test_arguments_that_are_out_of_range(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("kind", ["unigram", "bernoulli"])
def test_a_class_of_count_0_is_drawn_at_times(kind):
    counts = [40, 0, 20, 8, 0, 4, 2]
    sampler = {
        "unigram": lambda **kw: samplers.Unigram(counts, 3, unique=False, **kw),
        "bernoulli": lambda **kw: samplers.Bernoulli(counts, 3, **kw),
    }[kind]
    for smoothing, added in ((None, 1), (0.25, 0.25)):
        made = sampler(smoothing=smoothing)
        made.build(7)
        smooth = np.array(counts) + added
        expected = 3 * oracle.unigram(smooth)
        if kind == "bernoulli":
            expected = oracle.bernoulli(smooth, 3)
        got = draw(made, np.arange(7).reshape(-1, 1)).true_log_expected[:, 0]
        np.testing.assert_allclose(np.exp(got), expected, rtol=1e-5)
        copy = type(made).from_config(json.loads(json.dumps(made.get_config())))
        np.testing.assert_array_equal(copy.counts, counts)
        assert copy.smoothing == smoothing
    with pytest.raises(ValueError, match="where smoothing is 0; got 0 for class 1"):
        sampler(smoothing=0)
    with pytest.raises(ValueError, match="smoothing must be a finite number at least 0; got -1"):
        sampler(smoothing=-1)


def test_tensorflow_agrees_on_the_classes_that_are_left():
    sampler = samplers.LogUniform(1, unique=False, first_id=3)
    sampler.build(1003)
    ids = np.unique(np.geomspace(1, 1000, 20).astype(int)) + 2
    got = draw(sampler, ids.reshape(-1, 1)).true_log_expected[:, 0]
    _, theirs, _ = tf.random.log_uniform_candidate_sampler(
        ids.reshape(-1, 1) - 3, 1, 1, unique=False, range_max=1000
    )
    np.testing.assert_allclose(got, np.log(theirs[:, 0]), rtol=1e-3)
