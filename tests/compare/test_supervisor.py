# SPDX-License-Identifier: Apache-2.0
"""The callback in a real `fit`, with a model that does not change, so that each loss is known."""

from __future__ import annotations

import itertools

import keras
import numpy as np
import pytest

from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.compare.settings import TrainingSettings
from tfx_largeout.compare.timed_fit import Supervisor, TrainingClock

STEPS_PER_EPOCH = 5
X = np.arange(10, dtype=np.float32)[:, np.newaxis]
BATCH_LOSSES = np.square(X).reshape(STEPS_PER_EPOCH, 2).mean(axis=1)


def train(settings, learning_rate=0.0, clock=None):
    model = keras.Sequential([keras.Input([1]), keras.layers.Dense(1, "linear", False, "ones")])
    model.compile(keras.optimizers.SGD(learning_rate), loss="mean_squared_error")
    points, metrics = [], []

    def evaluate():
        metrics.append(model.evaluate(X + 1000, 0 * X, verbose=0))
        return dict.fromkeys(
            ["precision_at_1", "precision_at_3", "precision_at_5", "ps_precision_at_1"], 0.0
        ) | {"exact_loss": metrics[-1]}

    def send(**told):
        if "point" in told:
            points.append(CurvePoint(**told["point"]))

    supervisor = Supervisor(settings, STEPS_PER_EPOCH, evaluate, send)
    supervisor.clock = clock or supervisor.clock
    supervisor.fit(model, {"x": X, "y": 0 * X, "batch_size": 2, "shuffle": False})
    return points


@pytest.mark.parametrize(
    ("epochs", "evaluations", "steps"),
    [
        (2, 2, [0, 5, 10]),
        (2, 3, [0, 4, 7, 10]),  # within an epoch, and across its end
        (0.4, 6, [0, 1, 2]),  # more evaluations than steps
        (3, 1, [0, 15]),
        (23, 23, list(range(0, 116, 5))),
    ],
)
def test_points_and_their_losses(epochs, evaluations, steps):
    points = train(TrainingSettings(None, epochs, evaluations))
    assert [point.step for point in points] == steps
    assert [point.epoch for point in points] == [step / STEPS_PER_EPOCH for step in steps]
    losses = np.tile(BATCH_LOSSES, 23)
    assert points[0].train_loss is None
    for before, after in itertools.pairwise(points):
        expected = losses[before.step : after.step].mean()
        assert after.train_loss == pytest.approx(expected, rel=1e-5)
        assert after.seconds >= before.seconds


def test_the_budget_ends_the_training():
    clock = TrainingClock(itertools.count(0, 2).__next__)  # a step takes 2 s, the next evaluation 2
    points = train(TrainingSettings(budget=30, epochs=None, evaluations=3), clock=clock)
    assert [point.seconds for point in points] == [0, 10, 20, 30]
    assert [point.step for point in points] == [0, 5, 10, 15]


def test_the_time_is_of_the_wall():
    points = train(TrainingSettings(budget=0.3, epochs=None, evaluations=1))
    assert points[-1].seconds >= 0.3
    assert points[-1].step > 1


def test_a_loss_that_is_not_finite_ends_the_training():
    with pytest.raises(FloatingPointError, match="a lower learning rate may help"):
        train(TrainingSettings(None, 100, 1), learning_rate=1e3)
