# SPDX-License-Identifier: Apache-2.0
"""Probe: exact and sampled values, and no change of state."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import softmax as oracle

import tfx_largeout as tlo
from tfx_largeout import losses
from tfx_largeout.callbacks import Probe
from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash
from tfx_largeout.labels import normalize_labels
from tfx_largeout.ops.exact import exact_hidden_gradient as module
from tfx_largeout.optimizers import RowAdam, RowSGD
from tfx_largeout.samplers import LSHEmbedding, Uniform

CLASSES, WIDTH, EXAMPLES = 40, 6, 96
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
LABELS = RNG.integers(0, CLASSES, EXAMPLES)
WEIGHTS = np.arange(CLASSES) % 3


def model_with(head, loss):
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(5, "tanh"), head])
    model.compile("sgd", loss=loss)
    return model


def sampled(candidates, **arguments):
    keras.utils.set_random_seed(2)
    return tlo.heads.SampledHead(CLASSES, Uniform(candidates), RowAdam(0.01), seed=1, **arguments)


def probe_run(model, **arguments):
    probe = Probe(X[:16], LABELS[:16], every=1, max_share=1.0, **arguments)
    history = model.fit(X, LABELS, batch_size=8, epochs=2, verbose=0, callbacks=[probe]).history
    return probe, history


@pytest.mark.parametrize(("block", "weighted"), [(2**22, False), (64, False), (2**22, True)])
def test_exact_gradient_is_the_oracles(block, weighted, monkeypatch):
    monkeypatch.setattr(module, "_BLOCK_ELEMENTS", block)
    kernel, bias = RNG.normal(size=(CLASSES, WIDTH)), RNG.normal(size=CLASSES)
    ids = np.where(RNG.random((16, 3)) < 0.7, RNG.integers(0, CLASSES, (16, 3)), -1)
    ids[:, 0] = LABELS[:16]
    labels = normalize_labels(ids, CLASSES)
    logits = X[:16] @ kernel.T + bias
    partition = np.log(np.exp(logits).sum(axis=1))
    # The mean weight of the labels, times their shares of the weight.
    weights = np.where(np.arange(CLASSES) % 2, 3.0, 0.5) if weighted else np.ones(CLASSES)
    targets = np.zeros((16, CLASSES))
    for row, own in zip(targets, ids, strict=True):
        classes = sorted(set(own) - {-1})
        row[classes] = weights[classes] / len(classes)
    if weighted:
        of_labels = tf.gather(tf.constant(weights, tf.float32), labels.safe_ids)
        labels = labels._replace(weights=of_labels)
    gradient = module.exact_hidden_gradient(
        tf.constant(X[:16]),
        labels,
        tf.constant(partition, tf.float32),
        keras.Variable(kernel.astype("float32")),
        keras.Variable(bias.astype("float32")),
    )
    _, (expected, *_) = oracle.cross_entropy_of(targets, X[:16], kernel, bias)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("options", [{}, {"cosine_margin": 0.3}, {"class_weights": WEIGHTS}])
def test_with_all_classes_the_sampled_gradient_is_the_exact_one(options):
    head = sampled(CLASSES, cosine_scale=4.0) if "cosine_margin" in options else sampled(CLASSES)
    model = model_with(head, [tlo.losses.ComplementarySum(**options)])
    probe, history = probe_run(model)
    assert len(probe.history) == 24
    for values in probe.history:
        assert values["probe_loss"] == pytest.approx(values["probe_exact_loss"], rel=1e-5)
        assert values["probe_cosine"] == pytest.approx(1, abs=1e-5)
        assert values["probe_relative_bias"] < 1e-4
        assert values["probe_recall_at_10"] == 1
    assert history["probe_exact_loss"][-1] == probe.history[-1]["probe_exact_loss"]
    if "cosine_margin" not in options:
        assert model.evaluate(X[:16], LABELS[:16], verbose=0) == pytest.approx(
            probe._run()["probe_exact_loss"], rel=1e-5
        )


@pytest.fixture(scope="module")
def few(tmp_path_factory):
    """A run with 10 of 40 classes as candidates, and its folder of events."""
    folder = tmp_path_factory.mktemp("events")
    probe, _ = probe_run(model_with(sampled(10), losses.ActiveSetSoftmax()), log_dir=folder)
    return probe.history, folder


def test_with_few_candidates_it_is_not(few):
    last = few[0][-1]
    assert last["probe_loss"] < last["probe_exact_loss"] - 0.5
    assert 0 < last["probe_cosine"] < 0.99
    assert last["probe_relative_bias"] > 0.1


def test_recall_of_few_candidates_is_their_share(few):
    recalls = [values["probe_recall_at_10"] for values in few[0]]
    assert 0.1 < np.mean(recalls) < 0.4  # 10 of 40


def test_it_changes_nothing():
    def weights(callbacks):
        model = model_with(sampled(8), tlo.losses.ComplementarySum())
        model.fit(X, LABELS, batch_size=8, verbose=0, shuffle=False, callbacks=callbacks)
        return model.get_weights()

    for a, b in zip(weights([]), weights([Probe(X, LABELS, every=1, max_share=1)]), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize(
    ("head", "loss"),
    [
        (lambda: tlo.heads.DenseHead(CLASSES), tlo.losses.SoftmaxCrossentropy),
        (
            lambda: tlo.heads.TFSampledSoftmaxHead(CLASSES, num_sampled=9),
            tlo.losses.TFCandidateSamplingLoss,
        ),
    ],
    ids=["dense", "tf"],
)
def test_other_heads_are_probed_too(head, loss):
    probe, _ = probe_run(model_with(head(), loss()))
    assert 0.5 < probe.history[0]["probe_cosine"] <= 1.00001


def test_it_waits_rather_than_take_more_than_its_share():
    model = model_with(tlo.heads.DenseHead(CLASSES), losses.SoftmaxCrossentropy())
    probe = Probe(X, LABELS, every=1, max_share=1e-9)
    model.fit(X, LABELS, batch_size=8, epochs=2, verbose=0, callbacks=[probe])
    assert len(probe.history) == 1  # before it has run once, it can't know its cost


def test_values_go_to_tensorboard(few):
    (path,) = few[1].glob("events.out.*")
    tags = {
        value.tag
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }
    assert tags == {
        "probe_loss",
        "probe_exact_loss",
        "probe_cosine",
        "probe_relative_bias",
        "probe_recall_at_10",
        "probe_share_of_time",
    }


def test_a_model_without_a_head_is_refused():
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(CLASSES)])
    model.compile("sgd", loss="mse")
    with pytest.raises(TypeError, match="Probe needs a model with a HeadLoss"):
        model.fit(X, np.ones((EXAMPLES, CLASSES)), verbose=0, callbacks=[Probe(X, LABELS)])
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    model = model_with(head, tlo.losses.SquaredError())
    with pytest.raises(TypeError, match="a head with W and b; got FactoredHead"):
        probe_run(model)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"every": 0}, "every must be an integer of at least 1; got 0"),
        ({"draws": 0}, "draws must be an integer of at least 1; got 0"),
        ({"max_share": 0}, "max_share must be a finite number above 0; got 0"),
    ],
)
def test_arguments_are_checked(arguments, message):
    with pytest.raises(ValueError, match=message):
        Probe(X, LABELS, **arguments)


def indexed(family, hashes, **more):
    keras.utils.set_random_seed(2)
    index = HashIndex(family, hashes, 4, **more)
    return tlo.heads.SampledHead(CLASSES, LSHEmbedding(8), RowAdam(0.01), seed=1, index=index)


@pytest.mark.filterwarnings("ignore:the head's index has degenerated")
def test_health_of_an_index_is_logged():
    head = indexed(DWTAHash(5), 1, first_period=1e6)
    probe, _ = probe_run(model_with(head, losses.ActiveSetSoftmax()))
    values = probe.history[-1]
    assert values["probe_index_occupied"] == 1
    assert 0.2 <= values["probe_index_largest_bucket"] < 0.6  # 5 buckets
    assert values["probe_index_unreachable"] == 0
    assert values["probe_index_stale"] > 0  # no table was updated
    head.index.rebuild(head.kernel, head.bias)
    assert head.index.health(head.kernel, head.bias)["stale"] == 0


@pytest.mark.thorough
def test_health_of_codes_is_logged():
    index = tlo.indexes.InvertedMultiIndex(5, first_period=1e6)
    sampler = tlo.samplers.MIDX(8)
    head = tlo.heads.SampledHead(CLASSES, sampler, RowAdam(0.01), seed=1, index=index)
    probe, _ = probe_run(model_with(head, losses.ComplementarySum()))
    values = probe.history[-1]
    assert 0 < values["probe_index_largest_pair"] < values["probe_index_occupied"] <= 1
    assert 0 < values["probe_index_distortion"] < 1
    assert values["probe_index_stale"] > 0  # no row was coded again


@pytest.mark.thorough
@pytest.mark.parametrize("zeros", [False, True])
def test_an_index_that_has_degenerated_is_reported_once(zeros):
    head = indexed(SimHash(), 1)  # two buckets
    if zeros:
        head.kernel_initializer = keras.initializers.Zeros()
    with pytest.warns(RuntimeWarning, match="the head's index has degenerated") as warned:
        probe_run(model_with(head, losses.ActiveSetSoftmax()))
    assert sum("degenerated" in str(w.message) for w in warned) == 1


def model_with_one_long_row(length_ranges):
    index = HashIndex(SimHash(), 5, 4, similarity="inner_product", length_ranges=length_ranges)
    head = tlo.heads.SampledHead(CLASSES, LSHEmbedding(8), RowSGD(1e-9), seed=1, index=index)
    model = model_with(head, losses.ActiveSetSoftmax())
    kernel = 1e-6 * np.ones([CLASSES, 5], np.float32)
    kernel[7] = 1
    head.kernel.assign(kernel)
    return model


@pytest.mark.thorough
def test_short_rows_that_share_a_bucket_are_no_alarm():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        probe, _ = probe_run(model_with_one_long_row(length_ranges=2))
    assert probe.history[-1]["probe_index_largest_bucket"] == pytest.approx(1 / CLASSES)


@pytest.mark.thorough
def test_short_rows_that_share_a_bucket_with_the_long_ones_are_reported():
    with pytest.warns(RuntimeWarning, match="by inner products more length_ranges"):
        probe_run(model_with_one_long_row(length_ranges=1))


@pytest.mark.parametrize(
    "loss", [losses.ZLoss(), losses.SoftmaxCrossentropy()], ids=["z", "softmax"]
)
def test_a_dense_head_is_probed_with_any_loss_that_trains_it(loss):
    probe, _ = probe_run(model_with(tlo.heads.DenseHead(CLASSES), loss))
    values = probe.history[-1]
    assert np.isfinite(list(values.values())).all()
    is_exact = isinstance(loss, losses.SoftmaxCrossentropy)
    assert (values["probe_relative_bias"] < 1e-4) == is_exact
    assert (abs(values["probe_loss"] - values["probe_exact_loss"]) < 1e-4) == is_exact


def test_examples_that_count_for_nothing_are_left_out():
    """Examples without labels, and positions that a mask leaves out, with any labels."""
    keras.utils.set_random_seed(2)
    head = tlo.heads.SampledHead(CLASSES, Uniform(5), RowAdam(0.01), seed=1)
    layers = [keras.Input([None, WIDTH]), keras.layers.Masking(), keras.layers.Dense(5), head]
    model = keras.Sequential(layers)
    model.compile("sgd", loss=tlo.losses.ComplementarySum(ignore_class=-100))
    x, y = X[:24].reshape(6, 4, WIDTH), LABELS[:24].reshape(6, 4)
    values = []
    for shown, label in ((4, -1), (7, -1), (7, 3), (7, -100)):  # without padding; kinds of it
        padded, labels = np.zeros([6, shown, WIDTH], "float32"), np.full([6, shown], label)
        padded[:, :4], labels[:, :4] = x, y
        labels[0, 0] = -1
        probe = Probe(padded, labels)
        probe.set_model(model)
        values.append(
            {name: float(value) for name, value in probe._measured(padded, labels).items()}
        )
    for other in values[1:]:
        assert other == pytest.approx(values[0], rel=1e-5)
    assert all(np.isfinite(list(values[0].values())))


def test_no_example_with_a_label_is_refused():
    model = model_with(sampled(5), tlo.losses.ComplementarySum())
    probe = Probe(X[:4], np.full(4, -1), every=1)
    probe.set_model(model)
    with pytest.raises(tf.errors.InvalidArgumentError, match="at least one example with a label"):
        probe._measured(probe.x, probe.y)
