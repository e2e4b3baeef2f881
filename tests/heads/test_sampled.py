# SPDX-License-Identifier: Apache-2.0
"""SampledHead: candidates, updates of touched rows, state."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import product, thorough

import tfx_largeout as tlo
from tfx_largeout.labels import normalize_labels
from tfx_largeout.losses import ComplementarySum, NoiseContrastive, SampledSoftmax
from tfx_largeout.optimizers import RowAdagrad, RowAdam, RowSGD
from tfx_largeout.samplers import LogUniform, Uniform
from tfx_largeout.statistics import CandidateStatistics

CLASSES, WIDTH, EXAMPLES = 30, 4, 64
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
OPTIMIZERS = {
    "sgd": lambda: RowSGD(0.5),
    "momentum": lambda: RowSGD(0.1, momentum=0.9),
    "adagrad": lambda: RowAdagrad(0.1),
    "adam": lambda: RowAdam(0.05),
}


def model_with(head, loss=None, layers=(), run_eagerly=False, optimizer="sgd"):
    model = keras.Sequential([keras.Input((WIDTH,)), *layers, head])
    model.compile(optimizer, loss=loss or ComplementarySum(), run_eagerly=run_eagerly)
    return model


def sampled(sampler=None, optimizer=None, **arguments):
    keras.utils.set_random_seed(1)
    arguments = {"seed": 7, **arguments}
    return tlo.heads.SampledHead(
        CLASSES, sampler or Uniform(8), optimizer or RowAdam(0.05), **arguments
    )


def state_of(model):
    head = model.layers[-1]
    return [v.numpy() for v in (*model.variables, *head.optimizer.variables)]


def fit(model, **arguments):
    return model.fit(X, LABELS, batch_size=16, shuffle=False, verbose=0, **arguments).history


DENSE_OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.5),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adam": lambda: keras.optimizers.Adam(0.05),
}


@pytest.mark.parametrize(("name", "eagerly"), product(list(DENSE_OPTIMIZERS), [False, True]))
def test_with_all_classes_as_candidates_it_is_the_full_softmax(name, eagerly):
    """Also for hidden layers: h gets the gradient of the weights before the step."""
    loss, optimizer = tlo.losses.SoftmaxCrossentropy(), DENSE_OPTIMIZERS[name]()
    trunks = [keras.layers.Dense(WIDTH) for _ in range(2)]
    head = sampled(Uniform(CLASSES), OPTIMIZERS[name](), model_rate=None)
    model = model_with(
        head, layers=trunks[:1], run_eagerly=eagerly, optimizer=DENSE_OPTIMIZERS[name]()
    )
    full = model_with(tlo.heads.DenseHead(CLASSES), loss, layers=trunks[1:], optimizer=optimizer)
    full.layers[-1].kernel.assign(head.kernel)
    trunks[1].kernel.assign(trunks[0].kernel)
    losses, expected = fit(model, epochs=3)["loss"], fit(full, epochs=3)["loss"]
    np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for left, right in (trunks, (head, full.layers[-1])):
        for part in ("kernel", "bias"):
            ours, theirs = getattr(left, part).numpy(), getattr(right, part).numpy()
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "per_example"), product(list(OPTIMIZERS), [False, True]))
def test_only_rows_of_labels_and_candidates_change(name, per_example):
    head = sampled(Uniform(3, per_example=per_example), OPTIMIZERS[name]())
    model = model_with(head, run_eagerly=True)
    before = head.kernel.numpy(), head.bias.numpy()
    labels = normalize_labels(LABELS[:5], CLASSES)
    candidates = head.candidates(tf.constant(X[:5]), labels).ids.numpy()
    model.train_on_batch(X[:5], LABELS[:5])
    touched = np.union1d(candidates, LABELS[:5])
    changed = np.flatnonzero(np.any(head.kernel.numpy() != before[0], axis=1))
    np.testing.assert_array_equal(changed, touched)
    np.testing.assert_array_equal(np.flatnonzero(head.bias.numpy() != before[1]), touched)


@pytest.mark.thorough
def test_the_same_seed_gives_the_same_run():
    runs = []
    for seed in (3, 3, 4):
        model = model_with(sampled(LogUniform(8), seed=seed))
        fit(model, epochs=2)
        runs.append(model.layers[-1].kernel.numpy())
    np.testing.assert_array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])


def test_candidates_differ_from_step_to_step():
    head = sampled()
    model_with(head)
    labels = normalize_labels(LABELS[:5], CLASSES)
    first = head.candidates(tf.constant(X[:5]), labels).ids.numpy()
    np.testing.assert_array_equal(first, head.candidates(tf.constant(X[:5]), labels).ids)
    head.optimizer.iterations.assign_add(1)
    assert not np.array_equal(first, head.candidates(tf.constant(X[:5]), labels).ids)


def by_keras_file(model, make, folder):
    model.save(folder / "model.keras")
    return keras.saving.load_model(folder / "model.keras")


def by_weights(model, make, folder):
    model.save_weights(folder / "model.weights.h5")
    other = make()
    other.load_weights(folder / "model.weights.h5")
    return other


def by_checkpoint(model, make, folder):
    path = tf.train.Checkpoint(model=model).save(str(folder / "checkpoint"))
    other = make()
    other.fit(X[:1], LABELS[:1], verbose=0)
    tf.train.Checkpoint(model=other).restore(path).assert_consumed()
    return other


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("name", "save"), product(list(OPTIMIZERS), [by_keras_file, by_weights, by_checkpoint])
)
def test_a_restored_run_goes_on_bit_by_bit(name, save, tmp_path):
    def make():
        return model_with(sampled(LogUniform(8), OPTIMIZERS[name]()))

    model = make()
    fit(model, epochs=2)
    restored = save(model, make, tmp_path)
    fit(model, epochs=2)
    fit(restored, epochs=2)
    for ours, theirs in zip(state_of(model), state_of(restored), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_explicit_classes_are_there_in_every_step_and_once():
    head = sampled(Uniform(20), explicit_classes=[17, 2, 29])
    model_with(head)
    labels = normalize_labels(np.array([[2, 5], [6, -1]]), CLASSES)
    drawn = head.candidates(tf.constant(X[:2]), labels)
    ids = drawn.ids.numpy()
    np.testing.assert_array_equal(ids[:3], [2, 17, 29])
    assert not np.isin(ids[3:], [2, 17, 29]).any()
    valid = ids[ids >= 0]
    assert len(set(valid)) == len(valid)
    np.testing.assert_array_equal(drawn.log_expected[:3], np.zeros(3))
    np.testing.assert_array_equal(drawn.log_expected.numpy()[ids < 0], 0)
    expected = np.log(20 / CLASSES)
    np.testing.assert_allclose(drawn.true_log_expected, [[0, expected], [expected, 0]], rtol=1e-5)
    head = sampled(Uniform(20, per_example=True), explicit_classes=[17, 2])
    model_with(head)
    ids = head.candidates(tf.constant(X[:2]), labels).ids.numpy()
    np.testing.assert_array_equal(ids[:, :2], [[2, 17], [2, 17]])
    assert not np.isin(ids[:, 2:], [2, 17]).any()


def test_explicit_classes_make_the_sum_of_all_classes_exact():
    explicit = list(range(0, CLASSES, 2))
    head = sampled(Uniform(CLASSES), RowSGD(1e-9), explicit_classes=explicit)
    model = model_with(head, run_eagerly=True)
    exact = model.evaluate(X, LABELS, verbose=0)
    assert fit(model)["loss"][0] == pytest.approx(exact, rel=1e-5)


def test_noise_contrastive_estimation_learns_the_log_partition():
    head = sampled(Uniform(8), initial_log_partition=1.5)
    model = model_with(head, NoiseContrastive(log_partition="learned"), run_eagerly=True)
    assert float(head.gradient_anchor) == 1.5
    fit(model, epochs=1)
    assert float(head.gradient_anchor) != 1.5
    model = model_with(sampled(Uniform(8)), NoiseContrastive(), run_eagerly=True)
    fit(model, epochs=1)
    assert float(model.layers[-1].gradient_anchor) == 0


def test_a_frozen_head_still_passes_the_gradient_on_and_draws():
    head = sampled()
    model = model_with(head, layers=[keras.layers.Dense(WIDTH)], run_eagerly=True)
    head.trainable = False
    trunk = model.layers[0].kernel.numpy()
    fit(model)
    assert int(head.optimizer.iterations) == 4
    assert not np.array_equal(model.layers[0].kernel.numpy(), trunk)


def test_without_update_the_gradient_leaves_everything_alone():
    head = sampled()
    model = model_with(head)
    before = state_of(model)
    labels = normalize_labels(LABELS, CLASSES)
    hidden = tf.constant(X)
    gradients = []
    for draw in (0, 1, 1):
        with head.without_update(draw), tf.GradientTape() as tape:
            tape.watch(hidden)
            statistics = head.statistics(CandidateStatistics, hidden, labels, training=True)
            value = ComplementarySum().from_statistics(statistics)
        gradients.append(tape.gradient(value, hidden).numpy())
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)
    np.testing.assert_array_equal(gradients[1], gradients[2])
    assert not np.array_equal(gradients[0], gradients[1])


def test_a_schedule_goes_by_the_steps_of_the_head():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([3], [0.5, 0.0001])
    head = sampled(optimizer=RowSGD(schedule))
    model = model_with(head, run_eagerly=True)
    fit(model)  # 4 steps, all at the first rate
    before = head.kernel.numpy()
    fit(model)
    assert np.abs(head.kernel.numpy() - before).max() < 1e-3
    assert int(head.optimizer.iterations) == 8


def test_tensorflows_own_triple_is_taken():
    head = sampled(tlo.samplers.TFSampler(tf.random.log_uniform_candidate_sampler, 8))
    model = model_with(head, SampledSoftmax())
    before = model.evaluate(X, LABELS, verbose=0)
    model.fit(np.tile(X, (30, 1)), np.tile(LABELS, 30), batch_size=16, verbose=0)
    assert model.evaluate(X, LABELS, verbose=0) < 0.8 * before


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_hidden_activation_that_is_not_finite_changes_nothing(bad):
    model = model_with(sampled(), run_eagerly=True)
    fit(model)
    before = state_of(model)
    x = X[:4].copy()
    x[2, 1] = bad
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
        model.loss(LABELS[:4], model(x, training=True))
    for a, b in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"sampler": "uniform"}, TypeError, "sampler must be a Sampler; got 'uniform'"),
        ({"optimizer": "adam"}, TypeError, "optimizer must be a RowOptimizer; got 'adam'"),
        ({"optimizer": keras.optimizers.Adam()}, TypeError, "optimizer must be a RowOptimizer"),
        ({"explicit_classes": [3, 3]}, ValueError, "must not repeat a class"),
        ({"explicit_classes": [CLASSES]}, ValueError, f"less than num_classes={CLASSES}; got"),
        ({"explicit_classes": [-1]}, ValueError, "explicit_classes must be an integer of at least"),
        ({"seed": -1}, ValueError, "seed must be an integer of at least 0; got -1"),
        ({"seed": 2**32}, ValueError, "seed must be less than"),
    ],
)
def test_arguments_are_checked(arguments, error, message):
    with pytest.raises(error, match=message):
        sampled(**arguments)


def test_an_optimizer_serves_one_head():
    optimizer = RowAdam(0.1)
    model_with(sampled(optimizer=optimizer))
    with pytest.raises(ValueError, match="serves no other layer"):
        sampled(optimizer=optimizer)


def test_more_candidates_than_classes_are_refused():
    with pytest.raises(ValueError, match="num_sampled"):
        model_with(sampled(Uniform(CLASSES + 1)))


def test_config_round_trip():
    head = sampled(LogUniform(5), RowAdagrad(0.2), explicit_classes=[4, 1])
    again = tlo.heads.SampledHead.from_config(head.get_config())
    assert again.get_config() == head.get_config()
    assert again.seed == 7 and again.explicit_classes == (4, 1)


@pytest.mark.parametrize("how", [{"var_names": ["bias"]}, {"var_list": [keras.Variable(1.0)]}])
def test_an_optimizer_that_excludes_weights_from_decay_is_refused(how):
    head = tlo.heads.SampledHead(9, Uniform(3), RowAdam(0.1, weight_decay=0.1))
    head.optimizer.exclude_from_weight_decay(**how)
    with pytest.raises(ValueError, match="must not have exclude_from_weight_decay"):
        head.build((None, 4))
    assert not head.optimizer.built
    without = tlo.heads.SampledHead(9, Uniform(3), RowAdam(0.1))
    without.optimizer.exclude_from_weight_decay(**how)
    without.build((None, 4))


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras 3.15")
def test_an_optimizer_without_a_rate_of_its_own_goes_with_model_rate_none():
    optimizers = keras.optimizers
    parts = optimizers.OptimizerMap(optimizers.SGD(0.5), {"dense.*": optimizers.SGD(0.1)})

    def trained(**options):
        head = tlo.heads.SampledHead(
            20, tlo.samplers.Uniform(5), tlo.optimizers.RowAdam(0.1), **options
        )
        model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), head])
        optimizer = optimizers.MultiOptimizer(parts)
        model.compile(optimizer, tlo.losses.SampledSoftmax(), run_eagerly=True)
        before = head.kernel.numpy()
        model.fit(np.ones((8, 3), "float32"), np.arange(8), verbose=0)
        return np.abs(head.kernel.numpy() - before).max()

    assert trained(model_rate=None) > 0.05
    with pytest.raises(ValueError, match=r"model_rate of head .* must be None .* MultiOptimizer"):
        trained()


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras 3.15")
@pytest.mark.parametrize("has_input", [False, *thorough(True)])
def test_parts_of_the_models_optimizer_accumulate_gradients(has_input):
    kernels = []
    for eagerly in (False, True):
        keras.utils.set_random_seed(3)
        sampler, optimizer = tlo.samplers.Uniform(5), tlo.optimizers.RowSGD(0.1)
        head = tlo.heads.SampledHead(20, sampler, optimizer, seed=1, model_rate=None)
        inputs = [keras.Input([3])] if has_input else []
        model = keras.Sequential([*inputs, keras.layers.Dense(4), head])
        part = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
        of_model = keras.optimizers.MultiOptimizer(lambda variable, part=part: part)
        model.compile(of_model, tlo.losses.SampledSoftmax(), run_eagerly=eagerly)
        x = np.random.default_rng(0).normal(size=(32, 3)).astype("float32")
        model.fit(x, np.arange(32) % 20, batch_size=8, verbose=0, shuffle=False)
        assert head.optimizer.iterations == 2
        kernels.append([layer.kernel.numpy() for layer in model.layers])
    for graph, eager in zip(*kernels, strict=True):
        np.testing.assert_allclose(graph, eager, rtol=1e-6)


@pytest.mark.skipif(not hasattr(keras.optimizers, "MultiOptimizer"), reason="Keras 3.15")
def test_a_part_of_the_models_optimizer_that_averages_weights_is_refused():
    part = keras.optimizers.SGD(0.1, use_ema=True, name="averaging")
    head = tlo.heads.SampledHead(
        20, tlo.samplers.Uniform(5), tlo.optimizers.RowAdam(0.1), model_rate=None
    )
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(4), head])
    optimizer = keras.optimizers.MultiOptimizer(lambda variable: part)
    model.compile(optimizer, tlo.losses.SampledSoftmax())
    before = [weight.numpy() for weight in model.trainable_weights]
    with pytest.raises(ValueError, match=r"average over steps; got the optimizer 'averaging'"):
        model.fit(np.ones((8, 3), "float32"), np.arange(8), verbose=0)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        np.testing.assert_array_equal(weight.numpy(), old)
