# SPDX-License-Identifier: Apache-2.0
"""Keras's own reductions, weights and masks, over values that come from statistics."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.heads.base import head_output
from tfx_largeout.heads.self_updating import SelfUpdatingHead
from tfx_largeout.statistics import SoftmaxStatistics


@pytest.fixture
def case():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(4, 3)).astype("float32")
    head = tlo.heads.DenseHead(9, bias_initializer="random_normal")
    return head, hidden, rng.integers(0, 9, 4)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [None, [0.5, 0.0, 2.0, 1.0]])
@pytest.mark.parametrize(
    "reduction", ["sum", "sum_over_batch_size", "mean", "mean_with_sample_weight", "none", None]
)
def test_reductions_are_those_of_keras(case, reduction, weights, training):
    head, hidden, labels = case
    weights = None if weights is None else np.array(weights, "float32")
    logits = head(hidden, training=training)
    expected = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)(
        labels, tf.identity(logits), sample_weight=weights
    )
    value = tlo.losses.SoftmaxCrossentropy(reduction=reduction)(labels, logits, weights)
    np.testing.assert_allclose(value, expected, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("weights", [None, [0.5, 0.0, 2.0, 1.0]])
@pytest.mark.parametrize("ignored", [-1, -100, 4, 12])
@pytest.mark.parametrize(
    "reduction", ["sum", "sum_over_batch_size", "mean", "mean_with_sample_weight", "none", None]
)
def test_a_class_is_ignored_as_in_keras(case, reduction, ignored, weights, training):
    head, hidden, labels = case
    labels[1:3] = ignored
    weights = None if weights is None else np.array(weights, "float32")
    logits = head(hidden, training=training)
    expected = keras.losses.SparseCategoricalCrossentropy(
        from_logits=True, reduction=reduction, ignore_class=ignored
    )(labels.astype("float32"), tf.identity(logits), sample_weight=weights)
    given = None if ignored == -1 and weights is None else ignored  # -1 is none as it is
    loss = tlo.losses.SoftmaxCrossentropy(reduction=reduction, ignore_class=given)
    np.testing.assert_allclose(loss(labels, logits, weights), expected, rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_an_example_of_weight_zero_counts_in_a_mean_whatever_its_labels(case, training):
    head, hidden, labels = case
    logits, weights = head(hidden, training=training), np.array([1.0, 0.0, 2.0, 1.0])
    expected = tlo.losses.SoftmaxCrossentropy()(labels, logits, weights)
    labels[1] = -1
    np.testing.assert_array_equal(
        tlo.losses.SoftmaxCrossentropy()(labels, logits, weights), expected
    )


@pytest.mark.parametrize("training", [True, False])
def test_a_mask_and_a_lack_of_labels_are_one_mask(training):
    rng = np.random.default_rng(0)
    hidden, labels = rng.normal(size=(2, 3, 4)).astype("float32"), rng.integers(0, 9, (2, 3))
    labels[0, 1] = labels[1, 2] = -1
    logits = tlo.heads.DenseHead(9)(hidden, training=training)
    values = -tf.nn.log_softmax(logits).numpy()
    logits._keras_mask = tf.constant([[True, True, True], [False, True, True]])
    expected = [values[b, t, labels[b, t]] for b, t in ((0, 0), (0, 2), (1, 1))]
    value = tlo.losses.SoftmaxCrossentropy()(labels, logits)
    np.testing.assert_allclose(value, np.mean(expected), rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_a_weight_an_example_weighs_all_its_positions(training):
    hidden = np.random.default_rng(0).normal(size=(3, 3, 4)).astype("float32")
    labels = np.random.default_rng(1).integers(0, 9, (3, 3))
    weights = np.array([1.0, 0.0, 5.0], "float32")
    logits = tlo.heads.DenseHead(9)(hidden, training=training)
    values = keras.losses.sparse_categorical_crossentropy(
        labels, tf.identity(logits), from_logits=True
    )
    expected = np.mean(values * weights[:, np.newaxis])
    for shaped in (weights, weights[:, np.newaxis], np.repeat(weights[:, np.newaxis], 3, axis=1)):
        value = tlo.losses.SoftmaxCrossentropy()(labels, logits, shaped)
        np.testing.assert_allclose(value, expected, rtol=1e-5)


def test_a_loss_in_ten_lines(case):
    @keras.saving.register_keras_serializable(package="tfx_largeout_tests")
    class LargestTarget(tlo.losses.HeadLoss):
        """Asks only for the best of an example's labels."""

        trains_on = SoftmaxStatistics

        def from_statistics(self, statistics):
            masked = tf.where(statistics.labels.mask, statistics.target_logits, -np.inf)
            return statistics.log_partition - tf.reduce_max(masked, axis=-1)

    head, hidden, _ = case
    labels = np.array([[1, 2, -1], [3, -1, -1], [4, 5, 6], [7, 8, 0]])
    values = [LargestTarget()(labels, head(hidden, training=t)) for t in (True, False)]
    log_probabilities = tf.nn.log_softmax(head(hidden)).numpy()
    best = [max(log_probabilities[i, c] for c in row if c >= 0) for i, row in enumerate(labels)]
    np.testing.assert_allclose(values, [-np.mean(best)] * 2, rtol=1e-5)


def test_config_round_trip():
    loss = tlo.losses.TFCandidateSamplingLoss(reduction="sum", name="mine")
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(copy) is type(loss)
    assert copy.get_config() == loss.get_config()


def test_a_loss_that_says_too_little_says_so():
    class Nothing(tlo.losses.HeadLoss):
        def from_statistics(self, statistics):
            return statistics.log_partition

    class Unwritten(tlo.losses.HeadLoss):
        trains_on = SoftmaxStatistics
        evaluates_on = tlo.statistics.SphericalStatistics

    logits = tlo.heads.DenseHead(5)(np.ones((2, 3), "float32"))
    with pytest.raises(TypeError, match="Nothing must say in `trains_on`"):
        Nothing()([1, 2], logits)
    with pytest.raises(NotImplementedError, match="Unwritten must write `exact`, as Spherical"):
        Unwritten()([1, 2], logits)


def test_a_loss_may_evaluate_on_statistics_of_its_own_choice(case):
    class LengthOfLogits(tlo.losses.SoftmaxCrossentropy):
        evaluates_on = tlo.statistics.SphericalStatistics

        def exact(self, statistics):
            return tf.sqrt(statistics.sum_of_squares)

    head, hidden, labels = case
    value = LengthOfLogits()(labels, head(hidden))
    np.testing.assert_allclose(value, np.linalg.norm(head(hidden), axis=1).mean(), rtol=1e-5)


def test_a_self_updating_head_gives_some_kind():
    with pytest.raises(TypeError, match="gives of Nothing must name a kind of statistics; got no"):

        class Nothing(SelfUpdatingHead):
            gives = ()


@pytest.mark.parametrize("loss", [tlo.losses.SoftmaxCrossentropy(), tlo.losses.SquaredError()])
def test_a_dense_head_of_float64_trains_in_float64(loss):
    head = tlo.heads.DenseHead(5, dtype="float64", kernel_initializer="random_normal")
    hidden = np.random.default_rng(0).normal(size=(3, 4))
    values = [loss([1, 2, 3], head(hidden, training=training)) for training in (True, False)]
    statistics = head_output(head(hidden)).statistics(loss.trains_on, [1, 2, 3])
    assert statistics.target_logits.dtype == tf.float64
    np.testing.assert_allclose(values[0], values[1], rtol=1e-6)


def fit_of_class_weight(labels, **arguments):
    head = tlo.heads.DenseHead(3, kernel_initializer="ones")
    model = keras.Sequential([keras.Input([2]), head])
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)
    data = tf.data.Dataset.from_tensor_slices((np.eye(2, dtype="float32"), labels)).batch(2)
    return model.fit(data, verbose=0, **arguments).history["loss"][0]


@pytest.mark.parametrize("labels", [[0, 2], [[0], [2]]])
def test_class_weight_of_fit_weighs_examples_of_one_label(labels):
    expected = (4 + 1) / 2 * np.log(3)
    value = fit_of_class_weight(np.array(labels), class_weight={0: 4.0, 2: 1.0})
    assert value == pytest.approx(expected, rel=1e-5)


def test_class_weight_of_fit_is_refused_with_several_labels():
    labels = np.array([[0, 2], [1, -1]])
    fit_of_class_weight(labels)
    with pytest.raises(ValueError, match="class_weight must be left out unless each example has"):
        fit_of_class_weight(labels, class_weight={0: 4.0, 1: 2.0, 2: 1.0})
