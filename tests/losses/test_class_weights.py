# SPDX-License-Identifier: Apache-2.0
"""A weight per class, as an argument of losses: its rule with several labels, files, errors."""

from __future__ import annotations

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from losses.candidate_cases import CLASSES, examples_of, labels_of, random_case
from losses.test_candidate_losses import LOSSES, make, oracle_of
from oracles import spherical_losses

import tfx_largeout as tlo

WEIGHTS = np.random.default_rng(8).uniform(0.2, 3, CLASSES)
ROWS = [[1, 2, 8], [3], [7, 0], [9, 4]]
SHARED = [3, 0, 7, 7, 11, 5]


@pytest.mark.parametrize("name", list(LOSSES))
@pytest.mark.parametrize("weights", [WEIGHTS, np.where(np.arange(CLASSES) % 2, 0, WEIGHTS)])
def test_the_loss_of_each_label_is_weighted_by_its_class(name, weights):
    statistics = random_case(np.random.default_rng(0), ROWS, SHARED)
    loss = make(name, class_weights=weights)
    labels = loss.checked(statistics.labels, CLASSES)
    values = labels.mean_weight * tf.cast(
        loss.from_statistics(statistics._replace(labels=labels)), tf.float64
    )
    examples, _ = examples_of(statistics)
    expected = [
        np.mean(weights[own] * oracle_of(name)(example, over_labels=lambda each: each))
        for own, example in zip(_in_order(statistics), examples, strict=True)
    ]
    np.testing.assert_allclose(values, expected, rtol=1e-5, atol=1e-5)


def _in_order(statistics):
    return [row[row >= 0] for row in statistics.labels.ids.numpy()]


def test_several_labels_of_a_sequence_and_a_smoothed_loss():
    rng = np.random.default_rng(0)
    hidden = rng.normal(size=(2, 3, 4)).astype("float32")
    labels = labels_of([*ROWS, [], [5, 6]]).reshape(2, 3, 3)
    logits = tlo.heads.DenseHead(CLASSES, bias_initializer="random_normal")(hidden, training=True)
    log_p = np.float64(tf.nn.log_softmax(logits))
    terms = []
    for index in np.ndindex(2, 3):
        own = labels[index][labels[index] >= 0]
        smooth = 0.9 * log_p[index][own] + 0.1 * log_p[index].mean()
        terms += [-np.mean(WEIGHTS[own] * smooth)] if own.size else []
    loss = tlo.losses.SoftmaxCrossentropy(label_smoothing=0.1, class_weights=WEIGHTS)
    np.testing.assert_allclose(loss(labels, logits), np.mean(terms), rtol=1e-5)


@pytest.mark.parametrize("training", [True, False])
def test_the_squared_error_is_multiplied_by_the_mean_weight(training):
    head = tlo.heads.DenseHead(CLASSES)
    hidden = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    logits = head(hidden, training=training)
    values = spherical_losses.squared_error(hidden, head.kernel.numpy(), None, ROWS)
    expected = [WEIGHTS[own].mean() * value for own, value in zip(ROWS, values, strict=True)]
    loss = tlo.losses.SquaredError(reduction="none", class_weights=WEIGHTS)
    np.testing.assert_allclose(loss(labels_of(ROWS), logits), expected, rtol=1e-5)


@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_they_count_as_the_class_weight_of_keras_beside_sample_weights(reduction):
    hidden = np.random.default_rng(0).normal(size=(4, 3)).astype("float32")
    labels, own = np.array([1, 5, 5, 0]), np.array([0.5, 2, 1, 3])
    logits = tlo.heads.DenseHead(CLASSES)(hidden)
    theirs = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction=reduction)
    ours = tlo.losses.SoftmaxCrossentropy(reduction=reduction, class_weights=WEIGHTS)
    expected = theirs(labels, tf.identity(logits), WEIGHTS[labels] * own)
    np.testing.assert_allclose(ours(labels, logits, own), expected, rtol=1e-5)


def test_a_loss_with_weights_and_an_ignored_class_is_saved_with_the_model(tmp_path):
    loss = tlo.losses.SoftmaxCrossentropy(class_weights=WEIGHTS, ignore_class=-100)
    model = keras.Sequential([keras.Input([3]), tlo.heads.DenseHead(CLASSES)])
    model.compile("sgd", loss=loss)
    x, y = np.random.default_rng(0).normal(size=(4, 3)), np.array([1, -100, 5, 0])
    model.fit(x, y, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded.loss.class_weights, WEIGHTS)
    assert loaded.loss.ignore_class == -100
    assert loaded.evaluate(x, y, verbose=0) == model.evaluate(x, y, verbose=0)


def test_weights_of_a_million_classes_are_saved_in_few_bytes():
    weights = np.where(np.arange(10**6) % 3, 1.0, 2.5).astype("float32")
    config = json.dumps(tlo.losses.ZLoss(class_weights=weights).get_config())
    assert len(config) < 200_000
    again = tlo.losses.ZLoss.from_config(json.loads(config))
    np.testing.assert_array_equal(again.class_weights, weights)


def test_a_loss_of_ones_own_need_not_take_these_arguments():
    class Narrow(tlo.losses.SoftmaxCrossentropy):
        def __init__(self, log_partition_penalty, label_smoothing, name, reduction):
            super().__init__(log_partition_penalty, label_smoothing, name=name, reduction=reduction)

    loss = Narrow.from_config(Narrow(0.1, 0.0, "mine", "sum").get_config())
    assert loss.ignore_class is None and loss.class_weights is None


@pytest.mark.parametrize(
    ("weights", "error", "message"),
    [
        ([1, -0.5, 1], ValueError, "finite and at least 0 for every class; got -0.5 for class 1"),
        ([1, 1, np.nan], ValueError, "finite and at least 0 .* got nan for class 2"),
        ([np.inf, 1], ValueError, "finite and at least 0 .* got inf for class 0"),
        ([[1, 2]], ValueError, r"class_weights must have shape \[C\]; got shape \(1, 2\)"),
        (["a", "b"], TypeError, "class_weights must be numbers; got dtype"),
        ([True, False], TypeError, "class_weights must be numbers; got dtype bool"),
        ({0: 1.0}, TypeError, "one for each class in the order of ids; got a dict"),
    ],
)
def test_weights_that_are_refused(weights, error, message):
    with pytest.raises(error, match=message):
        tlo.losses.SampledSoftmax(class_weights=weights)


def test_weights_of_another_number_of_classes_or_beside_targets():
    logits = tlo.heads.DenseHead(CLASSES)(np.ones((2, 3), "float32"))
    with pytest.raises(ValueError, match=f"one number for each of the {CLASSES} classes; got 3"):
        tlo.losses.SoftmaxCrossentropy(class_weights=[1, 2, 3])([1, 2], logits)
    targets = tf.SparseTensor([[0, 3]], [1.0], [2, CLASSES])
    with pytest.raises(ValueError, match="class_weights must be None for sparse targets"):
        tlo.losses.SquaredError(class_weights=WEIGHTS)(targets, logits)
    with pytest.raises(ValueError, match="ignore_class must be None for sparse targets"):
        tlo.losses.SquaredError(ignore_class=3)(targets, logits)


@pytest.mark.parametrize("argument", ["class_weight", "label_smoothing", "temperature"])
def test_an_argument_that_a_loss_does_not_have(argument):
    says = {
        "class_weight": "whose argument is class_weights",
        "label_smoothing": "SoftmaxCrossentropy has it, which trains DenseHead, ExactSoft",
        "temperature": "got an unexpected keyword argument 'temperature'",
    }[argument]
    with pytest.raises(TypeError, match=f"SampledSoftmax.*{says}"):
        tlo.losses.SampledSoftmax(**{argument: 0.1})


def test_label_smoothing_with_candidates_names_what_works():
    head = tlo.heads.SampledHead(CLASSES, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1))
    logits = head(np.ones((2, 3), "float32"), training=True)
    message = (
        r"SoftmaxCrossentropy needs MeanLogitStatistics; got SampledHead, which gives "
        r"CandidateStatistics. label_smoothing=0.1 takes the mean of all logits. Use a loss for "
        r"what the head gives \(ActiveSetSoftmax, BlackOut, .* or \w+\), or a head that gives "
        r"MeanLogitStatistics \(DenseHead, ExactSoftmaxHead or TiedExactSoftmaxHead\)"
    )
    with pytest.raises(TypeError, match=message):
        tlo.losses.SoftmaxCrossentropy(label_smoothing=0.1)([1, 2], logits)


def test_class_weight_of_fit_with_several_labels_names_what_works():
    model = keras.Sequential([keras.Input([3]), tlo.heads.DenseHead(CLASSES)])
    model.compile("sgd", loss=tlo.losses.SoftmaxCrossentropy())
    with pytest.raises(ValueError, match="Give the loss class_weights, one for each class"):
        x, y = np.ones((4, 3), "float32"), labels_of(ROWS)
        model.fit(x, y, class_weight=dict.fromkeys(range(CLASSES), 1.0), verbose=0)
