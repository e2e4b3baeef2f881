# SPDX-License-Identifier: Apache-2.0
"""SoftmaxCrossentropy and its penalty of log Z."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.hessian_free import convex_loss

CLASSES, WIDTH = 12, 5
RNG = np.random.default_rng(4)
X = RNG.standard_normal((30, WIDTH)).astype("float32")
Y = RNG.integers(0, CLASSES, 30)


def oracle(logits, labels, penalty):
    logits = np.asarray(logits, float)
    log_z = np.log(np.exp(logits).sum(axis=1))
    return np.mean(log_z - logits[np.arange(len(labels)), labels] + penalty * log_z**2)


@pytest.mark.parametrize("training", [True, False])
def test_the_penalty_is_that_of_its_formula(training):
    head = tlo.heads.DenseHead(CLASSES, kernel_initializer="random_normal")
    loss = tlo.losses.SoftmaxCrossentropy(log_partition_penalty=0.3)
    value = loss(Y, head(X, training=training))
    np.testing.assert_allclose(value, oracle(head(X), Y, 0.3), rtol=1e-5)


def test_a_penalty_pulls_log_z_to_zero_in_training():
    ends = []
    for penalty in (0.0, 1.0):
        keras.utils.set_random_seed(1)
        head = tlo.heads.DenseHead(CLASSES)
        model = keras.Sequential([keras.Input((WIDTH,)), head])
        loss = tlo.losses.SoftmaxCrossentropy(log_partition_penalty=penalty)
        model.compile(keras.optimizers.SGD(0.1), loss=loss)
        model.fit(X, Y, epochs=100, verbose=0)
        logits = model.predict(X, verbose=0)
        ends.append(np.abs(np.log(np.exp(logits).sum(axis=1))).mean())
        assert model.evaluate(X, Y, verbose=0) == pytest.approx(oracle(logits, Y, penalty), 1e-4)
    assert ends[1] < 0.3 * ends[0]


def test_its_config_round_trips():
    loss = tlo.losses.SoftmaxCrossentropy(log_partition_penalty=1e-4)
    again = keras.losses.deserialize(keras.losses.serialize(loss))
    assert again.get_config() == loss.get_config()
    assert again.log_partition_penalty == 1e-4


@pytest.mark.parametrize("penalty", [-0.1, float("nan"), "much", True])
def test_a_bad_penalty_is_refused(penalty):
    with pytest.raises(ValueError, match="log_partition_penalty must be a finite number at least"):
        tlo.losses.SoftmaxCrossentropy(log_partition_penalty=penalty)


def test_hessian_free_training_refuses_it_as_its_hessian_is_another():
    with pytest.raises(ValueError, match="SoftmaxCrossentropy without a penalty"):
        convex_loss(tlo.losses.SoftmaxCrossentropy(log_partition_penalty=0.1))
