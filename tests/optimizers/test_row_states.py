# SPDX-License-Identifier: Apache-2.0
"""Heads, tables and their slots in fewer bytes: training, saving, resuming, resizing, errors."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles.row_update import update_row

import tfx_largeout as tlo
from tfx_largeout.distribute.class_shard import ClassShard, mark_as_shard
from tfx_largeout.memory import sum_of
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.optimizers import RowAdagrad, RowAdam, RowRMSprop, RowSGD
from tfx_largeout.optimizers.row_optimizer import RowOptimizer

CLASSES, WIDTH, EXAMPLES = 40, 6, 48
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
OPTIMIZERS = {
    "sgd": lambda: RowSGD(0.5, stochastic_rounding=True, seed=1),
    "momentum": lambda: RowSGD(0.1, 0.9, True, moment_dtype="bfloat16", compensation=True, seed=1),
    "adagrad": lambda: RowAdagrad(0.2, row_wise=True, stochastic_rounding=True, seed=1),
    "compensated adagrad": lambda: RowAdagrad(0.2, compensation=True),
    "adam": lambda: RowAdam(
        0.02, row_wise=True, moment_dtype="bfloat16", stochastic_rounding=True, seed=1
    ),
    "two moments": lambda: RowAdam(0.02, moment_dtype="bfloat16", compensation=True, seed=1),
}
every_optimizer = pytest.mark.parametrize("name", list(OPTIMIZERS))


def sampled(optimizer, classes=CLASSES, **arguments):
    arguments = {"dtype": "bfloat16", "seed": 3, **arguments}
    return tlo.heads.SampledHead(classes, tlo.samplers.Uniform(10), optimizer, **arguments)


def exact(optimizer, **arguments):
    return tlo.heads.ExactSoftmaxHead(CLASSES, optimizer, dtype="bfloat16", seed=3, **arguments)


HEADS = {
    "sampled": (sampled, tlo.losses.SampledSoftmax),
    "selected": (lambda o: exact(o, num_selected=8), tlo.losses.SoftmaxCrossentropy),
    "all": (
        lambda o: exact(o, num_selected=None, backward="all"),
        tlo.losses.SoftmaxCrossentropy,
    ),
    "cosine": (
        lambda o: exact(o, use_bias=False, cosine_scale=8.0),
        tlo.losses.SoftmaxCrossentropy,
    ),
    "hierarchical": (
        lambda o: tlo.heads.HierarchicalSoftmaxHead(CLASSES, o, dtype="bfloat16"),
        tlo.losses.NegativeLogLikelihood,
    ),
}


def model_with(head, loss, optimizer="sgd"):
    keras.utils.set_random_seed(1)
    trunk = keras.layers.Dense(WIDTH, "tanh")
    model = keras.Sequential([keras.Input((WIDTH,)), trunk, head])
    model.compile(optimizer, loss=loss())
    return model


def fit(model, epochs=1):
    return model.fit(X, LABELS, batch_size=16, epochs=epochs, shuffle=False, verbose=0)


def state(model):
    head = model.layers[-1]
    variables = [*model.weights, *model.optimizer.variables]
    variables += getattr(head, "optimizer", model.optimizer).variables
    return [keras.ops.convert_to_numpy(v).astype("float64") for v in variables]


def assert_same(left, right):
    for one, other in zip(left, right, strict=True):
        np.testing.assert_array_equal(one, other)


def bytes_a_class(head):
    """The bytes of all variables of a head and its optimizer, including scalars."""
    variables = {id(v): v for v in (*head.variables, *head.optimizer.variables)}
    sizes = [np.prod(v.shape) * tf.as_dtype(v.dtype).size for v in variables.values()]
    return sum(sizes) / head.num_classes


@pytest.mark.parametrize(
    ("optimizer", "most"),
    [
        (lambda: RowAdagrad(row_wise=True, stochastic_rounding=True), lambda d: 2 * d + 12),
        (lambda: RowAdagrad(row_wise=True, compensation=True), lambda d: 4 * d + 16),
        (
            lambda: RowAdam(row_wise=True, moment_dtype="bfloat16", stochastic_rounding=True),
            lambda d: 4 * d + 24,
        ),
        (
            lambda: RowAdam(moment_dtype="bfloat16", stochastic_rounding=True),
            lambda d: 6 * d + 20,
        ),
    ],
)
def test_bytes_a_class(optimizer, most):
    for width in (1, 16):
        head = sampled(optimizer(), classes=1000)
        estimate = sampled(optimizer(), classes=1000).weights_of(width)
        head.build((None, width))
        assert bytes_a_class(head) <= most(width)
        assert sum_of(estimate) == pytest.approx(1000 * bytes_a_class(head), abs=100)


@every_optimizer
@pytest.mark.parametrize("kind", list(HEADS))
def test_heads_train_without_a_warning_and_the_fallback_takes_the_same_steps(
    kind, name, monkeypatch
):
    make, loss = HEADS[kind]
    after_a_step = []
    for fallback in ("0", "1"):
        monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", fallback)
        keras.utils.set_random_seed(1)  # the head draws a seed for its initial weights
        model = model_with(make(OPTIMIZERS[name]()), loss)
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*trains weights in bfloat16")
            model.train_on_batch(X[:16], LABELS[:16])
        after_a_step.append(np.concatenate([x.ravel() for x in state(model)]))
        history = fit(model, 4).history["loss"]
        assert history[-1] < history[0]
    # Sums in another order differ by a rounding of float32, by which some round the other way.
    left, right = after_a_step
    assert np.mean(np.abs(left - right) <= 1e-5 * (1 + np.abs(left))) > 0.98


def tied(optimizer):
    table = tlo.layers.RowEmbedding(CLASSES, WIDTH, dtype="bfloat16", name="table")
    head = tlo.heads.TiedSampledHead(table, tlo.samplers.Uniform(10), dtype="bfloat16", seed=3)
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [keras.Input([2], dtype="int32"), table, keras.layers.GlobalAveragePooling1D(), head]
    )
    model.compile(optimizer, tlo.losses.SampledSoftmax(), jit_compile=False)
    return model


@every_optimizer
def test_a_tied_table_trains(name):
    model, words = tied(OPTIMIZERS[name]()), np.stack([LABELS, LABELS[::-1]], axis=1)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*trains weights in bfloat16")
        history = model.fit(words, LABELS, epochs=20, verbose=0).history["loss"]
    assert history[-1] < 0.95 * history[0]
    assert model.layers[0].embeddings.dtype == "bfloat16"


OF_MODELS = {**OPTIMIZERS, "rmsprop": lambda: RowRMSprop(0.02, stochastic_rounding=True, seed=1)}


@pytest.mark.parametrize("name", list(OF_MODELS))
def test_dense_gradients_and_slices_take_the_same_steps(name, monkeypatch):
    """Also for the second of two tables, which has every second class from 1 on."""
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")
    shard, rng, found = ClassShard(1, 2), np.random.default_rng(0), []
    start = rng.normal(size=(20, 5))
    steps = [(rng.permutation(20), rng.normal(size=(20, 5)).astype("float32")) for _ in range(4)]
    for takes_slices in (False, True):
        tables = [keras.Variable(start, dtype="bfloat16") for _ in range(2)]
        optimizer = OF_MODELS[name]()
        mark_as_shard(tables[1], shard)
        for ids, values in steps:
            gradient = tf.constant(values)
            if takes_slices:
                gradient = tf.IndexedSlices(tf.gather(gradient, ids), tf.constant(ids), [20, 5])
            optimizer.apply([gradient, gradient], tables)
        bits = optimizer.rule_of(tables[1]).random_bits
        assert not optimizer.rule_of(tables[1]).is_random or bits[2:] == (1, shard)
        variables = [*tables, *optimizer.variables]
        found.append([keras.ops.convert_to_numpy(v).astype("float64") for v in variables])
    assert_same(*found)


@pytest.mark.parametrize("make", [RowAdagrad, RowAdam])
def test_row_wise_slots_of_a_head_follow_the_definition(make):
    """A step of a head whose gradient a second head with SGD shows."""
    heads = [sampled(o, dtype="float32") for o in (RowSGD(1.0), make(0.1, row_wise=True))]
    models = [model_with(head, tlo.losses.SampledSoftmax) for head in heads]
    models[1].layers[-1].set_weights(models[0].layers[-1].get_weights())
    before = heads[0].kernel.numpy().astype("float64")
    for model in models:
        model.train_on_batch(X, LABELS)
    gradient = before - heads[0].kernel.numpy()
    rule = heads[1].optimizer.rule
    slots = [np.zeros(slot.shape) for slot in heads[1].slots_of(heads[1].kernel)]
    if make is RowAdagrad:
        slots[0][:] = 0.1
    for row in np.flatnonzero(np.any(gradient, axis=1)):
        update_row(before, slots, row, gradient[row], rule, 0.1)
    np.testing.assert_allclose(heads[1].kernel.numpy(), before, rtol=1e-4, atol=1e-5)
    for slot, expected in zip(heads[1].slots_of(heads[1].kernel), slots, strict=True):
        np.testing.assert_allclose(slot.numpy(), expected, rtol=1e-4, atol=1e-6)


@every_optimizer
@pytest.mark.parametrize("kind", ["head", "tied"])
@pytest.mark.cpu
def test_a_saved_model_goes_on_bit_for_bit(kind, name, tmp_path):
    def go_on(model):
        if kind == "head":
            return fit(model)
        words = np.stack([LABELS, LABELS[::-1]], axis=1)
        return model.fit(words, LABELS, batch_size=16, shuffle=False, verbose=0)

    optimizer = OPTIMIZERS[name]()
    head = kind == "head"
    model = model_with(sampled(optimizer), tlo.losses.SampledSoftmax) if head else tied(optimizer)
    go_on(model)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_same(state(model), state(loaded))
    go_on(model)
    go_on(loaded)
    assert_same(state(model), state(loaded))


@every_optimizer
def test_slots_follow_classes_that_stay(name):
    model = model_with(sampled(OPTIMIZERS[name]()), tlo.losses.SampledSoftmax)
    fit(model)
    keep = np.array([7, 3, 29, 0])
    other = tlo.resize_classes(model, 12, keep)
    old, new = model.layers[-1], other.layers[-1]
    for weight, own in ((old.kernel, new.kernel), (old.bias, new.bias)):
        before = [weight, *old.slots_of(weight)]
        for left, right in zip(before, [own, *new.slots_of(own)], strict=True):
            left, right = (tf.cast(x, tf.float64).numpy() for x in (left, right))
            assert right.shape == (12, *left.shape[1:])
            np.testing.assert_array_equal(right[:4], left[keep])
    other.fit(X, LABELS % 12, verbose=0)


def test_other_weights_do_not_get_what_rounding_left_of_those_before():
    model = model_with(sampled(RowAdam(0.2, compensation=True)), tlo.losses.SampledSoftmax)
    head = model.layers[-1]
    fit(model)

    def slots(weight):
        return [tf.cast(slot, tf.float32).numpy() for slot in head.slots_of(weight)]

    before = [slots(head.kernel), slots(head.bias)]
    assert all(np.any(slot) for slot in before[0])
    head.set_dense_weights(np.zeros(head.kernel.shape), np.zeros(head.bias.shape))
    for weight, (*moments, _) in zip((head.kernel, head.bias), before, strict=True):
        *same, errors = slots(weight)
        assert not np.any(errors)
        for slot, moment in zip(same, moments, strict=True):
            np.testing.assert_array_equal(slot, moment)


def test_a_head_in_place_of_a_dense_layer():
    inputs = keras.Input((WIDTH,))
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(inputs))
    head = sampled(OPTIMIZERS["adagrad"](), use_bias=True)
    other = tlo.replace_output(model, head)
    other.compile("sgd", tlo.losses.SampledSoftmax())
    fit(other)
    assert head.kernel.dtype == "bfloat16"


def test_the_seed_is_drawn_once_and_only_where_bits_are_random():
    assert RowAdam().seed is None
    assert RowAdam(compensation=True).seed is None
    drawn = RowAdam(moment_dtype="bfloat16")
    again = RowAdam.from_config(drawn.get_config())
    assert drawn.seed == again.seed is not None
    assert RowSGD(stochastic_rounding=True, seed=5).seed == 5


def test_other_seeds_and_steps_have_other_bits():
    def rounded(seed, steps):
        table = keras.Variable(np.ones([50, 8]), dtype="bfloat16")
        optimizer = RowSGD(1.0, stochastic_rounding=True, seed=seed)
        optimizer.build([table])
        optimizer.iterations.assign(steps)
        optimizer.apply([tf.fill([50, 8], 2.0**-10)], [table])
        return keras.ops.convert_to_numpy(table).astype("float64")

    np.testing.assert_array_equal(rounded(1, 0), rounded(1, 0))
    for other in (rounded(2, 0), rounded(1, 1)):
        assert np.mean(rounded(1, 0) != other) > 0.1
    for seed in (0, 1, 2**32 - 1):
        optimizer = RowSGD(stochastic_rounding=True, seed=seed)
        table = keras.Variable(np.ones([3, 2]), dtype="bfloat16")
        optimizer.build([table])
        assert optimizer.in_this_step(optimizer.rule, table).random_bits.seed == seed


def test_weights_of_other_dtypes_are_left_as_they_are_beside_those_of_bfloat16():
    pair = [keras.Variable(np.ones([4, 3]), dtype=d, name=d) for d in ("bfloat16", "float32")]
    optimizer = RowSGD(0.1, compensation=True)
    optimizer.apply([tf.fill([4, 3], 2.0**-12)] * 2, pair)
    assert [len(optimizer.slots_of(variable)) for variable in pair] == [1, 0]
    np.testing.assert_array_equal(pair[1], np.float32(1 - 0.1 * 2.0**-12))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: RowSGD(np.float32(-1)), "learning_rate must be a finite number above 0; got"),
        (lambda: RowSGD(stochastic_rounding=1), "stochastic_rounding must be True or False; got 1"),
        (lambda: RowSGD(compensation="yes"), "compensation must be True or False; got 'yes'"),
        (
            lambda: RowAdam(stochastic_rounding=True, compensation=True),
            "stochastic_rounding must be False with compensation; got both True",
        ),
        (lambda: RowAdam(moment_dtype="float16"), "moment_dtype must be one of .*'float16'"),
        (
            lambda: RowAdagrad(moment_dtype="bfloat16"),
            "moment_dtype must be 'float32' for RowAdagrad, which has no moments; got 'bfloat16'",
        ),
        (lambda: RowRMSprop(moment_dtype="bfloat16"), "for RowRMSprop, which has no moments"),
        (lambda: RowSGD(moment_dtype="bfloat16"), "moment_dtype .* without momentum; got"),
        (lambda: RowAdam(row_wise="v"), "row_wise must be True or False; got 'v'"),
        (lambda: RowAdam(stochastic_rounding=True, seed=-1), "seed must be .*got -1"),
        (lambda: RowAdam(stochastic_rounding=True, seed=2**32), "seed must be .*got 4294967296"),
    ],
)
def test_arguments_are_checked(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("option", ["stochastic_rounding", "compensation"])
def test_weights_that_are_not_bfloat16_are_refused(option):
    optimizer = RowAdagrad(**{option: True})
    head = sampled(optimizer, dtype="float32")
    message = f"{option} of RowAdagrad 'row_adagrad' must be False where no weights are bfloat16; "
    with pytest.raises(ValueError, match=f"{message}got weights of float32"):
        head.build((None, 4))
    assert not head.built and not head.variables
    with pytest.raises(ValueError, match="must be False where no weights are bfloat16"):
        RowAdam(**{option: True}).build([keras.Variable(np.ones([3, 2]), dtype="float64")])
    with pytest.raises(ValueError, match="must be without stochastic_rounding and compensation"):
        tlo.heads.FactoredHead(9, RowSGD(0.1, **{option: True}))


def test_a_rule_of_an_optimizer_of_ones_own_keeps_its_options():
    class Own(RowOptimizer):
        @property
        def rule(self):
            return RowRule("adagrad", (1e-3,), row_wise=True)

    own, table = Own(0.1), keras.Variable(np.ones([3, 2]))
    own.apply([tf.ones([3, 2])], [table])
    assert [slot.shape for slot in own.slots_of(table)] == [[3]]
