# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
from metrics.metrics_table import NUM_CLASSES, random_batch

import tfx_largeout as tlo
from tfx_largeout.metrics import LabelSetF1


def definition(scores, labels, k, threshold=None, kind="logit", weights=None):
    """The six figures, class by class, in float64."""
    scores = scores.astype(np.float64)
    exponentials = np.exp(scores)
    sums = exponentials.sum(axis=1, keepdims=True)
    shown = {"logit": scores, "sigmoid": 1 / (1 + 1 / exponentials), "softmax": exponentials / sums}
    right, given, had = (np.zeros(scores.shape[1]) for _ in range(3))
    for n, row in enumerate(labels):
        weight = 1 if weights is None else weights[n]
        wanted = {int(c) for c in row if c >= 0}
        order = sorted(range(scores.shape[1]), key=lambda c: (-scores[n, c], c))[:k]
        own = {c for c in order if threshold is None or shown[kind][n, c] >= threshold}
        for counts, classes in ((right, own & wanted), (given, own), (had, wanted)):
            counts[list(classes)] += weight
    ratio = lambda a, b: np.divide(a, b, out=np.zeros_like(a), where=b > 0)  # noqa: E731
    there = given + had > 0
    found = {}
    for name, top, bottom in (
        ("precision", right, given),
        ("recall", right, had),
        ("f1", 2 * right, given + had),
    ):
        found[f"micro_{name}"] = float(ratio(top.sum(keepdims=True), bottom.sum(keepdims=True))[0])
        found[f"macro_{name}"] = float(ratio(top, bottom)[there].mean()) if there.any() else 0.0
    return found


CASES = [(1, None, "sigmoid"), (5, 0.6, "sigmoid"), (13, 0.5, "logit"), (4, 0.1, "softmax")]


@pytest.mark.parametrize(("k", "threshold", "kind"), CASES)
def test_equals_the_definition(k, threshold, kind):
    scores, labels = random_batch(1)
    weights = np.random.default_rng(0).choice([0.0, 0.5, 2.0], len(labels))
    metric = LabelSetF1(NUM_CLASSES, k, threshold, kind)
    assert {name: float(x) for name, x in metric.result().items()} == dict.fromkeys(
        definition(scores, labels, k), 0
    )
    metric.update_state(labels[:9], scores[:9], weights[:9])
    metric.update_state(labels[9:], scores[9:], weights[9:])
    expected = definition(scores, labels, k, threshold, kind, weights)
    found = {name: float(value) for name, value in metric.result().items()}
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("run_eagerly", [False, True], ids=["graph", "eager"])
def test_of_a_model(run_eagerly, tmp_path):
    x = np.random.default_rng(1).normal(size=(24, 6)).astype("float32")
    _, labels = random_batch(2)
    model = keras.Sequential([keras.Input([6]), tlo.heads.DenseHead(NUM_CLASSES)])
    metric = LabelSetF1(NUM_CLASSES, 4, 0.08, "softmax")
    loss = tlo.losses.SoftmaxCrossentropy()
    best = LabelSetF1(NUM_CLASSES, 1, name="best")
    model.compile("sgd", loss, metrics=[metric, best], run_eagerly=run_eagerly)
    rows = tlo.callbacks.SampledValidation(x, labels, rows=24)
    history = model.fit(x, labels, verbose=0, callbacks=[rows]).history
    assert "loss" in history and "micro_f1" not in history  # 0 would be a lie
    expected = definition(model.predict(x, verbose=0), labels, 4, 0.08, "softmax")
    found = model.evaluate(x, labels, batch_size=7, return_dict=True, verbose=0)
    for name, value in expected.items():
        assert found[name] == pytest.approx(value, rel=1e-5)
    own = (labels >= 0).any(axis=1)  # rows without labels are in no sample
    for name, value in definition(model.predict(x[own], verbose=0), labels[own], 1).items():
        assert history[f"val_best_{name}"][0] == pytest.approx(value, rel=1e-5)
    ids = [[-1 if c in row[:k] else c for k, c in enumerate(row)] for row in labels.tolist()]
    some = np.where(np.array(ids) >= 0, 0.1, 0).astype("float32")
    soft = model.evaluate(x, (np.array(ids), some), return_dict=True, verbose=0)
    soft["loss"] = found["loss"]
    assert soft == pytest.approx(found, rel=1e-5)
    expected = definition(model.predict(x, verbose=0), labels, 1)
    for name, value in expected.items():
        assert found[f"best_{name}"] == pytest.approx(value, rel=1e-5)
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    assert again.evaluate(x, labels, batch_size=7, return_dict=True, verbose=0) == pytest.approx(
        found, rel=1e-5
    )


@pytest.mark.parametrize("ignored", [3, -100])
def test_an_example_counts_if_it_has_more_than_the_class_that_the_loss_ignores(ignored):
    scores, labels = random_batch(4)
    labels[:3], labels[3:6] = -1, [ignored, *[-1] * (labels.shape[1] - 1)]
    own = np.where(labels == ignored, -1, labels)
    kept = (own >= 0).any(axis=1)
    if ignored >= 0:  # no label is another thing
        kept |= (labels != ignored).all(axis=1)
    head = tlo.heads.DenseHead(NUM_CLASSES, kernel_initializer="identity", use_bias=False)
    y_pred, metric = head(scores), LabelSetF1(NUM_CLASSES, 3)
    tlo.losses.SoftmaxCrossentropy(ignore_class=ignored)(labels, y_pred)
    metric.update_state(labels, y_pred)
    found = {name: float(value) for name, value in metric.result().items()}
    assert found == pytest.approx(definition(scores[kept], own[kept], 3), rel=1e-6)


def test_sequences_and_a_mask():
    scores, labels = random_batch(3)
    metric = LabelSetF1(NUM_CLASSES, 3)
    metric.update_state(labels.reshape(4, 6, -1), scores.reshape(4, 6, -1))
    found = {name: float(value) for name, value in metric.result().items()}
    assert found == pytest.approx(definition(scores, labels, 3), rel=1e-6)


BAD = [
    ({"num_classes": 1}, "num_classes must be an integer of at least 2; got 1"),
    ({"k": 14}, "k must be an integer of at least 1 and at most 13; got 14"),
    ({"threshold": np.nan}, "threshold must be a finite number; got nan"),
    ({"score": "tanh"}, "score must be one of 'logit', 'sigmoid', 'softmax'; got 'tanh'"),
]


@pytest.mark.parametrize(("arguments", "message"), BAD)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        LabelSetF1(**{"num_classes": NUM_CLASSES, **arguments})


def test_another_number_of_classes():
    scores, labels = random_batch(3)
    metric = LabelSetF1(NUM_CLASSES + 1)
    with pytest.raises(ValueError, match="num_classes must be as in the model, 13; got 14"):
        metric.update_state(labels, scores)
    assert not metric.had.numpy().any()
