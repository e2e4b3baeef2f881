# SPDX-License-Identifier: Apache-2.0
"""Specific to the propensity-scored precision: label counts."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.metrics import PSPrecisionAtK


def test_a_rare_hit_is_worth_more():
    counts = [1, 90, 50]
    labels = np.array([[0, 1]])
    rare = PSPrecisionAtK(1, counts, 100)(labels, np.array([[2.0, 1.0, 0.0]]))
    common = PSPrecisionAtK(1, counts, 100)(labels, np.array([[1.0, 2.0, 0.0]]))
    assert float(rare) == 1.0
    assert 0 < float(common) < 1


def test_config_is_small_and_plain():
    num_classes = 670_091
    counts = np.minimum(np.random.default_rng(0).zipf(1.8, num_classes), 1000)
    metric = PSPrecisionAtK(5, counts, 490_449)
    text = json.dumps(keras.saving.serialize_keras_object(metric))
    assert len(text) < num_classes
    copy = keras.saving.deserialize_keras_object(json.loads(text))
    np.testing.assert_array_equal(copy.label_counts, counts)
    assert (copy.num_examples, copy.a, copy.b) == (490_449, 0.55, 1.5)


def test_counts_are_copied():
    counts = np.array([1, 2, 3])
    metric = PSPrecisionAtK(1, counts, 10)
    before = metric.get_config()
    counts[:] = 9
    assert metric.get_config() == before


def test_graphs_do_not_copy_the_propensities():
    num_classes = 100_000
    metric = PSPrecisionAtK(1, np.ones(num_classes, np.int64), 10)

    @tf.function
    def update(y_true, y_pred):
        metric.update_state(y_true, y_pred)

    labels = tf.zeros([1], tf.int64)
    graph = update.get_concrete_function(labels, tf.zeros([1, num_classes])).graph
    assert graph.as_graph_def().ByteSize() < num_classes


def test_length_of_counts():
    metric = PSPrecisionAtK(1, [1, 2, 3], 10)
    with pytest.raises(ValueError, match=r"label_counts must .* \(4\); got 3"):
        metric.update_state(np.array([0]), np.zeros((1, 4), np.float32))


def test_bad_arguments_are_refused_at_once():
    with pytest.raises(ValueError, match="label_counts must not be negative"):
        PSPrecisionAtK(1, [1, -2], 10)
    with pytest.raises(ValueError, match="b must be"):
        PSPrecisionAtK(1, [1, 2], 10, b=-1.0)
