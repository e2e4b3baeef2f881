# SPDX-License-Identifier: Apache-2.0
"""The spherical losses on both heads that train with them, against all logits."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import spherical_losses as oracle
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.heads.base import head_output
from tfx_largeout.labels import normalize_labels
from tfx_largeout.statistics import SphericalStatistics

CLASSES, WIDTH = 11, 3


@keras.saving.register_keras_serializable(package="tfx_largeout_tests")
def own_loss(statistics):
    close = statistics.labels.mean((statistics.target_logits - 1) ** 2)
    return close + (statistics.sum_of_squares + statistics.sum_of_logits) / statistics.num_classes


def own_oracle(hidden, kernel, bias, lists):
    logits = oracle.logits_of(hidden, kernel, bias)
    close = [((row[labels] - 1) ** 2).mean() for row, labels in zip(logits, lists, strict=True)]
    return np.array(close) + (logits**2 + logits).mean(axis=1)


LOSSES = {
    "squared_error": (tlo.losses.SquaredError, {"target_value": 0.7}, oracle.squared_error),
    "spherical": (tlo.losses.SphericalSoftmax, {"epsilon": 0.1}, oracle.spherical_softmax),
    "taylor": (tlo.losses.TaylorSoftmax, {}, oracle.taylor_softmax),
    "z_loss": (tlo.losses.ZLoss, {"a": 0.5, "b": 3.0}, oracle.z_loss),
    "own": (tlo.losses.LambdaSphericalLoss, {"fn": own_loss}, own_oracle),
}

every_loss = pytest.mark.parametrize("name", list(LOSSES))
every_head = pytest.mark.parametrize(
    "make_head",
    [
        lambda **kw: tlo.heads.FactoredHead(CLASSES, 0.1, use_bias=True, **kw),
        lambda **kw: tlo.heads.DenseHead(CLASSES, **kw),
    ],
    ids=["factored", "dense"],
)


def case(make_head):
    rng = np.random.default_rng(0)
    head = make_head(kernel_initializer="random_normal", bias_initializer="random_normal")
    hidden = rng.normal(size=(4, WIDTH)).astype("float32")
    return head, hidden, [[1], [2, 5], [0, 10, 4], [2]]


def weights_of(head):
    if isinstance(head, tlo.heads.FactoredHead):
        return head.materialize()
    return head.kernel.numpy(), head.bias.numpy()


def ragged(lists):
    return tf.ragged.constant(lists, dtype=tf.int64)


@every_loss
@every_head
@pytest.mark.parametrize("training", [True, *thorough(False)])
def test_values_are_those_of_all_logits(name, make_head, training):
    loss_class, arguments, expected = LOSSES[name]
    head, hidden, lists = case(make_head)
    values = loss_class(reduction="none", **arguments)(
        ragged(lists), head(hidden, training=training)
    )
    options = {} if name == "own" else arguments
    np.testing.assert_allclose(
        values, expected(hidden, *weights_of(head), lists, **options), rtol=1e-5, atol=1e-6
    )


@every_loss
@every_head
def test_gradients_with_respect_to_h(name, make_head):
    loss_class, arguments, expected = LOSSES[name]
    head, hidden, lists = case(make_head)
    head.build(hidden.shape)
    weights = weights_of(head)
    options = {} if name == "own" else arguments
    variable = tf.Variable(hidden)
    with tf.GradientTape() as tape:
        loss = loss_class(reduction="sum", **arguments)(
            ragged(lists), head(variable, training=True)
        )
    gradient = tape.gradient(loss, variable).numpy()
    for index in np.ndindex(hidden.shape):
        step = np.zeros(hidden.shape)
        step[index] = 1e-5
        ends = [expected(hidden + s * step, *weights, lists, **options).sum() for s in (1, -1)]
        np.testing.assert_allclose(
            gradient[index], (ends[0] - ends[1]) / 2e-5, rtol=2e-4, atol=2e-4
        )


@every_loss
def test_config_round_trip(name):
    loss_class, arguments, _ = LOSSES[name]
    loss = loss_class(reduction="sum", name="mine", **arguments)
    copy = keras.losses.deserialize(keras.losses.serialize(loss))
    assert type(copy) is loss_class
    assert copy.get_config() == loss.get_config()


@pytest.mark.parametrize("name", ["spherical", "taylor"])
@every_head
def test_probabilities(name, make_head):
    loss_class, arguments, expected = LOSSES[name]
    head, hidden, _ = case(make_head)
    logits = head(hidden)
    labels = head_output(logits).labels(np.zeros(4, "int64"))
    loss = loss_class(**arguments)
    statistics = head.statistics(SphericalStatistics, tf.constant(hidden), labels, training=False)
    probabilities = loss.probabilities(logits, statistics).numpy()
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    lists = [[3]] * 4
    values = expected(hidden, *weights_of(head), lists, **arguments)
    np.testing.assert_allclose(-np.log(probabilities[:, 3]), values, rtol=1e-5)


def test_no_probabilities():
    with pytest.raises(NotImplementedError, match="ZLoss defines no probabilities"):
        tlo.losses.ZLoss().probabilities(None, None)


@every_head
@pytest.mark.parametrize("training", [True, False])
def test_squared_error_of_sparse_targets(make_head, training):
    head, hidden, _ = case(make_head)
    targets = np.zeros((4, CLASSES), "float32")
    targets[0, [1, 4]] = [0.5, -2.0]
    targets[2, 10] = 3.0
    targets[3, 0] = 1.0
    output = head(hidden, training=training)
    values = tlo.losses.SquaredError(reduction="none")(tf.sparse.from_dense(targets), output)
    logits = oracle.logits_of(hidden, *weights_of(head))
    np.testing.assert_allclose(values, ((logits - targets) ** 2).sum(axis=1), rtol=1e-5)


def test_sparse_targets_train_in_fit():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, WIDTH)).astype("float32")
    truth = rng.normal(size=(WIDTH, CLASSES))
    targets = x @ truth
    targets[np.abs(targets) < 1.5] = 0
    data = tf.data.Dataset.from_tensor_slices((x, tf.sparse.from_dense(targets.astype("float32"))))
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    model = keras.Sequential([keras.Input((WIDTH,)), head])
    model.compile("sgd", loss=tlo.losses.SquaredError(), metrics=[tlo.metrics.PrecisionAtK(1)])
    model.fit(data.batch(16).repeat(40), verbose=0)
    best = ((targets - x @ np.linalg.lstsq(x, targets)[0]) ** 2).sum(axis=1).mean()
    assert model.evaluate(data.batch(16), verbose=0)[0] < 1.1 * best


def test_sparse_targets_are_refused_where_values_mean_nothing():
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    targets = tf.sparse.from_dense(0.5 * np.eye(CLASSES, dtype="float32")[:2])
    message = r"must get class ids, or sparse targets of zeros and ones; got \[0\.5\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        tlo.losses.LambdaSphericalLoss(lambda s: s.sum_of_logits)(
            targets, head(np.ones((2, WIDTH), "float32"), training=True)
        )


def test_sparse_targets_of_another_length_are_refused():
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    targets = tf.sparse.from_dense(np.eye(CLASSES + 1, dtype="float32")[:2])
    with pytest.raises(ValueError, match=r"shape \[B, C\] with C = 11; got \(2, 12\)"):
        tlo.losses.SquaredError()(targets, head(np.ones((2, WIDTH), "float32"), training=True))


def test_a_head_that_does_not_train_with_them_is_refused():
    head = tlo.heads.TFSampledSoftmaxHead(CLASSES, num_sampled=5)
    output = head(np.ones((2, WIDTH), "float32"), training=True)
    with pytest.raises(TypeError, match=r"Use a loss for what the head gives"):
        tlo.losses.TaylorSoftmax()([1, 2], output)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            lambda: tlo.losses.SphericalSoftmax(0.0),
            "epsilon must be .* above 0; got 0.0",
        ),
        (lambda: tlo.losses.ZLoss(a=-1.0), "a must be .* above 0; got -1.0"),
        (lambda: tlo.losses.ZLoss(b=float("nan")), "b must be a finite number; got nan"),
        (
            lambda: tlo.losses.SquaredError(float("inf")),
            "target_value must be a finite number; got inf",
        ),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_function_must_be_one_and_be_registered_to_be_saved():
    with pytest.raises(TypeError, match="fn must be a function of SphericalStatistics; got 3"):
        tlo.losses.LambdaSphericalLoss(3)
    with pytest.raises(ValueError, match="fn must be registered"):
        tlo.losses.LambdaSphericalLoss(lambda statistics: statistics.sum_of_squares).get_config()


def test_the_z_loss_is_finite_where_all_logits_are_equal():
    head = tlo.heads.FactoredHead(CLASSES, 0.1, kernel_initializer="zeros")
    hidden = tf.Variable(np.ones((2, WIDTH), "float32"))
    value = tlo.losses.ZLoss()([1, 2], head(hidden, training=True))
    np.testing.assert_allclose(value, 10 * np.log1p(np.e), rtol=1e-5)


@pytest.mark.parametrize("shift", [0.0, 1e2, 1e4, 1e7])
def test_the_z_loss_of_shifted_logits_is_as_before_or_bounded(shift):
    logits = np.random.default_rng(0).normal(0, 1, [1, CLASSES])
    shifted = tf.Variable((logits + shift).astype("float32"))
    with tf.GradientTape() as tape:
        labels = normalize_labels([3], CLASSES)
        squares, total = tf.reduce_sum(shifted**2, 1), tf.reduce_sum(shifted, 1)
        statistics = SphericalStatistics(labels, shifted[:, 3:4], squares, total, CLASSES)
        value = tlo.losses.ZLoss().from_statistics(statistics)
    gradient = np.abs(tape.gradient(value, shifted)).max()
    if shift <= 1e2:
        z = (logits[0, 3] - logits.mean()) / logits.std()
        np.testing.assert_allclose(value, [10 * np.log1p(np.exp(0.1 * (10 - z)))], rtol=1e-3)
    assert abs(value[0]) < 100 and gradient < 100


def test_statistics_say_how_many_classes():
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    output = head_output(head(np.ones((2, WIDTH), "float32"), training=True))
    statistics = output.statistics(SphericalStatistics, [1, 2])
    assert isinstance(statistics, SphericalStatistics)
    assert statistics.num_classes == CLASSES
