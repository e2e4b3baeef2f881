# SPDX-License-Identifier: Apache-2.0
"""ExactSoftmaxHead: the full softmax's loss, and its gradient without bias."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from heads.taken_step import take_step
from variants import product

import tfx_largeout as tlo
from tfx_largeout.losses import SoftmaxCrossentropy
from tfx_largeout.optimizers import RowAdagrad, RowAdam, RowSGD

CLASSES, WIDTH, EXAMPLES = 40, 6, 48
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
SEVERAL = np.where(RNG.random((EXAMPLES, 3)) < 0.3, -1, RNG.integers(0, CLASSES, (EXAMPLES, 3)))
SEVERAL[:, 0] = LABELS
WEIGHTS = RNG.random(EXAMPLES).astype("float32")


def exact(optimizer=None, num_selected=8, **arguments):
    arguments = {"seed": 5, **arguments}
    optimizer = optimizer or RowAdam(0.05)
    return tlo.heads.ExactSoftmaxHead(CLASSES, optimizer, num_selected, **arguments)


def model_with(head, loss=None, optimizer="sgd"):
    keras.utils.set_random_seed(1)
    trunk = keras.layers.Dense(WIDTH, "tanh", kernel_initializer="glorot_normal")
    model = keras.Sequential([keras.Input((WIDTH,)), trunk, head])
    model.compile(optimizer, loss=loss or SoftmaxCrossentropy())
    return model


OPTIMIZERS = {
    "sgd": (lambda: RowSGD(0.5), lambda: keras.optimizers.SGD(0.5)),
    "adagrad": (lambda: RowAdagrad(0.1), lambda: keras.optimizers.Adagrad(0.1)),
    "adam": (lambda: RowAdam(0.01), lambda: keras.optimizers.Adam(0.01)),
}
BACKWARD = {
    "selected": {"num_selected": CLASSES},
    "all": {"num_selected": None, "backward": "all"},
}


@pytest.mark.parametrize(
    ("optimizer", "several", "rows"), product(list(OPTIMIZERS), [True, False], list(BACKWARD))
)
def test_with_all_classes_it_is_the_dense_head(optimizer, several, rows):
    """200 steps against Keras's optimizer on every weight."""
    (row, dense), backward = OPTIMIZERS[optimizer], BACKWARD[rows]
    data = tf.data.Dataset.from_tensor_slices((X, SEVERAL if several else LABELS, WEIGHTS))
    loss = SoftmaxCrossentropy(log_partition_penalty=0.01)
    models = [
        model_with(exact(row(), model_rate=None, **backward), loss, dense()),
        model_with(tlo.heads.DenseHead(CLASSES), loss, dense()),
    ]
    ours, theirs = ([*m.layers[0].weights, m.layers[1].kernel, m.layers[1].bias] for m in models)
    for weight, value in zip(ours, theirs, strict=True):
        weight.assign(value)
    for model in models:
        model.fit(data.batch(16).repeat(67), verbose=0)
    for weight, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-3, atol=2e-4)


def gradients(head, hidden, labels, loss, draws):
    """Yields the loss, dL/dh, and dL/dW and dL/db as a step of SGD with rate 1 shows them."""
    before = head.kernel.numpy(), head.bias.numpy()

    @tf.function(autograph=False)
    def step():
        return take_step(head, loss, hidden, labels, WEIGHTS)

    for _ in range(draws):
        found = [x.numpy() for x in step()]
        after = head.kernel.numpy(), head.bias.numpy()
        head.kernel.assign(before[0])
        head.bias.assign(before[1])
        yield *found, before[0] - after[0], before[1] - after[1]


@pytest.mark.parametrize("labels", [LABELS, SEVERAL], ids=["one", "several"])
def test_loss_exact_and_gradient_without_bias(labels):
    loss = SoftmaxCrossentropy(log_partition_penalty=0.05)
    head, dense = exact(RowSGD(1.0)), tlo.heads.DenseHead(CLASSES)
    hidden = tf.constant(X)
    head.build(X.shape)
    dense.build(X.shape)
    dense.kernel.assign(head.kernel)
    dense.bias.assign(RNG.normal(size=CLASSES))
    head.bias.assign(dense.bias)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = loss(labels, dense(hidden, training=True), WEIGHTS)
    sources = [hidden, dense.kernel.value, dense.bias.value]
    expected = [tf.convert_to_tensor(g).numpy() for g in tape.gradient(value, sources)]
    draws = list(gradients(head, hidden, labels, loss, 100))
    np.testing.assert_allclose([draw[0] for draw in draws], value.numpy(), rtol=1e-6)
    for ours, theirs in zip(list(zip(*draws, strict=True))[1:], expected, strict=True):
        error = np.std(ours, axis=0) / np.sqrt(len(draws))
        assert np.all(np.abs(np.mean(ours, axis=0) - theirs) < 4.5 * error + 1e-6)
        assert error.max() > 1e-5


def test_only_some_rows_change():
    head = exact(RowSGD(1.0), num_selected=1)
    hidden = tf.constant(X[:2])
    head.build(X.shape)
    before = head.kernel.numpy()
    take_step(head, SoftmaxCrossentropy(), hidden, LABELS[:2])
    changed = np.any(head.kernel.numpy() != before, axis=1)
    assert changed[LABELS[:2]].all()
    assert changed.sum() < 12


@pytest.mark.thorough
@pytest.mark.parametrize(
    "options",
    [
        {"num_selected": 8},
        {"num_selected": None, "backward": "all", "products": "bfloat16"},
        {"num_selected": 1},
        {"num_selected": CLASSES},
        {"num_selected": 8, "products": "bfloat16"},
    ],
)
def test_it_learns(options):
    keras.utils.set_random_seed(2)
    centres = np.random.default_rng(1).normal(size=(CLASSES, WIDTH))
    x = np.repeat(centres, 20, axis=0).astype("float32")
    labels = np.repeat(np.arange(CLASSES), 20)
    model = model_with(exact(RowAdam(0.05), **options), optimizer=keras.optimizers.Adam(0.01))
    before = model.evaluate(x, labels, verbose=0)
    model.fit(np.tile(x, (29, 1)), np.tile(labels, 29), 40, verbose=0)
    assert model.fit(x, labels, 40, verbose=0).history["loss"][0] < 0.25 * before
    assert model.evaluate(x, labels, verbose=0) < 0.25 * before


@pytest.mark.parametrize("options", [{}, {"num_selected": None, "backward": "all"}])
def test_a_refused_step_changes_nothing(options):
    head = exact(**options)
    head.build(X.shape)
    before = [v.numpy() for v in (*head.variables, *head.optimizer.variables)]
    for hidden in (np.full_like(X, np.nan), np.full_like(X, np.inf)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="hidden must be finite"):
            SoftmaxCrossentropy()(LABELS, head(hidden, training=True))
    for old, variable in zip(before, (*head.variables, *head.optimizer.variables), strict=True):
        np.testing.assert_array_equal(old, variable.numpy())


def test_a_partition_function_that_is_not_finite_is_refused():
    head = exact()
    head.build(X.shape)
    head.bias.assign(np.where(np.arange(CLASSES) == 7, np.inf, 0))
    before = head.kernel.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="log Z of the logits must be finite"):
        SoftmaxCrossentropy()(LABELS, head(X, training=True))
    np.testing.assert_array_equal(before, head.kernel.numpy())


def test_examples_of_weight_zero_touch_no_row():
    head = exact(RowAdam(0.1), num_selected=CLASSES)
    hidden = tf.constant(X[:2])
    head.build(X.shape)
    take_step(head, SoftmaxCrossentropy(), hidden, [3, 4], [0.0, 0.0])
    ages = next(slot for slot in head.slots_of(head.kernel) if slot.dtype == tf.uint32)
    assert not ages.numpy().any()


@pytest.mark.parametrize(
    ("num_selected", "message"),
    [
        (0, "num_selected must be an integer of at least 1; got 0"),
        (41, "num_selected must be at most num_classes=40; got 41"),
        (2.0, "num_selected must be an integer"),
    ],
)
def test_bad_num_selected(num_selected, message):
    with pytest.raises(ValueError, match=message):
        exact(num_selected=num_selected)


def test_defaults_and_config():
    head = tlo.heads.ExactSoftmaxHead(CLASSES, RowAdam(0.1))
    assert head.num_selected == CLASSES
    assert tlo.heads.ExactSoftmaxHead(1000, RowAdam(0.1)).num_selected == 256
    for head in (exact(products="bfloat16"), exact(num_selected=None, backward="all")):
        again = tlo.heads.ExactSoftmaxHead.from_config(head.get_config())
        assert again.get_config() == head.get_config()
        assert again.products == head.products


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"products": "float16"}, r"products must be .*; got 'float16'"),
        ({"backward": "some"}, r"backward must be .*; got 'some'"),
        ({"backward": "all"}, r"num_selected must be None where backward=.all.; got 8"),
    ],
)
def test_bad_choices(options, message):
    with pytest.raises(ValueError, match=message):
        exact(**options)


def test_a_step_without_a_model_is_traced_without_a_warning(caplog):
    head, hidden = exact(), tf.Variable(X)
    head.build(X.shape)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = SoftmaxCrossentropy()(LABELS, head(hidden, training=True))
        gradient = tape.gradient(value, hidden)
        head.take_step()
        return gradient

    logger = tf.get_logger()
    logger.addHandler(caplog.handler)
    try:
        step()
    finally:
        logger.removeHandler(caplog.handler)
    assert not caplog.records
