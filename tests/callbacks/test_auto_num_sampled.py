# SPDX-License-Identifier: Apache-2.0
"""AutoNumSampled: what S it takes, that a step then has it, and that a run can be resumed."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout import losses, samplers
from tfx_largeout.callbacks import AutoNumSampled, Checkpoint
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.optimizers import RowAdam

CLASSES, WIDTH, EXAMPLES = 100, 6, 96
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
Y = RNG.integers(0, CLASSES, EXAMPLES)
TOLERANCE, SIZES = 0.2, [5, 10, 20, 30, 40, 50, 60, 100]


def model_with(num_sampled):
    keras.utils.set_random_seed(2)
    head = tlo.heads.SampledHead(CLASSES, samplers.Uniform(num_sampled), RowAdam(0.05), seed=1)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(8, "tanh"), head])
    model.compile("adam", loss=losses.ComplementarySum())
    return model


def fit(model, *callbacks, epochs=3, **options):
    return model.fit(
        X, Y, epochs=epochs, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks, **options
    ).history


def state(model):
    return [read().copy() for _, read in ModelState(model).arrays()]


def assert_same_state(model, other):
    for a, b in zip(state(model), state(other), strict=True):
        np.testing.assert_array_equal(a, b)


def size_of(model):
    return model.layers[-1].sampler.num_sampled


@pytest.mark.thorough
def test_it_takes_what_choose_num_sampled_chooses():
    auto, model = AutoNumSampled(X, Y, TOLERANCE, SIZES, draws=2), model_with(5)
    chosen = tlo.choose_num_sampled(model, X, Y, TOLERANCE, SIZES, draws=2)
    history = fit(model, auto, epochs=6)
    assert [choice["epoch"] for choice in auto.history] == [0, 1, 2, 4]
    first = auto.history[0]
    assert (first["num_sampled"], first["error"]) == (chosen[0], chosen[1]["error"])
    sizes = {choice["epoch"]: choice["num_sampled"] for choice in auto.history}
    assert len(set(sizes.values())) > 1  # as W is trained
    assert history["num_sampled"] == [sizes[0], sizes[1], sizes[2], sizes[2], sizes[4], sizes[4]]
    assert history["num_sampled_error"][-1] == auto.history[-1]["error"]
    assert size_of(model) == sizes[4]
    again = AutoNumSampled(X, Y, TOLERANCE, SIZES, draws=2)
    fit(model_with(5), again, epochs=6)
    assert again.history == auto.history


def test_a_step_has_the_new_number():
    auto = AutoNumSampled(X, Y, 9.0, sizes=[7])
    model, other = model_with(12), model_with(7)
    fit(model, auto)
    fit(other)
    assert size_of(model) == 7
    assert_same_state(model, other)


@pytest.mark.thorough
def test_a_step_has_the_new_number_in_the_middle_of_training():
    model, other = model_with(12), model_with(12)
    fit(model, AutoNumSampled(X, Y, 9.0, sizes=[7], epochs=[2]), epochs=4)
    fit(other, epochs=2)
    assert size_of(other) == 12
    other.layers[-1].set_num_sampled(7)
    other.make_train_function(force=True)
    fit(other, epochs=4, initial_epoch=2)
    assert_same_state(model, other)


@pytest.mark.thorough
def test_the_number_is_saved_with_the_model(tmp_path):
    model = model_with(12)
    fit(model, AutoNumSampled(X, Y, 9.0, sizes=[7]))
    model.save(tmp_path / "model.keras")
    assert size_of(keras.models.load_model(tmp_path / "model.keras")) == 7


@pytest.mark.thorough
def test_a_tolerance_that_no_number_meets_is_reported_once():
    auto = AutoNumSampled(X, Y, 1e-3, sizes=[5, 9])
    with pytest.warns(RuntimeWarning, match="meets tolerance=0.001; training takes the greatest, "):
        fit(model_with(12), auto, epochs=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        fit(model := model_with(12), auto, epochs=2)
    assert size_of(model) == 9


class Killed(Exception):
    pass


def of_epoch(epoch):
    order = np.random.default_rng(epoch).permutation(EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((X[order], Y[order])).batch(8)


def checkpointed(folder, kill_after=None, first=5):
    auto, model = AutoNumSampled(X, Y, TOLERANCE, SIZES, draws=2), model_with(first)
    checkpoint = Checkpoint(folder, every=5, callbacks=[auto])
    left = [kill_after]

    def kill(batch, logs):
        if left[0] is not None:
            left[0] -= 1
            if not left[0]:
                raise Killed

    history = model.fit(
        checkpoint.data(of_epoch),
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=[auto, checkpoint, keras.callbacks.LambdaCallback(on_train_batch_end=kill)],
    ).history
    return model, auto, history


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return checkpointed(tmp_path_factory.mktemp("whole"))


@pytest.mark.thorough
@pytest.mark.parametrize("kill_after", [21, *thorough(4, 12, 30)])
def test_a_run_that_was_killed_goes_on_as_it_would_have(tmp_path, whole, kill_after):
    model, auto, history = whole
    assert len({choice["num_sampled"] for choice in auto.history}) > 1
    with pytest.raises(Killed):
        checkpointed(tmp_path, kill_after)
    other, resumed, again = checkpointed(tmp_path)
    assert resumed.history == auto.history and again == history
    assert size_of(other) == size_of(model)
    assert_same_state(model, other)


@pytest.mark.thorough
def test_a_checkpoint_of_another_number_in_the_script_is_refused(tmp_path):
    checkpointed(tmp_path)
    with pytest.raises(ValueError, match="the checkpoint must be one of this model"):
        checkpointed(tmp_path, first=6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"tolerance": -1}, "tolerance must be a finite number above 0; got -1"),
        ({"draws": 0}, "draws must be an integer of at least 2; got 0"),
        ({"sizes": [0]}, "each of sizes must be an integer of at least 1; got 0"),
        ({"epochs": 3}, "epochs must be a sequence of integers; got 3"),
        ({"epochs": [-1]}, "each of epochs must be an integer of at least 0; got -1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        AutoNumSampled(X, Y, **{"tolerance": 0.1, **arguments})


def test_another_model_is_refused_when_training_begins():
    model = keras.Sequential([keras.Input((WIDTH,)), tlo.heads.DenseHead(CLASSES)])
    model.compile("sgd", loss=losses.SoftmaxCrossentropy())
    before = model.get_weights()
    with pytest.raises(TypeError, match=r"AutoNumSampled needs .* a SampledHead; got DenseHead"):
        fit(model, AutoNumSampled(X, Y, 0.1))
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
