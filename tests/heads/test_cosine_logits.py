# SPDX-License-Identifier: Apache-2.0
"""Logits s cos(theta) and their margins: losses, gradients, steps, and who reads the rows."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import margins as oracle
from oracles import softmax

import tfx_largeout as tlo
from tfx_largeout.losses import (
    ActiveSetSoftmax,
    ComplementarySum,
    SampledSoftmax,
    SoftmaxCrossentropy,
)
from tfx_largeout.optimizers import RowAdam, RowSGD
from tfx_largeout.statistics import MarginStatistics

CLASSES, WIDTH, EXAMPLES, SCALE = 30, 6, 24, 12.0
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH))
KERNEL = RNG.normal(size=(CLASSES, WIDTH))
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
X[0] = -KERNEL[LABELS[0]] + 0.1  # beyond pi - a
SEVERAL = np.where(RNG.random((EXAMPLES, 3)) < 0.3, -1, RNG.integers(0, CLASSES, (EXAMPLES, 3)))
SEVERAL[:, 0] = LABELS
WEIGHTS = np.where(RNG.random(EXAMPLES) < 0.2, 0, RNG.random(EXAMPLES)).astype("float32")
MARGINS = {"none": (0, 0), "cosine": (0.35, 0), "angular": (0, 0.5), "both": (0.1, 0.3)}


def dense(optimizer=None, **arguments):
    return tlo.heads.DenseHead(CLASSES, **arguments)


def exact(optimizer=None, **arguments):
    optimizer = optimizer or RowSGD(1.0)
    return tlo.heads.ExactSoftmaxHead(CLASSES, optimizer, backward="all", **arguments)


def selected(optimizer=None, **arguments):
    optimizer = optimizer or RowSGD(1.0)
    return tlo.heads.ExactSoftmaxHead(CLASSES, optimizer, num_selected=CLASSES, **arguments)


def sampled(optimizer=None, num_sampled=CLASSES, **arguments):
    optimizer, sampler = optimizer or RowSGD(1.0), tlo.samplers.Uniform(num_sampled)
    return tlo.heads.SampledHead(CLASSES, sampler, optimizer, seed=1, **arguments)


HEADS = {"dense": dense, "exact": exact, "selected": selected, "sampled": sampled}
every_head = pytest.mark.parametrize("make", list(HEADS))


def made(make, kernel=KERNEL, **arguments):
    """Returns a head with the rows of a kernel, built."""
    head = HEADS[make](**{"cosine_scale": SCALE, **arguments})
    head.build((None, kernel.shape[1]))
    head.set_dense_weights(kernel, np.zeros(CLASSES) if head.use_bias else None)
    return head


def loss_for(make, cosine_margin=0.0, angular_margin=0.0, **arguments):
    kind = ActiveSetSoftmax if make == "sampled" else SoftmaxCrossentropy
    arguments = {"reduction": "sum", "dtype": "float64", **arguments}
    return kind(cosine_margin=cosine_margin, angular_margin=angular_margin, **arguments)


def lists_of(labels):
    return [np.unique(row[row >= 0]) for row in labels.reshape(len(labels), -1)]


def step(head, loss, labels, weights=WEIGHTS):
    """Takes an SGD step with rate 1; returns the loss, and its gradients by h and by log s."""
    hidden = tf.constant(X, head.statistics_dtype)
    watched = [hidden, *([head.log_scale.value] if head.learn_scale else [])]
    is_dense = isinstance(head, tlo.heads.DenseHead)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = loss(labels, head(hidden, training=True), weights)
    *gradients, of_kernel = tape.gradient(value, [*watched, head.kernel.value])
    if is_dense:
        keras.optimizers.SGD(1.0).apply([of_kernel], [head.kernel])
    else:
        head.take_step()
    return value.numpy(), *(g.numpy() for g in gradients)


@every_head
@pytest.mark.parametrize("margin", list(MARGINS))
@pytest.mark.parametrize("labels", [LABELS, SEVERAL], ids=["one", "several"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_loss_gradients_and_step_are_those_of_the_definition(make, margin, labels, dtype):
    head = made(make, dtype=dtype, learn_scale=True)
    got = step(head, loss_for(make, *MARGINS[margin]), labels)
    arguments = lists_of(labels), WEIGHTS, SCALE, *MARGINS[margin]
    unit = oracle.directions(KERNEL)
    value, by_hidden, by_kernel, by_scale = oracle.gradients(X, unit, *arguments)
    rows = oracle.directions(unit - by_kernel)
    tolerance = 3e-5 if dtype == "float32" else 1e-9
    wanted = value, by_hidden, SCALE * by_scale, rows
    for ours, theirs in zip((*got, head.kernel.numpy()), wanted, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=tolerance * np.abs(theirs).max())


@every_head
def test_a_margin_counts_where_the_others_are_nothing_beside_the_label(make):
    """log Z in float32 is the label's logit there, independent of the others."""
    kernel = np.eye(CLASSES, CLASSES)
    hidden = kernel[:2] + 0.3 * kernel[2:4]
    head = made(make, kernel, cosine_scale=64.0)
    labels, margins = np.array([0, 1]), (0.0, 1.0)
    hidden = tf.constant(hidden, tf.float32)
    loss = loss_for(make, *margins, reduction="none")
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        values = loss(labels, head(hidden, training=True))
    gradient = tape.gradient(values, hidden)
    assert np.all(tf.nn.log_softmax(head(hidden)).numpy()[[0, 1], labels] == 0)
    wanted = oracle.gradients(hidden, kernel, [[0], [1]], np.ones(2), 64.0, *margins)
    np.testing.assert_allclose(tf.reduce_sum(values), wanted[0], rtol=1e-5)
    assert wanted[0] > 0.5
    np.testing.assert_allclose(gradient, wanted[1], atol=1e-4 * np.abs(wanted[1]).max())


def plain_fit(optimizer, kernel, margins, steps):
    """A layer of plain Keras and TensorFlow: W / ||W|| in the graph, and a constraint on W."""
    kernel = keras.Variable(oracle.directions(kernel).astype("float32"))
    kernel.constraint = keras.constraints.UnitNorm(axis=1)
    trunk = keras.Variable(np.eye(WIDTH, dtype="float32"))
    below, hidden = keras.optimizers.SGD(0.1), tf.constant(X, tf.float32)
    is_label = tf.one_hot(LABELS, CLASSES) > 0
    for _ in range(steps):
        with tf.GradientTape() as tape:
            h = tf.math.l2_normalize(tf.matmul(hidden, trunk.value), axis=1)
            cosine = tf.matmul(h, tf.math.l2_normalize(kernel.value, axis=1), transpose_b=True)
            theta = tf.acos(tf.clip_by_value(cosine, -0.999999, 0.999999))
            beyond = cosine - margins[1] * np.sin(margins[1])
            held = tf.where(theta <= np.pi - margins[1], tf.cos(theta + margins[1]), beyond)
            logits = SCALE * tf.where(is_label, held - margins[0], cosine)
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(LABELS, logits)
            value = tf.reduce_mean(losses)
        of_kernel, of_trunk = tape.gradient(value, [kernel.value, trunk.value])
        optimizer.apply([of_kernel], [kernel])
        below.apply([of_trunk], [trunk])
    return kernel.numpy(), trunk.numpy(), float(value)


@every_head
@pytest.mark.parametrize("margin", list(MARGINS))
@pytest.mark.parametrize("adam", [False, True])
def test_steps_of_fit_are_those_of_a_plain_layer(make, margin, adam):
    margins, ours, theirs = MARGINS[margin], RowSGD(0.2), keras.optimizers.SGD(0.2)
    if adam:
        ours, theirs = RowAdam(0.05, epsilon=1e-7), keras.optimizers.Adam(0.05, epsilon=1e-7)
    if adam and make == "dense":
        pytest.skip("the model's optimizer is one for all its weights")
    head = HEADS[make](ours, cosine_scale=SCALE, kernel_initializer=KERNEL)
    trunk = keras.layers.Dense(
        WIDTH, use_bias=False, kernel_initializer=keras.initializers.Identity()
    )
    inputs = keras.Input([WIDTH])
    model = keras.Model(inputs, head(trunk(inputs)))
    below = keras.optimizers.SGD(0.1)
    if make == "dense":
        theirs = keras.optimizers.SGD(0.1)
    model.compile(below, loss=loss_for(make, *margins, reduction="sum_over_batch_size"))
    history = model.fit(X, LABELS, batch_size=EXAMPLES, epochs=4, shuffle=False, verbose=0)
    kernel, of_trunk, value = plain_fit(theirs, KERNEL, margins, 4)
    np.testing.assert_allclose(head.kernel.numpy(), kernel, atol=2e-5)
    np.testing.assert_allclose(trunk.kernel.numpy(), of_trunk, atol=2e-5)
    np.testing.assert_allclose(history.history["loss"][-1], value, rtol=1e-4)


def test_a_step_changes_the_rows_it_touches_and_no_other():
    head = made("sampled", num_sampled=3, optimizer=RowAdam(0.1))
    before = head.kernel.numpy()
    step(head, loss_for("sampled", 0.2), LABELS[:], np.ones(EXAMPLES))
    changed = np.any(head.kernel.numpy() != before, axis=1)
    assert set(np.unique(LABELS)) <= set(np.flatnonzero(changed))
    assert changed.sum() <= len(np.unique(LABELS)) + 3
    np.testing.assert_allclose(np.linalg.norm(head.kernel.numpy(), axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("kind", [ComplementarySum, SampledSoftmax, ActiveSetSoftmax])
def test_candidates_with_a_margin(kind):
    head = made("sampled", num_sampled=8)
    loss = kind(cosine_margin=0.2, angular_margin=0.4, reduction="none")
    statistics = head.statistics(
        tlo.statistics.CandidateStatistics, *_inputs_of(head), training=True
    )
    got = loss.from_statistics(statistics).numpy()
    cosine = oracle.cosines(X, KERNEL)
    log_expected = {ComplementarySum: (0, 1), SampledSoftmax: (1, 1), ActiveSetSoftmax: (0, 0)}
    of_label, of_others = np.log(8 / CLASSES) * np.array(log_expected[kind])
    ids = statistics.candidate_ids.numpy()
    for i, y in enumerate(LABELS):
        label = SCALE * oracle.psi(cosine[i, y], 0.2, 0.4)[0] - of_label
        others = SCALE * cosine[i, ids[ids != y]] - of_others
        assert got[i] == pytest.approx(np.logaddexp.reduce([label, *others]) - label, rel=1e-4)


def _inputs_of(head):
    output = tlo.heads.base.head_output(head(tf.constant(X, tf.float32), training=True))
    return output.flat_hidden, output.labels(tf.constant(LABELS))


# Evaluation, and readers of rows


@every_head
def test_evaluation_is_without_margin_and_exact(make):
    head = made(make)
    model = keras.Sequential([keras.Input([WIDTH]), head])
    metric = tlo.metrics.PrecisionAtK(1, name="precision")
    model.compile(
        "sgd", loss_for(make, 0.3, 0.2, reduction="sum_over_batch_size"), metrics=[metric]
    )
    value, precision = model.evaluate(X, LABELS, verbose=0)
    logits = SCALE * oracle.cosines(X, KERNEL)
    wanted = -softmax.log_softmax(logits)[np.arange(EXAMPLES), LABELS].mean()
    assert value == pytest.approx(wanted, rel=1e-5)
    assert precision == pytest.approx(np.mean(logits.argmax(axis=1) == LABELS))
    np.testing.assert_allclose(model.predict(X, verbose=0), logits, atol=2e-5)
    np.testing.assert_allclose(head.logits(tf.constant(X, tf.float32)), logits, atol=2e-5)
    scores, ids = tlo.top_k_model(model, 4).predict(X, verbose=0)
    np.testing.assert_array_equal(ids, softmax.top_k(logits, 4))
    np.testing.assert_allclose(scores, -np.sort(-logits, axis=1)[:, :4], atol=2e-5)


def test_an_index_and_a_served_model_find_by_cosines(tmp_path):
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 1, 8)
    sampler = tlo.samplers.LSHEmbedding(8, tlo.samplers.Uniform(5))
    head = tlo.heads.SampledHead(
        CLASSES, sampler, RowSGD(0.5), cosine_scale=SCALE, learn_scale=True, index=index
    )
    model = keras.Sequential([keras.Input([WIDTH]), head])
    model.compile("sgd", ComplementarySum(cosine_margin=0.1))
    model.fit(X, LABELS, verbose=0)
    inputs = keras.Input([WIDTH])
    found = keras.Model(inputs, tlo.TopK(head, 1, index=index)(inputs))
    logits = float(head.scale) * oracle.cosines(X, head.kernel.numpy())
    scores, ids = found.predict(X, verbose=0)
    assert np.mean(ids[:, 0] == logits.argmax(axis=1)) > 0.7
    np.testing.assert_allclose(scores[:, 0], logits[np.arange(EXAMPLES), ids[:, 0]], atol=1e-4)
    tlo.export(model, tmp_path / "served", k=3)
    served = tf.saved_model.load(str(tmp_path / "served")).signatures["serving_default"]
    (name,) = served.structured_input_signature[1]
    best = served(**{name: tf.constant(X, tf.float32)})
    ids = next(value for value in best.values() if value.dtype.is_integer)
    np.testing.assert_array_equal(ids, softmax.top_k(logits, 3))


# A learned scale, files, policies


def test_a_learned_scale_is_saved_and_goes_on(tmp_path):
    def new_model():
        keras.utils.set_random_seed(3)
        head = sampled(RowAdam(0.05), 10, cosine_scale=4.0, learn_scale=True)
        model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH), head])
        model.compile(keras.optimizers.Adam(0.05), ComplementarySum(angular_margin=0.2))
        return model

    whole, first = new_model(), new_model()
    whole.fit(X, LABELS, epochs=4, shuffle=False, verbose=0)
    first.fit(X, LABELS, epochs=2, shuffle=False, verbose=0)
    first.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.loss.angular_margin == 0.2
    again.fit(X, LABELS, epochs=2, shuffle=False, verbose=0)
    assert float(whole.layers[-1].scale) != pytest.approx(4, abs=0.05)
    for ours, theirs in zip(again.weights, whole.weights, strict=True):
        np.testing.assert_array_equal(ours.numpy(), theirs.numpy())


@every_head
@pytest.mark.parametrize("policy", ["bfloat16", "mixed_bfloat16", "mixed_float16"])
@pytest.mark.filterwarnings("ignore:.*bfloat16")
def test_short_floats(make, policy):
    head = made(make, dtype=policy)
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH, dtype=policy), head])
    model.compile(keras.optimizers.SGD(0.01), loss_for(make, 0.1, 0.1, dtype="float32"))
    losses = model.fit(X, LABELS, epochs=3, batch_size=EXAMPLES, verbose=0).history["loss"]
    assert losses[-1] < losses[0]
    norms = np.linalg.norm(tf.cast(head.kernel.value, tf.float32), axis=1)
    np.testing.assert_allclose(norms, 1, atol=1e-2 if policy == "bfloat16" else 1e-6)


@every_head
def test_the_library_does_what_the_composed_ops_do(make, monkeypatch):
    results = []
    for fallback in ("", "1"):
        monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", fallback)
        head = made(make)
        results.append((*step(head, loss_for(make, 0.2, 0.2), SEVERAL), head.kernel.numpy()))
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=2e-5)


# Zeros, and errors


@every_head
@pytest.mark.parametrize("angle", [0.0, 0.5])
def test_rows_and_activations_of_zeros(make, angle):
    kernel = np.where(np.arange(CLASSES)[:, np.newaxis] < 2, 0, KERNEL)
    head = made(make, kernel)
    hidden = tf.constant(np.where(np.arange(3)[:, np.newaxis] == 1, 0, X[:3]), tf.float32)
    logits = head(hidden).numpy()
    assert np.all(logits[:, :2] == 0) and np.all(logits[1] == 0)
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = loss_for(make, 0.1, angle)(np.array([0, 5, 7]), head(hidden, training=True))
    gradient, of_kernel = tape.gradient(value, [hidden, head.kernel.value])
    assert np.all(np.isfinite(gradient)) and np.any(gradient[1] != 0)
    if make == "dense":
        keras.optimizers.SGD(1.0).apply([of_kernel], [head.kernel])
    else:
        head.take_step()
    np.testing.assert_allclose(np.linalg.norm(head.kernel.numpy(), axis=1), 1, atol=1e-5)


def test_norms_neither_overflow_nor_underflow():
    head = made("sampled")
    logits = [head(tf.constant(X * size, tf.float32)).numpy() for size in (1, 1e-30, 1e30)]
    np.testing.assert_allclose(logits[1:], [logits[0]] * 2, atol=1e-5)


@pytest.mark.parametrize("make", ["exact", "sampled"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_step_by_what_is_not_finite_is_refused(make, number):
    head = made(make)
    hidden = tf.constant(np.where(np.arange(WIDTH) == 1, number, X), tf.float32)
    before = head.kernel.numpy()
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
        loss_for(make, 0.1)(LABELS, head(hidden, training=True))
    np.testing.assert_array_equal(head.kernel.numpy(), before)


def test_rows_that_are_set_are_normalised():
    head = made("sampled")
    head.set_dense_weights(3 * KERNEL)
    np.testing.assert_allclose(head.kernel.numpy(), oracle.directions(KERNEL), atol=1e-6)


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), "large", True])
@every_head
def test_a_bad_scale_is_refused(make, scale):
    with pytest.raises(ValueError, match="cosine_scale must be a finite number above 0; got"):
        HEADS[make](cosine_scale=scale)


@every_head
def test_what_does_not_fit_a_scale_is_refused(make):
    with pytest.raises(ValueError, match="use_bias must be False with cosine_scale"):
        HEADS[make](cosine_scale=1.0, use_bias=True)
    with pytest.raises(ValueError, match="learn_scale must be False without a cosine_scale"):
        HEADS[make](learn_scale=True)
    with pytest.raises(ValueError, match="learn_scale must be True or False; got 1"):
        HEADS[make](cosine_scale=1.0, learn_scale=1)
    assert HEADS[make]().use_bias
    assert not HEADS[make](cosine_scale=1.0).use_bias


@pytest.mark.parametrize(
    ("name", "value", "rule"),
    [
        *(("cosine_margin", v, "at least 0 and below 2") for v in (-0.1, 2, float("nan"), "a")),
        *(("angular_margin", v, "at least 0 and at most 1.5708") for v in (-0.1, 1.6, None)),
    ],
)
@pytest.mark.parametrize("kind", [SoftmaxCrossentropy, ActiveSetSoftmax])
def test_a_bad_margin_is_refused(kind, name, value, rule):
    with pytest.raises(ValueError, match=f"{name} must be a finite number {rule}; got"):
        kind(**{name: value})


def test_a_margin_beside_smoothing_is_refused():
    with pytest.raises(ValueError, match="label_smoothing must be 0 and remaining 'ignore'"):
        SoftmaxCrossentropy(label_smoothing=0.1, cosine_margin=0.1)


@every_head
def test_a_margin_without_cosines_is_refused(make):
    head = HEADS[make]()
    with pytest.raises(TypeError, match=r"need a head whose logits are s cos.*got .*Head"):
        loss_for(make, 0.1)(LABELS, head(tf.constant(X, tf.float32), training=True))


def test_statistics_of_margins_need_cosines():
    head = made("exact", cosine_scale=None)
    with pytest.raises(TypeError, match="MarginStatistics need a head with a cosine_scale"):
        head.statistics(MarginStatistics, *_inputs_of(head), training=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda **kw: tlo.heads.FactoredHead(CLASSES, 0.1, **kw),
        lambda **kw: tlo.heads.HierarchicalSoftmaxHead(CLASSES, RowSGD(0.1), **kw),
        lambda **kw: tlo.heads.TFSampledSoftmaxHead(CLASSES, 3, **kw),
        lambda **kw: tlo.heads.TiedSampledHead(
            tlo.layers.RowEmbedding(CLASSES, WIDTH), tlo.samplers.Uniform(3), **kw
        ),
    ],
)
def test_heads_that_have_no_cosines_say_so(make):
    with pytest.raises(TypeError, match=r"cosine_scale must be left out of .*Head, whose rows"):
        make(cosine_scale=2.0)


def test_what_takes_the_logits_for_w_h_refuses():
    head = made("dense")
    with pytest.raises(TypeError, match="to_dense needs a head whose logits are W h"):
        head.to_dense()
    plain = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(CLASSES)])
    with pytest.raises(TypeError, match="replace_output needs a head whose logits are W h"):
        tlo.replace_output(plain, sampled(cosine_scale=2.0))


@every_head
def test_rows_that_are_assigned_have_norm_1(make):
    head = HEADS[make](cosine_scale=SCALE)
    model = keras.Sequential([keras.Input([WIDTH]), head])
    model.compile("sgd", ComplementarySum() if make == "sampled" else SoftmaxCrossentropy())
    place = [weight is head.kernel for weight in model.weights].index(True)
    weights = model.get_weights()
    model.set_weights([w if i != place else 2 * w for i, w in enumerate(weights)])
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6)
    model.set_weights(weights)
    for before, after in zip(weights, model.get_weights(), strict=True):
        np.testing.assert_array_equal(after, before)
    head.kernel.assign(KERNEL)
    logits = SCALE * oracle.cosines(X, KERNEL)
    np.testing.assert_allclose(model.predict(X, verbose=0), logits, rtol=1e-4, atol=1e-5)
    loss = np.log(np.exp(logits).sum(axis=1)) - logits[np.arange(EXAMPLES), LABELS]
    assert model.evaluate(X, LABELS, verbose=0) == pytest.approx(loss.mean(), rel=1e-5)


def test_an_average_of_rows_is_refused():
    model = keras.Sequential([keras.Input([WIDTH]), dense(cosine_scale=SCALE)])
    model.compile(keras.optimizers.SGD(0.1, use_ema=True), SoftmaxCrossentropy())
    with pytest.raises(ValueError, match="use_ema of the model's optimizer must be False"):
        model.fit(X, LABELS, verbose=0)
