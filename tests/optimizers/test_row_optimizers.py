# SPDX-License-Identifier: Apache-2.0
"""The optimizers that touch only the rows which a gradient names, in models and custom loops."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.optimizers import FusedAdam, RowAdagrad, RowAdam, RowRMSprop, RowSGD
from tfx_largeout.optimizers.row_optimizer import RowOptimizer

ROWS, WIDTH = 20, 3
PAIRS = {
    "sgd": (lambda: RowSGD(0.1), lambda: keras.optimizers.SGD(0.1)),
    "momentum": (
        lambda: RowSGD(0.1, momentum=0.9),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    ),
    "nesterov": (
        lambda: RowSGD(0.1, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    ),
    "adagrad": (lambda: RowAdagrad(0.1), lambda: keras.optimizers.Adagrad(0.1)),
    "adam": (lambda: RowAdam(0.1), lambda: keras.optimizers.Adam(0.1)),
    "rmsprop": (lambda: RowRMSprop(0.1), lambda: keras.optimizers.Adam(0.1, beta_1=0.0)),
    "decay": (
        lambda: RowAdam(0.1, weight_decay=0.2),
        lambda: keras.optimizers.Adam(0.1, weight_decay=0.2),
    ),
}
every_pair = pytest.mark.parametrize("name", list(PAIRS))
OPTIMIZERS = ["sgd", "momentum", "adagrad", "adam", "rmsprop"]
every_optimizer = pytest.mark.parametrize("name", OPTIMIZERS)


def weight(rows=ROWS, width=WIDTH):
    initial = np.random.default_rng(3).normal(size=(rows, width)).astype("float32")
    return keras.Variable(initial, name="weight")


def slices(ids, seed, width=WIDTH):
    values = np.random.default_rng(seed).normal(size=(len(ids), width)).astype("float32")
    return tf.IndexedSlices(tf.constant(values), tf.constant(ids), tf.constant([ROWS, width]))


@every_pair
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "all rows"])
def test_touching_all_rows_is_keras_own_optimizer(name, sparse):
    own, theirs = (make() for make in PAIRS[name])
    left, right = weight(), weight()
    for step in range(5):
        gradient = slices(np.random.default_rng(step).permutation(ROWS), step)
        dense = tf.convert_to_tensor(gradient)
        own.apply([gradient if sparse else dense], [left])
        theirs.apply([dense], [right])
    # Keras computes 1 - beta_2^t in float32, which leaves it 4 or 5 digits.
    np.testing.assert_allclose(left.numpy(), right.numpy(), rtol=1e-4, atol=1e-5)


@every_optimizer
def test_rows_that_no_gradient_names_stay_with_all_their_slots(name):
    optimizer, variable = PAIRS[name][0](), weight()
    optimizer.build([variable])
    state = [v.numpy() for v in (variable, *optimizer.slots_of(variable))]
    optimizer.apply([slices([4, 7, 4], 1)], [variable])
    for before, now in zip(state, (variable, *optimizer.slots_of(variable)), strict=True):
        untouched = np.delete(np.arange(ROWS), [4, 7])
        np.testing.assert_array_equal(before[untouched], now.numpy()[untouched])
        assert not np.array_equal(before[[4, 7]], now.numpy()[[4, 7]])


@every_optimizer
def test_slices_of_one_row_are_added_up_first(name):
    left, right = weight(), weight()
    twice = slices([4, 7, 4], 1)
    once = tf.IndexedSlices(
        tf.stack([twice.values[0] + twice.values[2], twice.values[1]]), tf.constant([4, 7])
    )
    for _ in range(3):
        PAIRS[name][0]().apply([twice], [left])
        PAIRS[name][0]().apply([once], [right])
    np.testing.assert_allclose(left.numpy(), right.numpy(), rtol=1e-6, atol=1e-7)


@every_optimizer
@pytest.mark.parametrize("sparse", [False, True], ids=["dense", "sparse"])
def test_float64_weights_keep_their_digits(name, sparse):
    variable = keras.Variable(np.ones((ROWS, WIDTH)), dtype="float64")
    gradient = slices(np.arange(ROWS), 1)
    tiny = tf.IndexedSlices(1 + 1e-12 * tf.cast(gradient.values, tf.float64), gradient.indices)
    optimizer = PAIRS[name][0]()
    optimizer.apply([tiny if sparse else tiny.values], [variable])
    assert all(slot.dtype in (tf.float64, tf.uint32) for slot in optimizer.slots_of(variable))
    differences = variable.numpy() - variable.numpy()[0, 0]
    # The first step of these two depends only on the sign of the gradient.
    assert 0 < np.abs(differences).max() < 1e-11 or name in ("adam", "rmsprop")


def test_the_first_steps_of_a_late_row_are_as_long_as_those_of_an_early_one():
    optimizer, variable = RowAdam(0.1), weight()
    before = variable.numpy()
    gradient = tf.IndexedSlices(tf.ones([1, WIDTH]), tf.constant([0]), tf.constant([ROWS, WIDTH]))
    for _ in range(100):
        optimizer.apply([gradient], [variable])
    late = tf.IndexedSlices(tf.ones([1, WIDTH]), tf.constant([5]), tf.constant([ROWS, WIDTH]))
    optimizer.apply([late], [variable])
    np.testing.assert_allclose(variable.numpy()[5], before[5] - 0.1, rtol=1e-4)


def test_the_gradient_of_a_row_is_clipped_by_itself():
    variable = keras.Variable(np.zeros((ROWS, 2), "float32"))
    gradient = tf.IndexedSlices(tf.constant([[3.0, 4.0], [0.3, 0.4]]), tf.constant([1, 2]))
    RowSGD(1.0, row_clip_norm=1.0).apply([gradient], [variable])
    np.testing.assert_allclose(variable.numpy()[1:3], [[-0.6, -0.8], [-0.3, -0.4]], rtol=1e-6)


def test_only_touched_rows_decay():
    variable = keras.Variable(np.ones((ROWS, 2), "float32"))
    gradient = tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([1]))
    RowSGD(0.5, weight_decay=0.2).apply([gradient], [variable])
    expected = np.ones((ROWS, 2))
    expected[1] = 0.9
    np.testing.assert_allclose(variable.numpy(), expected, rtol=1e-6)


def test_what_is_excluded_from_weight_decay_does_not_decay():
    kernel, bias = (keras.Variable(np.ones((ROWS, 2), "float32"), name=n) for n in ("k", "bias"))
    optimizer = RowSGD(0.5, weight_decay=0.2)
    optimizer.exclude_from_weight_decay(var_names=["bias"])
    gradient = tf.IndexedSlices(tf.zeros([1, 2]), tf.constant([1]))
    optimizer.apply([gradient, gradient], [kernel, bias])
    np.testing.assert_allclose(kernel.numpy()[1], 0.9, rtol=1e-6)
    np.testing.assert_array_equal(bias.numpy(), 1)


def test_an_optimizer_of_ones_own_has_no_decay_and_no_clipping_by_default():
    class Own(RowOptimizer):
        @property
        def rule(self):
            return RowSGD().rule

    own = Own(0.1)
    assert (own.row_weight_decay, own.row_clip_norm) == (0.0, None)


def test_a_schedule_goes_by_the_steps_of_the_optimizer():
    schedule = keras.optimizers.schedules.PiecewiseConstantDecay([0], [1.0, 0.25])
    variable = keras.Variable(np.zeros((ROWS, 1), "float32"))
    gradient = tf.IndexedSlices(tf.ones([1, 1]), tf.constant([1]))
    optimizer = RowSGD(schedule)
    for expected in (-1.0, -1.25, -1.5):
        optimizer.apply([gradient], [variable])
        assert variable.numpy()[1, 0] == pytest.approx(expected)


def embedding_model(optimizer):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((4,), dtype="int64"),
            keras.layers.Embedding(ROWS, WIDTH),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="tanh"),
            tlo.heads.TFSampledSoftmaxHead(ROWS, num_sampled=10, seed=2),
        ]
    )
    model.compile(optimizer, loss=tlo.losses.TFCandidateSamplingLoss())
    return model


WORDS = np.random.default_rng(0).integers(0, ROWS, (64, 4))
NEXT = (WORDS.sum(axis=1) % ROWS).astype("int64")


@pytest.mark.thorough
@cases_of("name", OPTIMIZERS)
def test_a_model_with_embedding_and_a_head_of_tensorflow_trains(name):
    model = embedding_model(PAIRS[name][0]())
    before = model.evaluate(WORDS, NEXT, verbose=0)
    model.fit(WORDS, NEXT, epochs=20, verbose=0)
    assert model.evaluate(WORDS, NEXT, verbose=0) < 0.98 * before


@every_optimizer
def test_a_saved_model_goes_on_with_the_same_slots(name, tmp_path):
    model = embedding_model(PAIRS[name][0]())
    model.fit(WORDS, NEXT, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert loaded.optimizer.get_config() == model.optimizer.get_config()
    for a, b in zip(model.optimizer.variables, loaded.optimizer.variables, strict=True):
        np.testing.assert_array_equal(a.numpy(), b.numpy())


@pytest.mark.parametrize("name", OPTIMIZERS[1:])  # all that have slots
def test_slots_of_a_table_of_another_size_are_refused_and_none_is_loaded(name):
    optimizer, other = PAIRS[name][0](), PAIRS[name][0]()
    optimizer.build([keras.Variable(np.ones([ROWS, WIDTH], "float32"), name="table")])
    other.build([keras.Variable(np.ones([ROWS + 1, WIDTH], "float32"), name="table")])
    before = [keras.ops.convert_to_numpy(x) for x in optimizer.variables]
    store = {str(i): keras.ops.convert_to_numpy(x) + 7 for i, x in enumerate(other.variables)}
    with pytest.raises(ValueError, match=r"must have the shapes of Row.*saved was \(21"):
        optimizer.load_own_variables(store)
    for x, value in zip(optimizer.variables, before, strict=True):
        np.testing.assert_array_equal(x, value)


def test_sparse_dense_touches_only_the_features_of_the_batch():
    inputs = keras.Input((ROWS,), sparse=True)
    layer = tlo.layers.SparseDense(WIDTH)
    model = keras.Model(inputs, layer(inputs))
    model.compile(RowAdam(0.1), loss="mse")
    before = layer.kernel.numpy()
    x = tf.SparseTensor([[0, 2], [1, 5]], [1.0, 2.0], [2, ROWS])
    model.train_on_batch(x, np.ones((2, WIDTH)))
    changed = np.flatnonzero(np.any(layer.kernel.numpy() != before, axis=1))
    np.testing.assert_array_equal(changed, [2, 5])


def test_xla_is_refused():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.compile(RowSGD(0.1), loss="mse", jit_compile=True)
    with pytest.raises(RuntimeError, match="jit_compile=False"):
        model.fit(np.ones((4, 3)), np.ones((4, 2)), verbose=0)


@pytest.mark.each_of("message", str)
@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowSGD(-1.0), "learning_rate must be a finite number above 0; got -1.0"),
        (lambda: RowSGD(float("nan")), "learning_rate must be a finite number above 0; got nan"),
        (lambda: RowSGD(0.1, momentum=1.0), "momentum must be .* below 1; got 1.0"),
        (lambda: RowAdam(0.1, beta_1=-0.5), "beta_1 must be .* at least 0 .*; got -0.5"),
        (lambda: RowSGD(0.1, weight_decay=-1), "weight_decay must be .* at least 0; got -1"),
        (lambda: RowSGD(0.1, row_clip_norm=0), "row_clip_norm must be .* above 0; got 0"),
        (lambda: RowAdam(beta_1=1.0), "beta_1 must be .* below 1; got 1.0"),
        (lambda: RowAdam(beta_2=-0.1), "beta_2 must be .* at least 0 and below 1; got -0.1"),
        (lambda: RowAdam(epsilon=0), "epsilon must be .* above 0; got 0"),
        (lambda: RowAdagrad(initial_accumulator_value=-1), "initial_accumulator_value must be"),
        (lambda: RowRMSprop(rho=0), "rho must be .* above 0 and below 1; got 0"),
        (lambda: RowAdagrad(epsilon="x"), "epsilon must be .* above 0; got 'x'"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@every_optimizer
def test_config_round_trip(name):
    optimizer = PAIRS[name][0]()
    config = keras.optimizers.serialize(optimizer)
    assert keras.optimizers.deserialize(config).get_config() == optimizer.get_config()


def test_more_than_one_replica_is_refused(monkeypatch):
    weights = weight()
    monkeypatch.setattr(type(tf.distribute.get_strategy()), "num_replicas_in_sync", 2)
    message = r"row optimizers serve one replica, or workers.*; got num_replicas_in_sync=2"
    with pytest.raises(RuntimeError, match=message):
        RowAdam(0.1).apply([tf.ones_like(weights)], [weights])
    np.testing.assert_array_equal(weights, weight())


@pytest.mark.parametrize(
    "clip", [{"clipnorm": 0.5}, {"clipvalue": 0.3}, {"global_clipnorm": 0.7}], ids=lambda x: str(x)
)
@pytest.mark.parametrize("name", ["sgd", "momentum", "fused_adam", "amsgrad"])
def test_what_is_clipped_is_the_gradient_of_a_row_not_its_parts(name, clip):
    """Long slices that cancel, and short slices that add up."""
    own, theirs = {
        "sgd": (RowSGD(0.1, **clip), keras.optimizers.SGD(0.1, **clip)),
        "momentum": (RowSGD(0.1, 0.9, **clip), keras.optimizers.SGD(0.1, 0.9, **clip)),
        "fused_adam": (FusedAdam(0.1, **clip), keras.optimizers.Adam(0.1, **clip)),
        "amsgrad": (
            FusedAdam(0.1, amsgrad=True, **clip),
            keras.optimizers.Adam(0.1, amsgrad=True, **clip),
        ),
    }[name]
    left, right, other = weight(), weight(), weight(5, 2)
    others = [keras.Variable(other), keras.Variable(other)]
    ids = tf.constant([*range(ROWS), 4, 4, 7])
    values = np.random.default_rng(1).normal(size=(ROWS + 3, WIDTH)).astype("float32") / 5
    values[4], values[ROWS] = 3, -3
    gradient = tf.IndexedSlices(tf.constant(values), ids, tf.constant([ROWS, WIDTH]))
    for _ in range(2):
        for optimizer, weights, g in (
            (own, [left, others[0]], gradient),
            (theirs, [right, others[1]], tf.convert_to_tensor(gradient)),
        ):
            optimizer.apply([g, tf.ones([5, 2])], weights)
    np.testing.assert_allclose(left, right, atol=2e-5)
    np.testing.assert_allclose(*others, atol=2e-5)


@pytest.mark.parametrize("most", [0.7, 100.0])
@pytest.mark.parametrize("make", [RowAdam, RowRMSprop, RowAdagrad])
def test_a_common_norm_leaves_other_rows_alone(make, most):
    clipped, by_hand = make(0.1, global_clipnorm=most), make(0.1)
    weights = [[keras.Variable(weight()), keras.Variable(weight(5, 2))] for _ in range(2)]
    for rows in ([3, 1, 3], [7]):
        values, dense = np.arange(1.0, 3 * len(rows) + 1).reshape(-1, WIDTH), np.full([5, 2], -0.5)
        whole = np.zeros([ROWS, WIDTH])
        np.add.at(whole, rows, values)
        scale = min(most / np.sqrt((whole**2).sum() + (dense**2).sum()), 1)
        before = weights[0][0].numpy()
        for optimizer, own, factor in ((clipped, weights[0], 1), (by_hand, weights[1], scale)):
            slices = tf.IndexedSlices(tf.constant(factor * values, tf.float32), rows, [ROWS, WIDTH])
            optimizer.apply([slices, tf.constant(factor * dense, tf.float32)], own)
        moved = (weights[0][0].numpy() != before).any(axis=1)
        assert set(np.flatnonzero(moved)) == set(rows)
    for a, b in zip(*weights, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "dtype"),
    [(RowAdam, "bfloat16"), (RowAdam, "float32"), (FusedAdam, "bfloat16"), (FusedAdam, "float16")],
)
def test_steps_of_weights_that_lose_them_are_warned_of_once(make, dtype):
    table = tlo.layers.RowEmbedding(6, 3, dtype=dtype)
    model = keras.Sequential([keras.Input([2], dtype="int32"), table, keras.layers.Flatten()])
    model.compile(make(0.1), "mse", jit_compile=False)
    x, y = np.array([[1, 2], [3, 3]]), np.zeros([2, 6])
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        model.fit(x, y, epochs=2, verbose=0)
        model.fit(x[:1], y[:1], verbose=0)
    said = [str(w.message) for w in seen if f"trains weights in {dtype}" in str(w.message)]
    assert len(said) == (0 if dtype == "float32" else 1)
    assert all("mixed_bfloat16" in each for each in said)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("make", "documented"),
    [
        (RowSGD, {"learning_rate": 0.01, "momentum": 0, "weight_decay": 0}),
        (RowAdagrad, {"learning_rate": 0.01, "weight_decay": 0, "row_wise": False}),
        (RowAdam, {"learning_rate": 0.001, "beta_1": 0.9, "beta_2": 0.999, "weight_decay": 0}),
        (RowRMSprop, {"learning_rate": 0.001, "rho": 0.999}),
    ],
)
def test_defaults_are_those_of_the_documentation(make, documented):
    config = make().get_config()
    assert {name: pytest.approx(config[name]) for name in documented} == documented
