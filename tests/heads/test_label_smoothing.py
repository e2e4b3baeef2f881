# SPDX-License-Identifier: Apache-2.0
"""Label smoothing: the loss, its gradient, and the steps of the heads that train with it."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from heads.self_updating_dense import SelfUpdatingDense
from heads.taken_step import take_step
from oracles import softmax as oracle
from variants import product

import tfx_largeout as tlo
from tfx_largeout.losses import SoftmaxCrossentropy
from tfx_largeout.ops import class_rows
from tfx_largeout.optimizers import RowAdagrad, RowAdam, RowSGD
from tfx_largeout.statistics import MeanLogitStatistics

CLASSES, WIDTH, EXAMPLES, SMOOTHING = 40, 6, 48, 0.3
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
BIAS = RNG.normal(size=CLASSES).astype("float32")
KERNEL = RNG.normal(0.3, 1, size=(CLASSES, WIDTH)).astype("float32")
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
SEVERAL = np.where(RNG.random((EXAMPLES, 3)) < 0.3, -1, RNG.integers(0, CLASSES, (EXAMPLES, 3)))
SEVERAL[:, 0] = LABELS
WEIGHTS = np.where(RNG.random(EXAMPLES) < 0.2, 0, RNG.random(EXAMPLES)).astype("float32")
LOSS = SoftmaxCrossentropy(label_smoothing=SMOOTHING, reduction="sum")
SELECTED, ALL = {"num_selected": 8}, {"backward": "all"}

both_labels = pytest.mark.parametrize("labels", [LABELS, SEVERAL], ids=["one", "several"])


def lists_of(labels):
    return [np.unique(row[row >= 0]) for row in labels.reshape(len(labels), -1)]


def exact(optimizer=None, **arguments):
    head = tlo.heads.ExactSoftmaxHead(CLASSES, optimizer or RowSGD(1.0), **{"seed": 5, **arguments})
    head.build(X.shape)
    head.kernel.assign(KERNEL)
    if head.use_bias:
        head.bias.assign(BIAS)
    return head


def gradients(head, labels=LABELS, weights=WEIGHTS, loss=LOSS):
    """Returns the loss and dL/dh, and dL/dW and dL/db as a step of SGD with rate 1 shows them."""
    return falls_of(head, step_of(head, labels, weights, loss))


def step_of(head, labels, weights=WEIGHTS, loss=LOSS):
    hidden = tf.constant(X.astype(head.statistics_dtype))
    return lambda: take_step(head, loss, hidden, labels, weights)


def falls_of(head, step):
    """Returns the step's results and its decrease of W and b, which are then restored."""
    weights = [weight for weight in (head.kernel, head.bias) if weight is not None]
    before = [weight.numpy() for weight in weights]
    found = [x.numpy() for x in step()]
    falls = []
    for old, weight in zip(before, weights, strict=True):
        falls.append(old - weight.numpy())
        weight.assign(old)
    return *found, *falls


def expected_gradients(labels, weights=WEIGHTS):
    layer = X, KERNEL, BIAS, lists_of(labels)
    loss = weights @ oracle.cross_entropy(*layer, SMOOTHING)
    return loss, *oracle.gradients(*layer, weights, SMOOTHING)


# ExactSoftmaxHead


@both_labels
@pytest.mark.parametrize(
    ("options", "tolerance"),
    [
        (ALL, 1e-5),
        ({"num_selected": CLASSES}, 1e-5),
        ({**ALL, "dtype": "float64"}, 1e-12),
        ({"num_selected": CLASSES, "dtype": "float64"}, 1e-12),
        ({**ALL, "products": "bfloat16"}, 1e-2),
        ({"num_selected": CLASSES, "products": "bfloat16"}, 1e-2),
    ],
    ids=str,
)
def test_with_all_classes_it_is_the_full_softmax(labels, options, tolerance):
    head = exact(**options)
    loss = SoftmaxCrossentropy(
        label_smoothing=SMOOTHING, reduction="sum", dtype=head.statistics_dtype
    )
    got = gradients(head, labels, loss=loss)
    for ours, theirs in zip(got, expected_gradients(labels), strict=True):
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=tolerance * scale)


@pytest.mark.parametrize("options", [ALL, {"num_selected": CLASSES}, SELECTED], ids=str)
def test_composed_ops_do_the_same(options, monkeypatch):
    with_ops = gradients(exact(**options))
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")
    for ours, theirs in zip(gradients(exact(**options)), with_ops, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("several", "products"), product([True, False], ["float32", "bfloat16"]))
def test_selected_loss_exact_and_gradient_without_bias(several, products):
    labels = SEVERAL if several else LABELS
    head = exact(**SELECTED, products=products)
    expected = expected_gradients(labels)
    step = tf.function(step_of(head, labels), autograph=False)
    draws = [falls_of(head, step) for _ in range(100)]
    tolerance = 1e-6 if products == "float32" else 1e-2
    np.testing.assert_allclose([draw[0] for draw in draws], expected[0], rtol=tolerance)
    for ours, theirs in zip(list(zip(*draws, strict=True))[1:], expected[1:], strict=True):
        error = np.std(ours, axis=0) / np.sqrt(len(draws))
        rounding = tolerance * np.abs(theirs).max()
        assert np.all(np.abs(np.mean(ours, axis=0) - theirs) < 4 * error + rounding)
        assert error.max() > 1e-4


@keras.saving.register_keras_serializable(package="tfx_largeout_tests")
class MeanLogit(tlo.losses.HeadLoss):
    """A custom loss."""

    trains_on = evaluates_on = MeanLogitStatistics

    def from_statistics(self, statistics):
        return statistics.mean_logit


@pytest.mark.parametrize("options", [ALL, SELECTED], ids=str)
@pytest.mark.parametrize("training", [True, False])
def test_a_loss_of_ones_own(options, training):
    head, loss = exact(**options), MeanLogit(reduction="sum")
    expected = oracle.logits(X, KERNEL, BIAS).mean(axis=1)
    np.testing.assert_allclose(
        loss(LABELS, head(X, training=training), WEIGHTS), WEIGHTS @ expected, rtol=1e-5
    )
    _, hidden_gradient, kernel, bias = gradients(head, loss=loss)
    # Exact, whatever the rows get.
    expected = WEIGHTS[:, np.newaxis] * KERNEL.astype(np.float64).mean(axis=0)
    np.testing.assert_allclose(hidden_gradient, expected, rtol=1e-5, atol=1e-6)
    changed = np.flatnonzero(kernel.any(axis=1))
    if options is ALL:
        np.testing.assert_allclose(kernel, np.tile(WEIGHTS @ X / CLASSES, (CLASSES, 1)), atol=1e-5)
        np.testing.assert_allclose(bias, np.full(CLASSES, WEIGHTS.sum() / CLASSES), atol=1e-5)
    else:
        draws = EXAMPLES // 8 * 8
        np.testing.assert_array_equal(changed, np.flatnonzero(bias))
        # Each draw gives a row a whole share.
        times = bias / (WEIGHTS.sum() / draws)
        np.testing.assert_allclose(times, np.round(times), atol=1e-4)
        assert round(times.sum()) == draws
        np.testing.assert_allclose(kernel, np.outer(times, WEIGHTS @ X / draws), atol=1e-4)


def test_weights_of_both_signs():
    weights = RNG.normal(size=EXAMPLES).astype("float32")
    got = gradients(exact(num_selected=CLASSES), weights=weights)
    for ours, theirs in zip(got, expected_gradients(LABELS, weights), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=2e-5 * np.abs(theirs).max())


def test_without_a_bias():
    got = gradients(exact(num_selected=CLASSES, use_bias=False))
    layer = X, KERNEL, None, lists_of(LABELS)
    expected = WEIGHTS @ oracle.cross_entropy(*layer, SMOOTHING)
    expected = expected, *oracle.gradients(*layer, WEIGHTS, SMOOTHING)[:2]
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_a_row_is_stepped_once_though_it_comes_up_several_times():
    head = exact(RowAdam(0.1), num_selected=CLASSES)
    gradients(head, SEVERAL)
    (ages,) = (slot for slot in head.slots_of(head.kernel) if slot.dtype == tf.uint32)
    np.testing.assert_array_equal(ages.numpy(), 1)


def test_examples_of_weight_zero_touch_no_row():
    head = exact(RowAdam(0.1), **SELECTED)
    gradients(head, weights=np.zeros(EXAMPLES, "float32"))
    (ages,) = (slot for slot in head.slots_of(head.kernel) if slot.dtype == tf.uint32)
    assert not ages.numpy().any()


@pytest.mark.parametrize("options", [ALL, SELECTED], ids=str)
def test_no_examples(options):
    head, hidden = exact(**options), tf.zeros([0, WIDTH])
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = LOSS(np.zeros(0, np.int64), head(hidden, training=True))
    assert tape.gradient(value, hidden).shape == (0, WIDTH)
    np.testing.assert_array_equal(head.kernel.numpy(), KERNEL)


def test_equal_seeds_give_equal_steps():
    steps = [gradients(exact(**SELECTED, seed=seed)) for seed in (7, 7, 8)]
    for first, second in zip(steps[0], steps[1], strict=True):
        np.testing.assert_array_equal(first, second)
    assert np.any(steps[0][2] != steps[2][2])


def test_without_update_leaves_the_rows_alone_and_has_the_same_gradient():
    head = exact(**SELECTED)
    with head.without_update():
        _, looked, kernel, bias = gradients(head)
    assert not kernel.any()
    assert not bias.any()
    np.testing.assert_array_equal(gradients(head)[1], looked)


@pytest.mark.parametrize("options", [ALL, SELECTED], ids=str)
def test_a_mean_that_is_not_finite_is_refused_and_changes_nothing(options):
    head = exact(**options)
    head.bias.assign(np.where(np.arange(CLASSES) == 7, -np.inf, 0))
    with pytest.raises(tf.errors.InvalidArgumentError, match="the mean of the logits must be fini"):
        LOSS(LABELS, head(X, training=True))
    np.testing.assert_array_equal(head.kernel.numpy(), KERNEL)
    # Without smoothing this is a class that is never to be predicted.
    labels = np.zeros(EXAMPLES, np.int64)
    assert np.isfinite(SoftmaxCrossentropy()(labels, head(X, training=True)))


@pytest.mark.parametrize("options", [ALL, SELECTED], ids=str)
def test_a_gradient_that_is_not_finite_is_refused_and_changes_nothing(options):
    head = exact(**options)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"mean.* must be finite; got"):
        gradients(head, weights=np.where(np.arange(EXAMPLES) == 3, np.inf, 1), loss=MeanLogit())
    np.testing.assert_array_equal(head.kernel.numpy(), KERNEL)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("options", "row", "dense"),
    [
        (ALL, lambda: RowAdagrad(0.1), lambda: keras.optimizers.Adagrad(0.1)),
        ({"num_selected": CLASSES}, lambda: RowAdam(0.01), lambda: keras.optimizers.Adam(0.01)),
        (ALL, lambda: RowSGD(0.5), lambda: keras.optimizers.SGD(0.5)),
        (ALL, lambda: RowAdam(0.01), lambda: keras.optimizers.Adam(0.01)),
        ({"num_selected": CLASSES}, lambda: RowSGD(0.5), lambda: keras.optimizers.SGD(0.5)),
    ],
    ids=["all adagrad", "selected adam", "all sgd", "all adam", "selected sgd"],
)
def test_with_all_classes_it_is_the_dense_head(options, row, dense):
    """200 steps against Keras's optimizer on every weight."""
    loss = SoftmaxCrossentropy(log_partition_penalty=0.01, label_smoothing=0.1)
    heads = [exact(row(), model_rate=None, **options), tlo.heads.DenseHead(CLASSES)]
    models = []
    for head in heads:
        trunk = keras.layers.Dense(WIDTH, "tanh", kernel_initializer="identity")
        model = keras.Sequential([keras.Input((WIDTH,)), trunk, head])
        model.compile(dense(), loss=loss)
        models.append(model)
    heads[1].set_weights([KERNEL, BIAS])
    data = tf.data.Dataset.from_tensor_slices((X, SEVERAL, WEIGHTS)).batch(16).repeat(67)
    for model in models:
        model.fit(data, verbose=0)
    ours, theirs = ([*m.layers[0].weights, m.layers[1].kernel, m.layers[1].bias] for m in models)
    for weight, expected in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(weight.numpy(), expected.numpy(), rtol=1e-3, atol=2e-4)


def types_of(loss, options):
    head, hidden = exact(**options), tf.Variable(X)

    @tf.function(autograph=False)
    def step():
        with tf.GradientTape() as tape:
            value = loss(LABELS, head(hidden, training=True))
        return tape.gradient(value, hidden)

    graph = step.get_concrete_function().graph
    functions = [graph._get_function(name).graph for name in graph._functions]
    return [op.type for each in (graph, *functions) for op in each.get_operations()]


@pytest.mark.parametrize("options", [ALL, SELECTED], ids=str)
@pytest.mark.cpu
def test_without_smoothing_nothing_of_it_is_in_the_graph(options):
    if not tlo.library_status().startswith("custom ops loaded"):
        pytest.skip("custom ops are switched off")
    new = {"TfxMeanOfRows", "StatelessRandomUniformIntV2"}
    assert not new & set(types_of(SoftmaxCrossentropy(), options))
    assert new & set(types_of(LOSS, options))


# Other heads


@both_labels
def test_dense_head_has_the_loss_and_gradient(labels):
    head = tlo.heads.DenseHead(CLASSES)
    head.build(X.shape)
    head.set_weights([KERNEL, BIAS])
    hidden = tf.constant(X)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = LOSS(labels, head(hidden, training=True), WEIGHTS)
    sources = [hidden, head.kernel.value, head.bias.value]
    got = [value, *map(tf.convert_to_tensor, tape.gradient(value, sources))]
    for ours, theirs in zip(got, expected_gradients(labels), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=0, atol=1e-5 * np.abs(theirs).max())


def test_it_is_the_smoothing_of_keras():
    head = tlo.heads.DenseHead(CLASSES)
    logits = head(X)
    keras_loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=SMOOTHING)
    one_hot = keras.ops.one_hot(LABELS, CLASSES)
    for training in (True, False):
        ours = SoftmaxCrossentropy(label_smoothing=SMOOTHING)(LABELS, head(X, training=training))
        np.testing.assert_allclose(ours, keras_loss(one_hot, logits), rtol=1e-5)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_evaluation_shares_the_pass_of_the_metrics(run_eagerly, monkeypatch):
    passes, given = [], class_rows.streamed_logits

    def counted(*args, **kwargs):
        passes.append(1)
        return given(*args, **kwargs)

    monkeypatch.setattr(class_rows, "streamed_logits", counted)
    model = keras.Sequential([keras.Input((WIDTH,)), exact(**SELECTED)])
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.ExactLoss()]
    loss = SoftmaxCrossentropy(label_smoothing=SMOOTHING)
    model.compile("sgd", loss, weighted_metrics=metrics, run_eagerly=run_eagerly)
    got = model.evaluate(X, LABELS, EXAMPLES, verbose=0, return_dict=True)
    assert len(passes) == 1
    layer = X, KERNEL, BIAS, lists_of(LABELS)
    assert got["loss"] == pytest.approx(oracle.cross_entropy(*layer, SMOOTHING).mean(), rel=1e-5)
    assert got["exact_loss"] == pytest.approx(oracle.cross_entropy(*layer).mean(), rel=1e-5)


@pytest.mark.parametrize(
    "head",
    [
        lambda: tlo.heads.SampledHead(CLASSES, tlo.samplers.Uniform(5), RowSGD(0.1)),
        lambda: tlo.heads.FactoredHead(CLASSES, 0.1),
        lambda: tlo.heads.HierarchicalSoftmaxHead(CLASSES, RowSGD(0.1)),
        lambda: SelfUpdatingDense(CLASSES),
    ],
)
def test_heads_that_do_not_give_the_mean_logit_in_training_say_so(head):
    message = "SoftmaxCrossentropy needs MeanLogitStatistics; got .*, which gives"
    with pytest.raises(TypeError, match=message):
        LOSS(LABELS, head()(X, training=True))
