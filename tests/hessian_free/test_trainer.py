# SPDX-License-Identifier: Apache-2.0
"""Trainer: iterations of the oracle, exact resuming, logs, samples, errors."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import child
import keras
import numpy as np
import pytest
import tensorflow as tf
from hessian_free import resumed_run
from hessian_free.models import (
    CLASSES,
    WIDTH,
    architecture,
    classes_data,
    dense_model,
    head_model,
    loss_data,
    sparse_softmax,
)
from oracles import hessian_free as oracle
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.hessian_free import (
    DiagonalPreconditioner,
    FixedSample,
    GeometricSample,
    LBFGSPreconditioner,
    Trainer,
    VarianceSample,
)
from tfx_largeout.hessian_free.worker import LocalWorker, WorkerGroup

LOGS = {
    "loss",
    "line_search_loss",
    "step_size",
    "rho",
    "damping",
    "cg_iterations",
    "gradient_sample",
    "cg_sample",
    "data_points",
    "gradient_points",
    "cg_points",
    "line_search_points",
    "gradient_seconds",
    "cg_seconds",
    "line_search_seconds",
}


def whole(**arguments):
    """A trainer that takes all examples for everything."""
    return Trainer(cg_sample=FixedSample(1.0), **arguments)


@pytest.mark.parametrize("kind", ["softmax", "squared", *thorough("sigmoid")])
def test_iterations_are_the_oracles(kind):
    loss = {
        "softmax": sparse_softmax(),
        "sigmoid": keras.losses.BinaryCrossentropy(from_logits=True),
        "squared": "mse",
    }[kind]
    keras.backend.set_floatx("float64")
    try:
        model = dense_model(loss, dtype="float64")
        training = loss_data(kind, 40)
        held_out = tuple(array[:25] for array in training)
        weights, trainer, damping, start = model.get_weights(), whole(damping=0.1), 0.1, 0
        for number in range(4):
            history = trainer.fit(
                model,
                *training,
                line_search_data=held_out,
                epochs=number + 1,
                initial_epoch=number,
                verbose=0,
            ).history
            if number == 0:
                start = np.zeros(sum(w.size for w in weights))
            assert history["damping"] == [pytest.approx(damping)]
            expected = oracle.iteration(kind, weights, training, held_out, damping, start)
            weights, damping, start, rho, alpha, iterations = expected
            assert history["rho"] == [pytest.approx(rho, rel=1e-3)]
            assert history["step_size"] == [pytest.approx(alpha)]
            assert history["cg_iterations"] == [iterations]
            for found, wanted in zip(model.get_weights(), weights, strict=True):
                np.testing.assert_allclose(found, wanted, rtol=1e-4, atol=1e-5)
    finally:
        keras.backend.set_floatx("float32")


@pytest.mark.parametrize(
    "preconditioner", [LBFGSPreconditioner(8), *thorough(None, DiagonalPreconditioner())], ids=type
)
def test_it_learns_with_each_preconditioner(preconditioner):
    model = dense_model(sparse_softmax(), hidden=(8,))
    x, y = classes_data(200)
    y = (x[:, 0] > 0) + 2 * (x[:, 1] * x[:, 2] > 0)
    trainer = whole(preconditioner=preconditioner, damping=0.1)
    history = trainer.fit(model, x, y, epochs=20, verbose=0).history
    assert history["loss"][0] > 1
    assert history["loss"][-1] < 0.2
    assert all(np.diff(history["line_search_loss"]) <= 0)


@pytest.mark.parametrize("name", ["head", *thorough("lstm", "normalised")])
def test_it_trains_other_networks(name):
    model, x, y = architecture(name, examples=60)
    y = np.broadcast_to(x.reshape(60, -1).sum(axis=1) > 0, y.shape[::-1]).T.astype(int)
    history = whole(damping=0.1).fit(model, x, y, epochs=6, verbose=0, validation_data=(x, y))
    losses = history.history["loss"]
    assert losses[-1] < losses[0] - 0.2
    assert history.history["val_loss"][-1] == pytest.approx(
        model.evaluate(x, y, verbose=0), rel=1e-5
    )


@pytest.mark.thorough
def test_the_head_takes_the_steps_of_a_dense_layer():
    x, y = classes_data(60)
    head, dense = head_model(), dense_model(sparse_softmax(), hidden=(6,))
    kernel, bias, rows, row_bias = head.get_weights()
    dense.set_weights([kernel, bias, rows.T, row_bias])
    losses = [
        whole().fit(model, x, y, epochs=4, verbose=0).history["line_search_loss"]
        for model in (head, dense)
    ]
    np.testing.assert_allclose(*losses, rtol=1e-3)


def test_logs_are_what_happened():
    model = dense_model(sparse_softmax())
    model.compile(loss=sparse_softmax(), metrics=["accuracy"])
    x, y = classes_data(100)
    trainer = Trainer(cg_sample=FixedSample(0.5), gradient_sample=FixedSample(60))
    before = model.get_weights()
    history = trainer.fit(model, x, y, epochs=3, verbose=0, validation_data=(x[:9], y[:9])).history
    assert set(history) == LOGS | {"val_loss", "val_accuracy"}
    assert history["gradient_sample"] == [60] * 3
    assert history["cg_sample"] == [45] * 3
    points = [sum(history[f"{name}_points"][i] for name in ("gradient", "cg", "line_search"))
              for i in range(3)]  # fmt: skip
    assert history["gradient_points"] == [60] * 3
    products = [iterations + (i > 0) for i, iterations in enumerate(history["cg_iterations"])]
    assert history["cg_points"] == [45 * count for count in products]
    assert all(count % 10 == 0 and count >= 10 for count in history["line_search_points"])
    assert history["data_points"] == list(np.cumsum(points))
    assert history["damping"][0] == 1
    assert history["val_loss"][-1] == pytest.approx(model.evaluate(x[:9], y[:9], verbose=0)[0])
    assert any(np.any(a != b) for a, b in zip(before, model.get_weights(), strict=True))


class Recorder(LocalWorker):
    """A worker that records the examples it reads."""

    def __init__(self, curvature, examples, batch_size):
        super().__init__(curvature, examples, batch_size)
        self.examples, self.curvature, self.gradients, self.held, self.losses = (
            examples, curvature, [], [], []
        )  # fmt: skip

    def gradient(self, numbers, micro_batch=None):
        self.gradients.append(numbers)
        return super().gradient(numbers, micro_batch)

    def hold(self, numbers):
        self.held.append(numbers)
        super().hold(numbers)

    def loss(self, numbers):
        self.losses.append(numbers)
        return super().loss(numbers)


def recorded(workers):
    def make(curvature, examples, batch_size):
        workers.append(Recorder(curvature, examples, batch_size))
        return workers[-1]

    return make


def inputs_of(worker):
    return {tuple(row) for row in worker.examples.take(np.arange(worker.num_examples))[0].numpy()}


def test_line_search_has_examples_of_its_own():
    workers: list[Recorder] = []
    x, y = classes_data(50)
    trainer = Trainer(line_search_split=0.3, make_worker=recorded(workers))
    trainer.fit(dense_model(sparse_softmax()), x, y, epochs=2, verbose=0)
    training, held_out = workers
    assert (training.num_examples, held_out.num_examples) == (35, 15)
    assert not inputs_of(training) & inputs_of(held_out)
    assert not held_out.gradients and not held_out.held and not training.losses
    assert all(len(numbers) == 15 for numbers in held_out.losses)


def test_samples_follow_their_schedules_and_are_drawn_anew():
    workers: list[Recorder] = []
    x, y = classes_data(400)
    trainer = Trainer(
        gradient_sample=GeometricSample(20, 1.2),
        cg_sample=GeometricSample(10, 1.3, most=0.1),
        make_worker=recorded(workers),
        damping=0.1,
    )
    history = trainer.fit(dense_model(sparse_softmax()), x, y, epochs=9, verbose=0).history
    assert workers[0].curvature.traces == 3  # whatever the sizes
    held = workers[0].held
    assert [len(numbers) for numbers in held] == [10, 13, 17, 22, 29, 36, 36, 36, 36]
    for numbers in held + workers[0].gradients:
        assert len(set(numbers)) == len(numbers)
        assert list(numbers) == sorted(numbers)
        assert numbers[0] >= 0 and numbers[-1] < 360
    assert set(held[0]) != set(held[1][:10])
    assert any(set(a) != set(b) for a, b in itertools.pairwise(held[6:]))
    sizes = [math.ceil(20 * 1.2**i - 1e-9) for i in range(9)]
    assert all(a <= b for a, b in zip(history["gradient_sample"], sizes, strict=True))
    assert [len(numbers) for numbers in workers[0].gradients] == sorted(
        set(history["gradient_sample"])
    )


def test_variance_samples_grow_where_gradients_are_noisy():
    x, y = classes_data(600)
    trainer = Trainer(
        gradient_sample=VarianceSample(32, 0.5), cg_sample=VarianceSample(16, 1.0, most=0.2)
    )
    history = trainer.fit(dense_model(sparse_softmax()), x, y, epochs=6, verbose=0).history
    assert history["gradient_sample"][0] == 32
    assert history["gradient_sample"][-1] > 100
    assert 16 < history["cg_sample"][-1] <= 108
    assert all(np.diff(history["cg_sample"]) >= 0)


@pytest.mark.thorough
@pytest.mark.parametrize("shards", [2, 5])
def test_several_workers_take_the_steps_of_one(shards):
    def make(curvature, examples, batch_size):
        parts = np.array_split(np.arange(len(examples)), shards)
        return WorkerGroup([LocalWorker(curvature, examples.part(part)) for part in parts])

    x, y = classes_data(120)
    histories, weights = [], []
    for arguments in ({}, {"make_worker": make}):
        keras.utils.set_random_seed(5)
        model = dense_model(sparse_softmax())
        trainer = Trainer(
            preconditioner=LBFGSPreconditioner(8),
            gradient_sample=GeometricSample(40, 1.2),
            cg_sample=GeometricSample(20, 1.3),
            **arguments,
        )
        # In later iterations losses to compare differ by rounding alone, which is the processor's.
        histories.append(trainer.fit(model, x, y, epochs=3, verbose=0).history)
        weights.append(np.concatenate([w.reshape(-1) for w in model.get_weights()]))
    for name in ("damping", "gradient_sample", "cg_sample", "data_points", "cg_iterations"):
        assert histories[0][name] == histories[1][name]
    np.testing.assert_allclose(*weights, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        histories[0]["line_search_loss"], histories[1]["line_search_loss"], rtol=1e-6
    )


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["refused", *thorough("lbfgs, geometric", "diagonal, variance")])
@pytest.mark.cpu
def test_state_resumes_exactly(name, tmp_path):
    """At a point where the gradient of a rejected step is used again."""
    sizes = resumed_run.run(name, tmp_path / "whole", 0, 4)
    assert sizes[1] == 0 and any(sizes[2:])
    assert resumed_run.run(name, tmp_path / "halves", 0, 2) == sizes[:2]
    assert resumed_run.run(name, tmp_path / "halves", 2, 4) == sizes[2:]
    assert_same(tmp_path)


@pytest.mark.thorough
@pytest.mark.cpu
def test_state_resumes_exactly_in_another_process(tmp_path):
    resumed_run.run("lbfgs, geometric", tmp_path / "whole", 0, 4)
    resumed_run.run("lbfgs, geometric", tmp_path / "halves", 0, 2)
    script = Path(resumed_run.__file__)
    done = child.run_child(tmp_path, str(script), str(tmp_path / "halves"), "2", "4")
    assert done.returncode == 0, done.stderr
    assert_same(tmp_path)


def assert_same(folder):
    for file in ("state.npz", "weights.npz"):
        with np.load(folder / "whole" / file) as a, np.load(folder / "halves" / file) as b:
            assert set(a) == set(b)
            for name in a:
                np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.cpu
def test_a_further_fit_goes_on():
    x, y = classes_data(80)
    results = []
    for calls in ((3,), (1, 2, 3)):
        keras.utils.set_random_seed(1)
        model, trainer, start = dense_model(sparse_softmax()), Trainer(), 0
        for end in calls:
            trainer.fit(model, x, y, epochs=end, initial_epoch=start, verbose=0)
            start = end
        results.append(np.concatenate([w.reshape(-1) for w in model.get_weights()]))
    np.testing.assert_array_equal(*results)


def test_other_data_is_noticed():
    x, y = classes_data(60)
    y = (x[:, 0] > 0).astype(int)
    model, trainer = dense_model(sparse_softmax(), hidden=()), whole()
    trainer.fit(model, x, y, line_search_data=(x, 3 - y), epochs=2, verbose=0)
    held_out = tf.data.Dataset.from_tensor_slices((x, y)).batch(7)
    history = trainer.fit(model, x, y, line_search_data=held_out, epochs=2, verbose=0).history
    assert history["step_size"][0] > 0
    assert history["gradient_points"] == [60, 60]


def test_a_state_of_another_kind_is_refused(tmp_path):
    path = tmp_path / "state.npz"
    x, y = classes_data(40)
    trainer = Trainer()
    trainer.fit(dense_model(sparse_softmax()), x, y, verbose=0)
    trainer.save_state(path)
    with pytest.raises(ValueError, match=r"the state must be of .*LBFGS.*; got one of .*Identity"):
        Trainer(preconditioner=LBFGSPreconditioner()).load_state(path)
    np.savez(tmp_path / "other.npz", a=1)
    with pytest.raises(ValueError, match="must be a state of format 1; got None"):
        trainer.load_state(tmp_path / "other.npz")
    other = Trainer()
    other.load_state(path)
    with pytest.raises(ValueError, match="must have 34 weights, as the state has; got 24"):
        other.fit(dense_model(sparse_softmax(), hidden=()), x, y, verbose=0)
    assert [file.name for file in tmp_path.iterdir()].count("state.npz.tmp") == 0


def test_a_refused_step_changes_nothing_but_the_damping():
    """Targets of the line search contradict the training targets: no step can help."""
    workers: list[Recorder] = []
    x, y = classes_data(60)
    y = (x[:, 0] > 0).astype(int)
    model = dense_model(sparse_softmax(), hidden=())
    model.layers[0].kernel.assign(tf.zeros([WIDTH, CLASSES]))
    opposed = (x, 3 - y)
    trainer = whole(make_worker=recorded(workers))
    before = model.get_weights()
    history = trainer.fit(model, x, y, line_search_data=opposed, epochs=4, verbose=0).history
    assert history["step_size"] == [0] * 4
    np.testing.assert_allclose(history["damping"], 1.5 ** np.arange(4))
    assert len(set(history["line_search_loss"])) == 1
    assert history["gradient_points"] == [60, 0, 0, 0]  # the gradient is used again
    assert all(rho < 0 for rho in history["rho"])
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)
    assert len(workers[0].gradients) == 1


def test_a_sample_that_has_failed_twice_is_drawn_anew():
    workers: list[Recorder] = []
    x, y = classes_data(60)
    y = (x[:, 0] > 0).astype(int)
    trainer = Trainer(gradient_sample=FixedSample(30), make_worker=recorded(workers))
    model = dense_model(sparse_softmax(), hidden=())
    model.layers[0].kernel.assign(tf.zeros([WIDTH, CLASSES]))
    history = trainer.fit(model, x, y, line_search_data=(x, 3 - y), epochs=5, verbose=0).history
    assert history["step_size"] == [0] * 5
    assert history["gradient_points"] == [30, 0, 30, 0, 30]


def test_nan_in_training_data_is_refused_and_raises_the_damping():
    x, y = classes_data(40)
    x[3, 0] = math.nan
    model, trainer = dense_model(sparse_softmax()), whole()
    before = model.get_weights()
    history = trainer.fit(
        model, x, y, line_search_data=classes_data(9), epochs=3, verbose=0
    ).history
    assert history["step_size"] == [0, 0, 0]
    assert history["cg_iterations"] == [0, 0, 0]
    assert all(map(math.isnan, history["rho"]))
    np.testing.assert_allclose(history["damping"], [1, 1.5, 2.25])
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_nan_of_single_trials_is_backed_away_from():
    """A steep exponential: the outputs of long steps are not finite."""
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(1, "exponential", kernel_initializer="zeros")]
    )
    model.compile(loss="mse")
    x, _ = classes_data(60)
    target = np.exp(30 * x[:, :1])
    history = whole(damping=1e-6).fit(model, x, target, epochs=12, verbose=0).history
    assert np.all(np.isfinite(history["line_search_loss"]))
    assert history["line_search_loss"][-1] <= history["line_search_loss"][0]
    assert all(np.all(np.isfinite(w)) for w in model.get_weights())


def test_weights_that_something_else_has_changed_are_noticed():
    x, y = classes_data(60)
    model = dense_model(sparse_softmax())
    start = model.get_weights()

    class Reset(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights(start)

    trainer = whole()
    history = trainer.fit(model, x, y, epochs=3, verbose=0, callbacks=[Reset()]).history
    assert len(set(history["loss"])) == 1
    assert history["gradient_points"] == [54] * 3


def test_a_penalty_on_weights_is_trained():
    model = keras.Sequential(
        [keras.Input((WIDTH,)), keras.layers.Dense(CLASSES, kernel_regularizer="l2")]
    )
    model.compile(loss=sparse_softmax())
    x, y = classes_data(60)
    trainer = whole(damping=0.01)
    history = trainer.fit(model, x, y, line_search_data=(x, y), epochs=10, verbose=0).history
    assert history["line_search_loss"][-1] == pytest.approx(
        model.evaluate(x, y, verbose=0, batch_size=60), rel=1e-5
    )
    kernel = tf.Variable(model.layers[0].kernel)
    bias = tf.Variable(model.layers[0].bias)
    with tf.GradientTape() as tape:
        logits = tf.matmul(tf.constant(x, tf.float32), kernel) + bias
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits))
        loss += 0.01 * tf.reduce_sum(kernel**2)
    for gradient in tape.gradient(loss, [kernel, bias]):
        np.testing.assert_allclose(gradient, 0, atol=1e-3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"preconditioner": "lbfgs"}, "preconditioner must be a Preconditioner; got 'lbfgs'"),
        ({"gradient_sample": 0.5}, r"gradient_sample must be a SampleSchedule; got 0\.5"),
        ({"cg_sample": 100}, "cg_sample must be a SampleSchedule; got 100"),
        ({"damping": 0}, "damping must be a finite number above 0; got 0"),
        ({"max_cg_iterations": 0}, "max_cg_iterations must be an integer of at least 1; got 0"),
        ({"line_search_split": 1}, "line_search_split must be a finite number above 0 and below 1"),
        ({"batch_size": 0}, "batch_size must be an integer of at least 1; got 0"),
        ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Trainer(**arguments)


def test_one_schedule_can_not_serve_two_samples():
    schedule = FixedSample(0.5)
    with pytest.raises(ValueError, match="cg_sample must not be the object of gradient_sample"):
        Trainer(gradient_sample=schedule, cg_sample=schedule)


def test_what_can_not_be_trained_is_refused_and_nothing_changes():
    x, y = classes_data(20)
    trainer = Trainer()

    def refused(message, *data, model=None, **arguments):
        model = model or dense_model(sparse_softmax())
        before = model.get_weights()
        with pytest.raises(ValueError, match=message):
            trainer.fit(model, *data, verbose=0, **arguments)
        for a, b in zip(before, model.get_weights(), strict=True):
            np.testing.assert_array_equal(a, b)

    refused("at least one example; got none", x[:0], y[:0])
    refused("for the gradient beside those for the line search; got 1 in all", x[:1], y[:1])
    refused("at least one example", x, y, line_search_data=(x[:0], y[:0]))
    other = (x.astype("float32"), y.astype("uint8"))
    refused("must have the shapes and dtypes of the other", x, y, line_search_data=other)
    refused("line_search_data must be .* or a dataset; got a ndarray", x, y, line_search_data=x)
    refused("epochs must be an integer of at least 0; got -1", x, y, epochs=-1)
    bad = (np.full_like(x, math.nan), y)
    refused("must be finite to begin with; got nan", x, y, line_search_data=bad)
    refused("known to be convex in the model's output", x, y, model=dense_model("mae"))
    frozen = dense_model(sparse_softmax())
    frozen.trainable = False
    refused("at least one trainable weight; got none", x, y, model=frozen)
    sampled = keras.Sequential(
        [keras.Input((WIDTH,)), tlo.heads.TFSampledSoftmaxHead(9, num_sampled=3)]
    )
    sampled.compile(loss=tlo.losses.SoftmaxCrossentropy())
    refused("behind a DenseHead as the model's last layer", x, y, model=sampled)
    with pytest.raises(ValueError, match="must be compiled with a loss"):
        trainer.fit(keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2)]), x, y)
    history = trainer.fit(dense_model(sparse_softmax()), x, y, verbose=0)
    assert history.history["damping"] == [1]


@pytest.mark.parametrize("form", ["dict", "list"])
def test_several_inputs(form):
    inputs = [keras.Input((3,), name="a"), keras.Input((4,), name="b")]
    outputs = keras.layers.Dense(2)(keras.layers.Concatenate()(inputs))
    rng = np.random.default_rng(0)
    x = [rng.normal(size=(50, 3)), rng.normal(size=(50, 4))]
    y = (x[0][:, 0] > x[1][:, 0]).astype(int)
    if form == "dict":
        inputs, x = (dict(zip("ab", both, strict=True)) for both in (inputs, x))
    model = keras.Model(inputs, outputs)
    model.compile(loss=sparse_softmax())
    history = (
        whole(damping=0.01)
        .fit(model, x, y, line_search_data=(x, y), epochs=4, verbose=0, validation_data=(x, y))
        .history
    )
    assert history["val_loss"][-1] < 0.3


def test_data_that_is_masked_throughout_is_refused():
    model = keras.Sequential(
        [keras.Input((3, 2)), keras.layers.Masking(), keras.layers.Dense(CLASSES)]
    )
    model.compile(loss=sparse_softmax())
    x, y = np.zeros((20, 3, 2)), np.zeros((20, 3), int)
    with pytest.raises(ValueError, match="must be finite to begin with; got nan"):
        Trainer().fit(model, x, y, verbose=0)


def test_a_model_without_a_shape_is_built_by_the_data():
    model = keras.Sequential([keras.layers.Dense(3, "tanh"), keras.layers.Dense(CLASSES)])
    model.compile(loss=sparse_softmax())
    data = tf.data.Dataset.from_tensor_slices(classes_data(30)).batch(7)
    history = Trainer().fit(model, data, epochs=2, verbose=0).history
    assert history["step_size"] != [0, 0]
