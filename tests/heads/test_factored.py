# SPDX-License-Identifier: Apache-2.0
"""FactoredHead is the dense layer that SGD trains, and can be looked at, saved and resumed."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
import tensorflow as tf
from heads.taken_step import take_step
from ops.factored_layer import reanchor
from oracles import factored_update as oracle
from variants import product, thorough

import tfx_largeout as tlo
from tfx_largeout.heads import FactoredHead
from tfx_largeout.heads.base import head_output
from tfx_largeout.statistics import SphericalStatistics

CLASSES, WIDTH, BATCH = 30, 5, 16


def normal(seed=1, scale=0.3):
    return keras.initializers.RandomNormal(stddev=scale, seed=seed)


def data(count=64, dtype="float32"):
    rng = np.random.default_rng(0)
    return rng.normal(size=(count, WIDTH)).astype(dtype), rng.integers(0, CLASSES, count)


def model_with(head, loss=None, optimizer=None, **arguments):
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), head])
    optimizer = optimizer or keras.optimizers.SGD(0.2)
    model.compile(optimizer, loss or tlo.losses.TaylorSoftmax(), **arguments)
    return model


def state_of(head):
    return [variable.numpy() for variable in head.state]


def stepped_head(**arguments):
    """A head after two steps, and their loss."""
    head, loss = FactoredHead(CLASSES, 0.5, **arguments), tlo.losses.TaylorSoftmax()
    x, labels = data()
    for part in np.split(np.arange(len(x)), 2):
        take_step(head, loss, tf.constant(x[part]), labels[part])
    return head, loss


LOSSES = {
    "squared_error": (tlo.losses.SquaredError(), 0.1),
    "spherical_softmax": (tlo.losses.SphericalSoftmax(0.1), 0.2),
    "taylor_softmax": (tlo.losses.TaylorSoftmax(), 0.5),
    "z_loss": (tlo.losses.ZLoss(), 0.5),
}


@pytest.mark.parametrize(
    ("name", "use_bias", "weight_decay"), product(list(LOSSES), [False, True], [0.0, 0.05])
)
def test_trains_as_a_dense_layer_under_sgd(name, use_bias, weight_decay):
    loss, rate = LOSSES[name]
    x, labels = data()
    weights = np.random.default_rng(1).uniform(0, 2, len(x))
    arguments = {"use_bias": use_bias, "kernel_initializer": normal()}
    own = FactoredHead(CLASSES, tlo.optimizers.RowSGD(rate, weight_decay=weight_decay), **arguments)
    naive = tlo.heads.DenseHead(CLASSES, **arguments)
    models = [
        model_with(head, loss, keras.optimizers.SGD(rate, weight_decay=decay))
        for head, decay in ((own, None), (naive, weight_decay))
    ]
    # The optimizer decays all that it trains: only the head is to be decayed here.
    models[1].optimizer.exclude_from_weight_decay(var_list=models[1].layers[0].weights)
    batches = tf.data.Dataset.from_tensor_slices((x, labels, weights.astype("float32")))
    for model in models:
        model.fit(batches.batch(BATCH).repeat(3), verbose=0)
    kernel, bias = own.materialize()
    np.testing.assert_allclose(kernel, naive.kernel.numpy(), rtol=2e-4, atol=2e-5)
    if use_bias:
        np.testing.assert_allclose(bias, naive.bias.numpy(), rtol=2e-4, atol=2e-5)
    trunks = [model.layers[0].kernel.numpy() for model in models]
    np.testing.assert_allclose(*trunks, rtol=2e-4, atol=2e-5)
    values = [model.evaluate(x, labels, verbose=0) for model in models]
    np.testing.assert_allclose(*values, rtol=1e-5)
    drift = own.drift()
    assert max(drift) < 1e-5


def test_float64_follows_the_oracle():
    x, labels = data(dtype="float64")
    head = FactoredHead(CLASSES, 0.25, dtype="float64", kernel_initializer=normal())
    head.build((None, WIDTH))
    weights, _ = head.materialize()
    for start in range(0, 64, BATCH):
        hidden = tf.constant(x[start : start + BATCH])
        rows = labels[start : start + BATCH]
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            output = head_output(head(hidden, training=True))
            statistics = output.statistics(SphericalStatistics, rows)
            values = [tf.identity(x) for x in statistics[1:4]]
            with tf.GradientTape() as inner:
                inner.watch(values)
                own = SphericalStatistics(statistics.labels, *values, CLASSES)
                loss = tf.reduce_sum(tlo.losses.TaylorSoftmax().from_statistics(own))
            gradients = [g.numpy() for g in inner.gradient(loss, values)]
        gradient = tape.gradient(loss, hidden)
        head.take_step()
        weights, expected = oracle.naive_step(
            weights, hidden.numpy(), rows[:, np.newaxis], gradients, 0.25
        )
        np.testing.assert_allclose(gradient, expected, rtol=1e-10, atol=1e-12)
        np.testing.assert_allclose(head.materialize()[0], weights, rtol=1e-10, atol=1e-12)
    assert head.state.v.dtype == "float64"


def test_a_step_with_two_tapes_takes_each_gradient_at_the_present_weights():
    x, labels = data(BATCH)
    head = FactoredHead(CLASSES, 0.5, kernel_initializer=normal())
    hidden = tf.constant(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(hidden)
        loss = tlo.losses.TaylorSoftmax()(labels, head(hidden, training=True))
    for _ in range(5):
        tape.gradient(loss, hidden)
        head.take_step()
    assert int(head.optimizer.iterations) == 5
    assert max(head.drift()) < 1e-5


# The learning rate


def test_a_schedule_follows_the_steps_of_the_head():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([1, 2], [0.5, 0.25, 0.125])
    x, labels = data()
    ends = []
    for own in (True, False):
        rate = schedule if own else 0.5
        head = FactoredHead(CLASSES, rate, kernel_initializer=normal())
        model = model_with(head)
        for step, value in enumerate([0.5, 0.5, 0.25, 0.125]):
            if not own:
                head.optimizer.learning_rate = value
            part = slice(step * BATCH, (step + 1) * BATCH)
            model.train_on_batch(x[part], labels[part])
        ends.append(head.materialize()[0])
    np.testing.assert_array_equal(*ends)
    head = FactoredHead(CLASSES, schedule)
    assert float(head.optimizer.learning_rate) == 0.5
    with pytest.raises(TypeError, match="created with a `LearningRateSchedule`"):
        head.optimizer.learning_rate = 0.1
    copy = FactoredHead.from_config(head.get_config())
    assert copy.get_config() == head.get_config()
    assert isinstance(
        copy.optimizer._learning_rate, keras.optimizers.schedules.PiecewiseConstantDecay
    )


@pytest.mark.parametrize("rate", [0, -1.0, float("nan"), float("inf")])
def test_bad_learning_rates(rate):
    with pytest.raises(ValueError, match="learning_rate must be a finite number above 0; got"):
        FactoredHead(CLASSES, rate)


def test_bad_arguments():
    with pytest.raises(ValueError, match="weight_decay must be a finite number at least 0; got -1"):
        FactoredHead(CLASSES, tlo.optimizers.RowSGD(0.5, weight_decay=-1))
    with pytest.raises(ValueError, match=r"stabilization must be one of .lazy.*got .often."):
        FactoredHead(CLASSES, 0.5, stabilization="often")
    with pytest.raises(ValueError, match="must be known"):
        FactoredHead(CLASSES, 0.5).build((None, None))


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_hidden_activations_that_are_not_finite_are_refused(value):
    (x, labels), (head, loss) = data(), stepped_head()
    before = state_of(head)
    x[3, 2] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match="hidden must be finite"):
        loss(labels, head(x, training=True))
    for old, new in zip(before, state_of(head), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_step_that_diverges_is_refused():
    x, labels = data()
    head = FactoredHead(CLASSES, 1e4)
    model = model_with(head, tlo.losses.SquaredError())
    before = state_of(head)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)learning_rate.*lambda_max"):
        model.fit(x, labels, verbose=0)
    for old, new in zip(before, state_of(head), strict=True):
        np.testing.assert_array_equal(old, new)
    assert int(head.optimizer.iterations) == 0


# The weights


@pytest.mark.parametrize("use_bias", [False, True])
def test_to_dense_and_set_dense_weights(use_bias):
    head, _ = stepped_head(use_bias=use_bias, bias_initializer=normal(2))
    hidden, _ = data()
    dense = head.to_dense(activation="relu")
    np.testing.assert_allclose(dense(hidden), np.maximum(head(hidden), 0), rtol=1e-4, atol=1e-6)
    other = FactoredHead(CLASSES, 0.1, use_bias=use_bias)
    other.build((None, WIDTH))
    other.set_dense_weights(*head.materialize())
    np.testing.assert_allclose(other(hidden), head(hidden), rtol=1e-4, atol=1e-6)
    assert max(other.drift()) < 1e-6


def test_logits_of_stale_rows():
    x, labels = data()
    head, loss = FactoredHead(CLASSES, 0.5, kernel_initializer=normal()), tlo.losses.TaylorSoftmax()
    for _ in range(4):
        take_step(head, loss, tf.constant(x[:BATCH]), labels[:BATCH])
        reanchor(head.state)
    stale, means = head(x), head.mean_logit(tf.constant(x))
    assert np.count_nonzero(head.state.slot_rows.numpy()) > 1  # a call settles nothing
    kernel, _ = head.materialize()
    np.testing.assert_allclose(stale, x @ kernel.T, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(means, np.mean(stale, axis=1), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(head(x), stale, rtol=1e-4, atol=1e-5)


def test_refresh_mends_what_has_drifted():
    head, _ = stepped_head(use_bias=True, kernel_initializer=normal())
    kernel, bias = head.materialize()
    head.state.gram.assign(1.1 * head.state.gram.value)
    head.state.row_sum.assign(1.1 * head.state.row_sum.value)
    head.state.u_inverse_transpose.assign(1.2 * head.state.u_inverse_transpose.value)
    assert head.drift().gram == pytest.approx(0.1, rel=1e-3)
    assert head.drift().inverse == pytest.approx(0.2, rel=1e-3)
    head.refresh()
    assert max(head.drift()) < 1e-6
    for own, old in zip(head.materialize(), (kernel, bias), strict=True):
        np.testing.assert_array_equal(own, old)
    whole = np.concatenate([kernel, bias[:, np.newaxis]], axis=1).astype("float64")
    np.testing.assert_allclose(head.state.row_sum, whole.sum(axis=0), rtol=1e-5, atol=1e-5)


def test_metrics_rank_as_the_logits_do():
    x, labels = data()
    head, _ = stepped_head(use_bias=True, kernel_initializer=normal())
    y_pred = head(x)
    best = np.argsort(-y_pred.numpy(), axis=1)[:, :3]
    precision, loss = tlo.metrics.PrecisionAtK(3)(labels, y_pred), tlo.metrics.ExactLoss()
    assert float(precision) == pytest.approx((best == labels[:, None]).sum() / best.size)
    exact = keras.losses.SparseCategoricalCrossentropy(from_logits=True)(labels, y_pred.numpy())
    assert float(loss(labels, y_pred)) == pytest.approx(float(exact), rel=1e-5)
    np.testing.assert_array_equal(tlo.TopK(head, 3)(x)[1], best)


# Numerical safety


def trained(stabilization, rate, dtype, steps=600):
    """Squared error on positive h: U shrinks along the mean direction."""
    rng = np.random.default_rng(0)
    rate = float(np.float32(rate))
    head = FactoredHead(
        CLASSES, rate, stabilization=stabilization, dtype=dtype, kernel_initializer=normal()
    )
    head.build((None, WIDTH))
    weights = head.materialize()[0].astype("float64")
    loss = tlo.losses.SquaredError(reduction="sum", dtype=dtype)
    step = tf.function(functools.partial(take_step, head, loss), autograph=False)
    for _ in range(steps):
        hidden = np.abs(rng.normal(size=(8, WIDTH))).astype("float32").astype(dtype)
        labels = rng.integers(0, CLASSES, (8, 1))
        step(tf.constant(hidden), tf.constant(labels))
        gradients = (-2 * np.ones((8, 1)), np.ones(8), np.zeros(8))
        weights, _ = oracle.naive_step(weights, hidden.astype("float64"), labels, gradients, rate)
    return head, weights


@pytest.mark.parametrize("dtype", ["float32", *thorough("float64")])
def test_lazy_reanchoring_keeps_the_weights_right(dtype):
    head, weights = trained("lazy", 0.01, dtype)
    error = np.linalg.norm(head.materialize()[0] - weights) / np.linalg.norm(weights)
    assert error < {"float32": 1e-5, "float64": 1e-12}[dtype]
    assert max(head.drift()) < {"float32": 1e-4, "float64": 1e-12}[dtype]
    assert head.condition_number() < 1000
    assert int(head.optimizer.iterations) == 600


# In float32 the paper's methods lose the weights here: the range that they allow is too wide.
@pytest.mark.parametrize("method", ["svd", *thorough("power_iteration")])
def test_the_papers_stabilization_keeps_the_weights_right_in_float64(method):
    head, weights = trained(method, 0.001, "float64")
    error = np.linalg.norm(head.materialize()[0] - weights) / np.linalg.norm(weights)
    assert error < 1e-6
    values = np.linalg.svd(head.state.u.numpy())[1]
    assert values.min() > 0.001 and values.max() < 100
    assert int(head.optimizer.iterations) == 600


@pytest.mark.parametrize("method", ["svd", "power_iteration"])
def test_singular_values_out_of_range_become_one(method):
    from tfx_largeout.ops.factored.singular_value_stabilization import stabilize

    rng = np.random.default_rng(0)
    head = FactoredHead(CLASSES, 0.1, dtype="float64", kernel_initializer=normal())
    head.build((None, 6))
    left, right = (np.linalg.qr(rng.normal(size=(6, 6)))[0] for _ in range(2))
    u = left @ np.diag([1e4, 500.0, 3.0, 0.5, 1e-4, 1e-5]) @ right
    head.state.u.assign(u)
    head.state.u_inverse_transpose.assign(np.linalg.inv(u).T)
    head.refresh()
    before = head.materialize()[0]
    stabilize(head.state, method, CLASSES)
    np.testing.assert_allclose(head.materialize()[0], before, rtol=1e-8, atol=1e-8)
    values = np.linalg.svd(head.state.u.numpy())[1]
    np.testing.assert_allclose(values, [3, 1, 1, 1, 1, 0.5], rtol=1e-6)
    assert head.drift().inverse < 1e-6


# Saving


def test_shapes_that_changed_are_refused_at_restore(tmp_path):
    model = model_with(FactoredHead(CLASSES, 0.5), run_eagerly=True)
    model.fit(*data(), verbose=0)
    model.save_weights(tmp_path / "model.weights.h5")
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    other = model_with(FactoredHead(CLASSES + 1, 0.5))
    with pytest.raises(ValueError, match=r"(?s)\(31, 5\).*\(30, 5\)"):
        other.load_weights(tmp_path / "model.weights.h5")
    with pytest.raises(ValueError, match=r"shape \(30.*shape \(31"):
        tf.train.Checkpoint(model=other).restore(path)


RUN = """
import os, sys
import keras, numpy as np, tensorflow as tf, tfx_largeout as tlo
from ops.factored_layer import reanchor
folder, start, end, kill = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "kill"
keras.utils.set_random_seed(1)
rate = keras.optimizers.schedules.ExponentialDecay(2.0, 10, 0.9)
head = tlo.heads.FactoredHead(40, tlo.optimizers.RowSGD(rate, weight_decay=1e-3), use_bias=True)
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(6, activation="relu"), head])
model.compile(keras.optimizers.Adam(0.01), tlo.losses.SphericalSoftmax(0.1))
rng = np.random.default_rng(0)
x = rng.normal(size=(60, 16, 6)).astype("float32")
y = rng.integers(0, 40, (60, 16))
checkpoint = tf.train.Checkpoint(model=model)
if start:
    model.train_on_batch(x[0], y[0])  # makes the optimizer's variables
    checkpoint.restore(folder + "/state-1").assert_consumed()
for step in range(start, end):
    model.train_on_batch(x[step], y[step])
    if step % 7 == 0:
        reanchor(head.state)
checkpoint.save(folder + "/state") if kill else None
if kill:
    os.kill(os.getpid(), 9)
np.savez(folder + "/end.npz", *[np.asarray(v) for v in model.variables + model.optimizer.variables])
"""


def run(folder, start, end, mode):
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", RUN, str(folder), str(start), str(end), mode]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.run(command, capture_output=True, text=True, env=environment)


@pytest.mark.thorough  # tests/faults kills runs in a quick one, too
@pytest.mark.cpu
def test_a_killed_run_goes_on_bit_for_bit(tmp_path):
    killed = run(tmp_path / "killed", 0, 25, "kill")
    assert killed.returncode == -9, killed.stderr[-2000:]
    resumed = run(tmp_path / "killed", 25, 50, "finish")
    assert resumed.returncode == 0, resumed.stderr[-2000:]
    straight = run(tmp_path / "straight", 0, 50, "finish")
    assert straight.returncode == 0, straight.stderr[-2000:]
    ends = [np.load(tmp_path / name / "end.npz") for name in ("killed", "straight")]
    assert len(ends[0].files) > 18
    for name in ends[0].files:
        np.testing.assert_array_equal(ends[0][name], ends[1][name])
