# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo

CLASSES, WIDTH, EXAMPLES = 40, 8, 300


def losses(logits, labels, temperatures):
    """The mean negative log-likelihood at each temperature, from its definition, float64."""
    found = []
    for t in temperatures:
        scaled = logits / t
        top = scaled.max(axis=1, keepdims=True)
        log_z = top[:, 0] + np.log(np.exp(scaled - top).sum(axis=1))
        means = [scaled[n, [c for c in row if c >= 0]].mean() for n, row in enumerate(labels)]
        found.append((log_z - means).mean())
    return np.array(found)


def problem(make_head, true_temperature=2.5):
    """A model, and labels drawn from its probabilities at another temperature."""
    rng = np.random.default_rng(0)
    head = make_head()
    model = keras.Sequential([keras.Input([WIDTH]), head])
    x = rng.normal(size=(EXAMPLES, WIDTH)).astype("float32")
    logits = model.predict(x, verbose=0).astype(np.float64)
    noise = rng.gumbel(size=logits.shape)
    labels = (logits / true_temperature + noise).argmax(axis=1)
    return model, x, logits, labels


wide = keras.initializers.RandomNormal(0, 2, seed=1)
HEADS = {
    "dense": lambda: tlo.heads.DenseHead(
        CLASSES, kernel_initializer=wide, bias_initializer="random_normal"
    ),
    "factored": lambda: tlo.heads.FactoredHead(CLASSES, 0.1, kernel_initializer=wide),
}


@pytest.mark.parametrize("kind", HEADS)
def test_the_minimum_of_the_loss(kind):
    model, x, logits, labels = problem(HEADS[kind])
    second = np.where(np.arange(EXAMPLES) % 2, (labels + 1) % CLASSES, -1)
    for own in (labels[:, np.newaxis], np.stack([labels, second], axis=1)):
        grid = np.exp(np.linspace(-1, 4, 50_001))
        best = grid[losses(logits, own, grid[::100]).argmin() * 100]
        near = np.exp(np.log(best) + np.linspace(-0.02, 0.02, 401))
        best = near[losses(logits, own, near).argmin()]
        found = tlo.fit_temperature(model, tf.data.Dataset.from_tensor_slices((x, own)).batch(64))
        assert found == pytest.approx(best, rel=2e-3)
        assert tlo.fit_temperature(model, (x, own)) == pytest.approx(found, rel=1e-4)
    top = tlo.top_k_model(model, 4, probabilities=True, temperature=found)
    scores, ids = top.predict(x, verbose=0)
    scaled = np.exp(logits / found)
    expected = scaled / scaled.sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores, np.take_along_axis(expected, ids, axis=1), rtol=1e-4)
    scores, _ = tlo.top_k_model(model, 4, temperature=found).predict(x, verbose=0)
    np.testing.assert_allclose(scores, np.sort(logits / found)[:, :-5:-1], rtol=1e-4)


@pytest.mark.parametrize("kind", HEADS)
def test_the_export(kind, tmp_path):
    model, x, *_ = problem(HEADS[kind])
    for name, index in (("exact", None), ("lists", "ivf")):
        lists = {"num_lists": 3, "num_probed": 3} if index else {}
        folder = tmp_path / name
        tlo.export(model, folder, 4, index=index, probabilities=True, temperature=1.7, **lists)
        found = tf.saved_model.load(folder).signatures["serving_default"](inputs=tf.constant(x))
        scores, ids = tlo.top_k_model(model, 4, probabilities=True, temperature=1.7)(x)
        np.testing.assert_array_equal(found["ids"], ids)
        np.testing.assert_allclose(found["scores"], scores, rtol=1e-4)
        sums = np.log(np.exp(model.predict(x, verbose=0) / 1.7).sum(axis=1))
        np.testing.assert_allclose(found["log_partition"], sums, rtol=1e-4)


def test_weights_and_examples_without_labels():
    model, x, _, labels = problem(HEADS["dense"])
    kept = np.arange(EXAMPLES) % 3 > 0
    expected = tlo.fit_temperature(model, (x[kept], labels[kept]))
    assert tlo.fit_temperature(model, (x, labels, kept.astype("float32"))) == pytest.approx(
        expected
    )
    without = np.where(kept, labels, -1)
    assert tlo.fit_temperature(model, (x, without), batch_size=50) == pytest.approx(
        expected, rel=1e-4
    )


@pytest.mark.parametrize("ignored", [0, -100])
def test_a_class_that_the_loss_ignores_does_not_count(ignored):
    model, x, _, labels = problem(HEADS["dense"])
    labels = np.where(labels == 0, 1, labels)
    kept = np.arange(EXAMPLES) % 3 > 0
    expected = tlo.fit_temperature(model, (x[kept], labels[kept]))
    model.compile("sgd", [tlo.losses.SoftmaxCrossentropy(ignore_class=ignored)])
    found = tlo.fit_temperature(model, (x, np.where(kept, labels, ignored)))
    assert found == pytest.approx(expected, rel=1e-4)


def test_sparse_inputs_and_several_in_arrays():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    model, x, _, labels = problem(HEADS["dense"])
    expected = tlo.fit_temperature(model, (x, labels))
    inputs = keras.Input([WIDTH], sparse=True)
    trunk = tlo.layers.SparseDense(WIDTH, kernel_initializer="identity")
    sparse = keras.Model(inputs, model.layers[-1](trunk(inputs)))
    found = tlo.fit_temperature(sparse, (scipy_sparse.csr_matrix(x), labels), batch_size=70)
    assert found == pytest.approx(expected, rel=1e-4)
    parts = [keras.Input([WIDTH // 2]) for _ in range(2)]
    several = keras.Model(parts, model.layers[-1](keras.layers.Concatenate()(parts)))
    halves = np.split(x, 2, axis=1)
    assert tlo.fit_temperature(several, (halves, labels)) == pytest.approx(expected, rel=1e-4)
    with pytest.raises(ValueError, match=r"x, y and weights of equally many rows; got \[3, 300\]"):
        tlo.fit_temperature(model, (x, labels[:3]))


def test_saved_with_names_and_temperature(tmp_path):
    model, x, *_ = problem(HEADS["dense"])
    names = [f"class {c}" for c in range(CLASSES)]
    (tmp_path / "names.txt").write_text("\n".join(names) + "\n")
    top = tlo.top_k_model(
        model, 3, probabilities=True, temperature=1.7, names=tmp_path / "names.txt", exclude=True
    )
    nearly_all = np.tile(np.arange(CLASSES - 1), [EXAMPLES, 1])
    scores, _, found = top.predict([x, nearly_all], verbose=0)
    assert [list(map(bytes.decode, row)) for row in found] == [["class 39", "", ""]] * EXAMPLES
    top.save(tmp_path / "top.keras")
    again = keras.saving.load_model(tmp_path / "top.keras").predict([x, nearly_all], verbose=0)
    np.testing.assert_array_equal(again[0], scores)
    np.testing.assert_array_equal(again[2], found)
    lookup = keras.layers.StringLookup(vocabulary=names[1:])
    by_lookup = tlo.TopK(model.layers[-1], 3, names=lookup)(x)[2].numpy()
    plain = tlo.TopK(model.layers[-1], 3)(x)[1].numpy()
    assert [
        [lookup.get_vocabulary()[c].encode() for c in row] for row in plain
    ] == by_lookup.tolist()


BAD = [
    ({"names": 3}, TypeError, "names must be a list of strings, one per class; got 3"),
    ({"temperature": 0}, ValueError, "temperature must be a finite number above 0; got 0"),
    ({"temperature": np.nan}, ValueError, "temperature must be a finite number above 0; got nan"),
    ({"probabilities": 1}, ValueError, "probabilities must be True or False; got 1"),
    (
        {"probabilities": True, "activation": "sigmoid"},
        ValueError,
        "activation must be None or 'softmax' with probabilities; got 'sigmoid'",
    ),
    ({"names": ["a"] * CLASSES}, ValueError, "names must differ; got 'a' for classes 0 and 1"),
    ({"names": ["a", "b"]}, ValueError, "names must be num_classes=40 strings; got 2"),
    ({"names": [1] * CLASSES}, TypeError, "names must be strings; got 1 for class 0"),
    ({"names": "no/such.txt"}, FileNotFoundError, "names must be a list of strings, or the path"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments(arguments, error, message):
    model = keras.Sequential([keras.Input([WIDTH]), HEADS["dense"]()])
    with pytest.raises(error, match=message):
        tlo.TopK(model.layers[-1], 3, **arguments)
    with pytest.raises(error, match=message):
        tlo.top_k_model(model, 3, **arguments)(np.ones([2, WIDTH], "float32"))


def test_refusals():
    model, x, _, labels = problem(HEADS["dense"])
    with pytest.raises(TypeError, match=r"data must be a tf.data.Dataset, or a tuple .*; got list"):
        tlo.fit_temperature(model, [x, labels])
    with pytest.raises(ValueError, match="data must have an example with a label; got none"):
        tlo.fit_temperature(model, (x, np.full(EXAMPLES, -1)))
    weights = np.where(np.arange(EXAMPLES) == 1, -0.5, 1)
    with pytest.raises(ValueError, match=r"sample_weight must be at least 0; got -0\.5"):
        tlo.fit_temperature(model, (x, labels, weights))
    with pytest.raises(ValueError, match="the model must give finite logits on data"):
        tlo.fit_temperature(model, (x * np.nan, labels))
    best = model.predict(x, verbose=0).argmax(axis=1)
    with pytest.raises(ValueError, match=r"a minimum at a temperature in \[0.01, 100\]"):
        tlo.fit_temperature(model, (x, best))
    tree = tlo.heads.HierarchicalSoftmaxHead(CLASSES, tlo.optimizers.RowSGD(0.1))
    with pytest.raises(TypeError, match="temperature must be 1 for a head whose scores"):
        tlo.fit_temperature(keras.Sequential([keras.Input([WIDTH]), tree]), (x, labels))
    index = tlo.indexes.RowBounds()
    with pytest.raises(ValueError, match="temperature must be 1 for probabilities by an index"):
        tlo.TopK(model.layers[-1], 3, probabilities=True, temperature=2, index=index)
