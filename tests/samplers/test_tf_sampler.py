# SPDX-License-Identifier: Apache-2.0
"""TFSampler: the triple of TensorFlow's functions, and of functions like them."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from samplers.drawing import draw

from tfx_largeout import samplers

CLASSES = 20
LABELS = [[3, -1], [5, 7], [-1, 3]]
COUNTS = list(range(1, CLASSES + 1))


@keras.saving.register_keras_serializable(package="tfx_largeout_tests")
def first_classes(true_classes, num_true, num_sampled, unique, range_max, offset=0):
    """Classes `offset`, `offset` + 1, ..., with expected counts of (id + 1) / C."""
    assert num_true == 1
    ids = tf.range(offset, offset + num_sampled, dtype=tf.int64)
    return ids, *(tf.cast(c + 1, tf.float32) / range_max for c in (true_classes, ids))


@keras.saving.register_keras_serializable(package="tfx_largeout_tests")
def id_as_expected_count(true_classes, num_sampled, **_):
    ids = tf.range(1, num_sampled + 1, dtype=tf.int64)
    return ids, tf.cast(true_classes, tf.float32), tf.cast(ids, tf.float32)


@pytest.mark.parametrize(
    ("function", "options"),
    [
        ("uniform", {}),
        ("log_uniform", {}),
        ("learned_unigram", {}),
        ("fixed_unigram", {"unigrams": np.array(COUNTS, float), "distortion": 0.75}),
        (tf.random.log_uniform_candidate_sampler, {}),
    ],
)
@pytest.mark.parametrize("unique", [True, False])
def test_tensorflows_samplers(function, options, unique):
    sampler = samplers.TFSampler(function, 6, unique, {"seed": 4, **options})
    sampler.build(CLASSES)
    run = tf.function(lambda: draw(sampler, LABELS))
    for _ in range(3):
        ids, log_expected, true_log_expected = run()
        assert ids.shape == log_expected.shape == (6,)
        assert np.all((ids >= 0) & (ids < CLASSES))
        np.testing.assert_array_equal(true_log_expected.numpy()[np.array(LABELS) < 0], 0)
        assert true_log_expected[0, 0] == true_log_expected[2, 1]
        assert np.isfinite(log_expected).all()
        if unique:
            assert len(set(ids.numpy().tolist())) == 6


def test_expected_counts_are_those_of_ours():
    theirs = samplers.TFSampler("log_uniform", 6, unique=False)
    ours = samplers.LogUniform(6, unique=False)
    for sampler in (theirs, ours):
        sampler.build(CLASSES)
    np.testing.assert_allclose(
        draw(theirs, LABELS).true_log_expected, draw(ours, LABELS).true_log_expected, rtol=1e-5
    )


def test_a_function_of_your_own():
    sampler = samplers.TFSampler(first_classes, 3, options={"offset": 4})
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(sampler)))
    sampler = keras.saving.deserialize_keras_object(config)
    sampler.build(CLASSES)
    ids, log_expected, true_log_expected = draw(sampler, LABELS)
    np.testing.assert_array_equal(ids, [4, 5, 6])
    np.testing.assert_allclose(log_expected, np.log([0.25, 0.3, 0.35]), rtol=1e-6)
    expected = [[np.log(0.2), 0], [np.log(0.3), np.log(0.4)], [0, np.log(0.2)]]
    np.testing.assert_allclose(true_log_expected, expected, rtol=1e-6)


def test_a_batch_without_labels():
    sampler = samplers.TFSampler("uniform", 3)
    sampler.build(CLASSES)
    np.testing.assert_array_equal(draw(sampler, [[-1], [-1]]).true_log_expected, [[0], [0]])


@pytest.mark.parametrize("function", ["uniform", tf.random.uniform_candidate_sampler])
def test_config_of_tensorflows_functions(function):
    sampler = samplers.TFSampler(function, 3, unique=False, options={"seed": 1})
    config = sampler.get_config()
    assert config["function"] == "uniform"
    assert samplers.TFSampler.from_config(config).get_config() == config


def test_a_count_of_zero_is_refused():
    sampler = samplers.TFSampler(id_as_expected_count, 3)
    sampler.build(CLASSES)
    draw(sampler, [[1]])
    run = tf.function(lambda: draw(sampler, [[0], [1]]))
    with pytest.raises(tf.errors.InvalidArgumentError, match="expected counts of labels must be"):
        run()


def test_what_cannot_be_saved_says_so():
    with pytest.raises(ValueError, match="function must be registered"):
        samplers.TFSampler(lambda **_: None, 3).get_config()
