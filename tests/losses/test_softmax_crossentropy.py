# SPDX-License-Identifier: Apache-2.0
"""SoftmaxCrossentropy and its penalty of log Z."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.hessian_free.convex_loss import convex_loss
from tfx_largeout.statistics import MeanLogitStatistics, SoftmaxStatistics

CLASSES, WIDTH = 12, 5
RNG = np.random.default_rng(4)
X = RNG.standard_normal((30, WIDTH)).astype("float32")
Y = RNG.integers(0, CLASSES, 30)


def oracle(logits, labels, penalty, smoothing=0.0):
    logits = np.asarray(logits, float)
    log_z = np.log(np.exp(logits).sum(axis=1))
    target = (1 - smoothing) * logits[np.arange(len(labels)), labels]
    target += smoothing * logits.mean(axis=1)
    return np.mean(log_z - target + penalty * log_z**2)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("penalty", "smoothing"), [(0.3, 0.0), (0.0, 0.2), (0.3, 0.2), (0, 0.999)])
def test_the_penalty_and_the_smoothing_are_those_of_the_formula(training, penalty, smoothing):
    head = tlo.heads.DenseHead(CLASSES, kernel_initializer="random_normal")
    loss = tlo.losses.SoftmaxCrossentropy(penalty, smoothing)
    value = loss(Y, head(X, training=training))
    np.testing.assert_allclose(value, oracle(head(X), Y, penalty, smoothing), rtol=1e-5)


@pytest.mark.thorough
def test_a_penalty_pulls_log_z_to_zero_in_training():
    ends = []
    for penalty in (0.0, 1.0):
        keras.utils.set_random_seed(1)
        head = tlo.heads.DenseHead(CLASSES)
        model = keras.Sequential([keras.Input((WIDTH,)), head])
        loss = tlo.losses.SoftmaxCrossentropy(log_partition_penalty=penalty)
        model.compile(keras.optimizers.SGD(0.1), loss=loss)
        model.fit(np.tile(X, (100, 1)), np.tile(Y, 100), verbose=0)
        logits = model.predict(X, verbose=0)
        ends.append(np.abs(np.log(np.exp(logits).sum(axis=1))).mean())
        assert model.evaluate(X, Y, verbose=0) == pytest.approx(oracle(logits, Y, penalty), 1e-4)
    assert ends[1] < 0.3 * ends[0]


def test_its_config_round_trips():
    loss = tlo.losses.SoftmaxCrossentropy(log_partition_penalty=1e-4, label_smoothing=0.1)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    assert again.log_partition_penalty == 1e-4
    assert again.label_smoothing == 0.1
    assert again.trains_on is MeanLogitStatistics


def test_a_config_from_before_smoothing_loads():
    config = tlo.losses.SoftmaxCrossentropy(1e-4).get_config()
    del config["label_smoothing"]
    again = tlo.losses.SoftmaxCrossentropy.from_config(config)
    assert again.label_smoothing == 0
    assert again.trains_on is SoftmaxStatistics


@pytest.mark.parametrize("penalty", [-0.1, float("nan"), "much", True])
def test_a_bad_penalty_is_refused(penalty):
    with pytest.raises(ValueError, match="log_partition_penalty must be a finite number at least"):
        tlo.losses.SoftmaxCrossentropy(log_partition_penalty=penalty)


@pytest.mark.parametrize("smoothing", [-0.1, 1, 1.5, float("nan"), "much", True, None])
def test_a_bad_smoothing_is_refused(smoothing):
    message = "label_smoothing must be a finite number at least 0 and below 1; got"
    with pytest.raises(ValueError, match=message):
        tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing)


def test_hessian_free_training_refuses_it_as_its_hessian_is_another():
    with pytest.raises(ValueError, match="SoftmaxCrossentropy without a penalty"):
        convex_loss(tlo.losses.SoftmaxCrossentropy(log_partition_penalty=0.1))
