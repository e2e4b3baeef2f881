# SPDX-License-Identifier: Apache-2.0
"""NearestNeighborModel compared with NumPy in float64, and its errors."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import each_once, product, thorough

import tfx_largeout as tlo
from tfx_largeout.layers.top_k import output_of_model
from tfx_largeout.models.example_vectors import directions as directions_of
from tfx_largeout.models.example_vectors import rows_of

WIDTH, CLASSES, EXAMPLES = 6, 150, 40


def a_model(head=None, sparse=False):
    keras.utils.set_random_seed(0)
    head = head or tlo.heads.DenseHead(CLASSES, kernel_initializer="random_normal")
    trunk = tlo.layers.SparseDense(5, "tanh") if sparse else keras.layers.Dense(5, "tanh")
    model = keras.Sequential([keras.Input([WIDTH], sparse=sparse), trunk, head])
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy())
    return model


def some_examples(seed=0, most=4):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(EXAMPLES, WIDTH)).astype("float32")
    labels = [rng.choice(CLASSES, rng.integers(1, most + 1), replace=False) for _ in x]
    return x, tf.ragged.constant([list(map(int, row)) for row in labels], tf.int64)


def batches(x, y, size=16):
    return tf.data.Dataset.from_tensor_slices((x, y)).batch(size)


def expected(model, x, y, queries, n, temperature, weight, feature_weight, most, floor=0.003):
    """Returns s of all classes `[B, C]`: the formula, in float64, with `most` of the softmax."""

    def evidence(p):
        return p if floor is None else np.log(1 + p / floor)

    trunk, head = model.layers[0], model.layers[1]
    h, h_i = (np.float64(trunk(array)) for array in (queries, x))
    logits = h @ np.float64(head.kernel).T + np.float64(head.bias)
    softmax = np.exp(logits - logits.max(axis=1, keepdims=True))
    softmax /= softmax.sum(axis=1, keepdims=True)
    softmax[softmax < -np.sort(-softmax, axis=1)[:, most - 1 : most]] = 0
    mean = sum(map(len, y)) / len(y)
    scores = (1 - weight - feature_weight) * evidence(softmax)
    for w, (z, z_i) in ((weight, (h, h_i)), (feature_weight, (np.float64(queries), np.float64(x)))):
        p = np.zeros_like(softmax)
        for row, cosine in enumerate(directions(z) @ directions(z_i).T):
            near = [i for i in np.argsort(-cosine, kind="stable")[:n] if cosine[i] > 0]
            share = np.exp(cosine[near] / temperature)
            for i, a in zip(near, share / share.sum(), strict=True):
                p[row, y[i]] += a / mean
        scores += w * evidence(p)
    return scores


def directions(rows):
    return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)


def sparse_batches(x, y, size=16):
    """The batches with features as sparse tensors, for an input with sparse=True."""
    return batches(x, y, size).map(lambda x, y: (tf.sparse.from_dense(x), y))


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("sparse", "weights", "floor"),
    each_once([False, True], [(0.3, 0.3), (0.0, 1.0), (0.6, 0.1)], [0.003, 0.5, None]),
)
def test_neighbors_by_features_as_well(sparse, weights, floor, monkeypatch):
    monkeypatch.setattr("tfx_largeout.models.example_vectors._BLOCK_ELEMENTS", 4 * EXAMPLES)
    model, (x, y) = a_model(sparse=sparse), some_examples()
    queries = np.random.default_rng(1).normal(size=(9, WIDTH)).astype("float32")
    x[x < 0], queries[queries < 0], queries[3] = 0, 0, 0  # one query has no features
    both = tlo.NearestNeighborModel(model, 5, 7, 0.2, *weights, floor)
    both.adapt((sparse_batches if sparse else batches)(x, y))
    given = tf.sparse.from_dense(queries) if sparse else tf.constant(queries)
    scores, ids = both(given)
    p = expected(model, x, y.to_list(), queries, 7, 0.2, *weights, 100, floor)
    np.testing.assert_allclose(scores, np.take_along_axis(p, ids.numpy(), axis=1), rtol=2e-5)
    np.testing.assert_allclose(scores, -np.sort(-p, axis=1)[:, :5], rtol=2e-5)


def ndcg(p, labels, k):
    """nDCG@k of the scores `[B, C]`, straight from its definition."""
    values = []
    for row, ids in zip(p, labels, strict=True):
        best = list(np.argsort(-row, kind="stable")[:k])
        gain = sum(1 / np.log2(best.index(c) + 2) for c in ids if c in best)
        values.append(gain / sum(1 / np.log2(r + 2) for r in range(min(k, len(ids)))))
    return np.mean(values)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("sparse", "feature_weight", "floor"), product([False, True], [0.0, 0.5], [0.003, None])
)
def test_weights_are_chosen_by_ndcg(sparse, feature_weight, floor):
    model, (x, y) = a_model(sparse=sparse), some_examples(most=2)
    data = sparse_batches if sparse else batches
    rng = np.random.default_rng(2)
    queries = (x + rng.normal(0, 0.7, x.shape)).astype("float32")  # labels of the originals
    both = tlo.NearestNeighborModel(model, 3, 7, 0.2, 0.5, feature_weight, floor)
    both.adapt(data(x, y))
    before = both.predict(data(queries, y), verbose=0)
    chosen = both.choose_weights(data(queries, y))
    tried = {
        (i, j): ndcg(
            expected(model, x, y.to_list(), queries, 7, 0.2, i / 10, j / 10, 100, floor),
            y.to_list(),
            3,
        )
        for i in range(11)
        for j in range(11 - i if feature_weight else 1)
    }
    best = max(tried, key=tried.get)
    assert tried[best] > tried[0, 0] + 0.05  # neighbors help, so that there is something to choose
    assert chosen["ndcg"] == pytest.approx(tried[best], abs=1e-6)
    assert tried[round(10 * both.weight), round(10 * both.feature_weight)] == tried[best]
    assert (chosen["weight"], chosen["feature_weight"]) == (both.weight, both.feature_weight)
    after = both.predict(data(queries, y), verbose=0)
    weights = both.weight, both.feature_weight
    p = expected(model, x, y.to_list(), queries, 7, 0.2, *weights, 100, floor)
    np.testing.assert_allclose(after[0], -np.sort(-p, axis=1)[:, :3], rtol=2e-5)
    assert np.any(after[0] != before[0])


@pytest.mark.thorough
def test_weights_chosen_again_and_saved(tmp_path):
    model, (x, y) = a_model(), some_examples()
    both = tlo.NearestNeighborModel(model, 3, feature_weight=0.5)
    both.adapt(batches(x, y))
    first = both.choose_weights(batches(x[:9], y[:9]))
    both.weight, both.feature_weight = 0.2, 0.0  # features stay known
    assert both.choose_weights(batches(x[:9], y[:9])) == first
    both.save(tmp_path / "both.keras")
    loaded = keras.saving.load_model(tmp_path / "both.keras")
    assert (loaded.weight, loaded.feature_weight) == (both.weight, both.feature_weight)
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)[0], both.predict(x, verbose=0)[0])


def test_weights_stay_where_they_cannot_be_chosen():
    model, (x, y) = a_model(), some_examples()
    both = tlo.NearestNeighborModel(model, 3, weight=0.4)
    with pytest.raises(RuntimeError, match="adapt must be called before choose_weights"):
        both.choose_weights(batches(x, y))
    both.adapt(batches(x, y))
    for data, text in (
        ([(x, y, y)], "data must be pairs"),
        ([], "at least one example with a label"),
        ([(x[:2], np.full([2, 1], -1))], "at least one example with a label"),
    ):
        with pytest.raises(ValueError, match=text):
            both.choose_weights(data)
        assert (both.weight, both.feature_weight) == (0.4, 0.0)


@pytest.mark.thorough
@pytest.mark.parametrize("sparse", [True, *thorough(False)])
def test_features_are_saved(sparse, tmp_path):
    model, (x, y) = a_model(sparse=sparse), some_examples()
    data = (sparse_batches if sparse else batches)(x, y)
    both = tlo.NearestNeighborModel(model, 4, feature_weight=0.4)
    both.adapt(data)
    before = both.predict(data, verbose=0)
    both.save(tmp_path / "both.keras")
    loaded = keras.saving.load_model(tmp_path / "both.keras")
    for one, other in zip(loaded.predict(data, verbose=0), before, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_has_nothing_in_common_is_no_neighbor(sparse):
    model = a_model(sparse=sparse)
    x = np.eye(WIDTH, dtype="float32")[[0] * 30 + [1]]
    y = tf.ragged.constant([[3]] * 30 + [[7]], tf.int64)
    both = tlo.NearestNeighborModel(model, 1, weight=0, feature_weight=1)
    both.adapt((sparse_batches if sparse else batches)(x, y))
    queries = np.array([[0, 0.1, 1, 0, 0, 0], [0, 0, 0, 0, 0, 0]], "float32")
    scores, ids = both(tf.sparse.from_dense(queries) if sparse else tf.constant(queries))
    assert ids[0, 0] == 7
    np.testing.assert_allclose(scores, [[np.log(1 + 1 / 0.003)], [0]], rtol=1e-6)


def test_features_of_another_width():
    both = tlo.NearestNeighborModel(a_model(sparse=True), 1, feature_weight=0.5)
    both.adapt(sparse_batches(*some_examples()))
    vectors = tf.sparse.from_dense(np.ones([2, WIDTH + 1], "float32"))
    with pytest.raises(ValueError, match="x must have the 6 features that adapt saw; got 7"):
        both._vectors(
            both._output(tf.sparse.from_dense(np.ones([2, WIDTH], "float32")))[0], vectors
        )


@pytest.mark.parametrize(("then", "now"), [("dense", "sparse"), ("sparse", "dense")])
def test_features_of_another_kind(then, now):
    model = a_model()  # it takes both
    data = {"dense": batches, "sparse": sparse_batches}
    both = tlo.NearestNeighborModel(a_model(sparse=then == "sparse"), 1, feature_weight=0.5)
    both.adapt(data[then](*some_examples()))
    x = tf.constant(np.ones([2, WIDTH], "float32"))
    vectors = {"dense": x, "sparse": tf.sparse.from_dense(x)}[now]
    with pytest.raises(ValueError, match=f"x must be {then}, as adapt saw it; got a {now} tensor"):
        both._vectors(output_of_model(model, x), vectors)


def test_a_weight_of_features_that_are_not_stored():
    both = tlo.NearestNeighborModel(a_model(), 1)
    both.adapt(batches(*some_examples()))
    both.feature_weight = 0.5
    with pytest.raises(ValueError, match=r"feature_weight must be 0, .* stored; got 0.5"):
        both(np.ones([2, WIDTH], "float32"))


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("scale", [1e-25, 1e25])
def test_lengths_whose_squares_are_no_numbers(sparse, scale):
    rows = np.float32(scale) * np.array([[3, 4, 0], [0, 0, 0], [0, -1, 0]], "float32")
    unit = directions_of(tf.sparse.from_dense(rows) if sparse else tf.constant(rows))
    unit = tf.sparse.to_dense(unit) if sparse else unit
    np.testing.assert_allclose(unit, [[0.6, 0.8, 0], [0, 0, 0], [0, -1, 0]], rtol=1e-6)


def test_numbers_that_are_ids_are_not_rounded_by_a_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    layers = [keras.Input([1], dtype="float32"), keras.layers.Embedding(300, 8)]
    head = tlo.heads.DenseHead(CLASSES)
    model = keras.Sequential([*layers, keras.layers.Flatten(), head])
    x, y = np.arange(256, 276, dtype="float32")[:, None], np.arange(20)
    both = tlo.NearestNeighborModel(model, 1, num_neighbors=1, weight=1.0)
    both.adapt([(x, y)])
    np.testing.assert_array_equal(both(x)[1][:, 0], y)


def test_sparse_features_with_a_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    model, (x, y) = a_model(sparse=True), some_examples()
    both = tlo.NearestNeighborModel(model, 1, num_neighbors=1, weight=0.0, feature_weight=1.0)
    both.adapt(sparse_batches(x, y))
    ids = both(tf.sparse.from_dense(x))[1][:, 0]
    np.testing.assert_array_equal(ids, [min(labels) for labels in y.to_list()])


@pytest.mark.parametrize("weights", [(0.9, 0.1), (0.8, 0.2), (0.7, 0.3)])
def test_weights_whose_sum_is_rounded(weights):
    """Nothing is left for the head, and nothing less: in float64 0.9 + 0.1 may not be 1."""
    model, (x, y) = a_model(), some_examples()
    both = tlo.NearestNeighborModel(model, 3, 4, 0.1, *weights)
    assert (both.weight, both.feature_weight) == weights
    both.adapt(batches(x, y))
    scores, _ = both(x)
    s = expected(model, x, y.to_list(), x, 4, 0.1, *weights, 100)
    np.testing.assert_allclose(scores, -np.sort(-s, axis=1)[:, :3], rtol=2e-5, atol=1e-6)
    with pytest.raises(ValueError, match="feature_weight must be at most 1 - weight"):
        both.feature_weight = weights[1] + 1e-6
    assert (both.weight, both.feature_weight) == weights


def test_features_that_cannot_be_compared():
    keras.utils.set_random_seed(0)
    layers = [keras.Input([3, WIDTH]), keras.layers.Dense(5), tlo.heads.DenseHead(CLASSES)]
    both = tlo.NearestNeighborModel(keras.Sequential(layers), 1, feature_weight=0.5)
    x, y = np.zeros([8, 3, WIDTH], "float32"), np.zeros([8, 3], "int64")
    with pytest.raises(ValueError, match=r"x must be one matrix .* got shape \(8, 3, 6\)"):
        both.adapt([(x, y)])
    assert both.stored is None


@pytest.mark.parametrize(
    ("k", "n", "temperature", "weight"),
    [(1, 1, 0.1, 0.5), (5, 10, 0.1, 0.5), (5, 100, 1.0, 0.3), (120, 7, 0.2, 1.0), (5, 7, 0.2, 0.0)],
)
def test_scores_are_those_of_the_formula(k, n, temperature, weight):
    model, (x, y) = a_model(), some_examples()
    queries = np.random.default_rng(1).normal(size=(9, WIDTH)).astype("float32")
    both = tlo.NearestNeighborModel(model, k, n, temperature, weight)
    both.adapt(batches(x, y))
    scores, ids = (np.asarray(of) for of in both(queries))
    p = expected(model, x, y.to_list(), queries, n, temperature, weight, 0, max(k, 100))
    there = np.take_along_axis(p, np.maximum(ids, 0), axis=1)
    found = scores > 0  # with softmax weight 0, classes beyond neighbors are equally bad
    np.testing.assert_allclose(scores[found], there[found], rtol=2e-5)
    best = -np.sort(-p, axis=1)[:, :k]
    np.testing.assert_allclose(scores[found], best[found], rtol=2e-5)
    assert found[:, : min(k, 4)].all()


def test_labels_of_the_nearest_come_first_and_ties_by_lower_id():
    model = a_model()
    x = np.eye(WIDTH, dtype="float32")
    y = tf.ragged.constant([[7, 3], [9], [4], [5], [6], [8]], tf.int64)
    both = tlo.NearestNeighborModel(model, 2, num_neighbors=1, weight=1.0, floor=None)
    both.adapt(batches(x, y))
    scores, ids = both(x[:1])
    np.testing.assert_array_equal(ids, [[3, 7]])
    np.testing.assert_allclose(scores, [[6 / 7, 6 / 7]], rtol=1e-5)


@pytest.mark.thorough
@pytest.mark.parametrize("form", ["vector", *thorough("padded", "ragged")])
def test_every_form_of_labels(form):
    model, (x, y) = a_model(), some_examples(most=1)
    labels = {"vector": y.to_tensor()[:, 0], "padded": y.to_tensor(-1), "ragged": y}[form]
    both = tlo.NearestNeighborModel(model, 3)
    both.adapt(batches(x, labels))
    reference = tlo.NearestNeighborModel(model, 3)
    reference.adapt(batches(x, y))
    for one, other in zip(both.predict(x, verbose=0), reference.predict(x, verbose=0), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x]], ids=["alone", "list"])
def test_a_class_that_the_loss_of_the_model_ignores_is_no_label(form):
    model, (x, y) = a_model(), some_examples()
    model.compile("sgd", form(tlo.losses.SoftmaxCrossentropy(ignore_class=-100)))
    padded = y.to_tensor(-100)
    found = []
    for labels in (padded, tf.where(padded == -100, tf.constant(-1, tf.int64), padded)):
        best = tlo.NearestNeighborModel(model, 5, 7)
        best.adapt(batches(x, labels))
        found.append(best(x)[0])
    np.testing.assert_array_equal(*found)


def test_a_sequence_head_and_a_factored_head():
    keras.utils.set_random_seed(0)
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    model = keras.Sequential([keras.Input([3, WIDTH]), keras.layers.Dense(5), head])
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 3, WIDTH)).astype("float32")
    y = rng.integers(0, CLASSES, (8, 3))
    both = tlo.NearestNeighborModel(model, 1, num_neighbors=1, weight=1.0, floor=None)
    both.adapt([(x, y)])
    scores, ids = both(x)
    assert both.stored == {"label_splits": (25,), "labels": (24,), "hidden": (24, 5)}
    np.testing.assert_array_equal(ids[:, :, 0], y)
    np.testing.assert_allclose(scores, np.ones([8, 3, 1]), rtol=1e-5)


def test_no_examples_in_a_batch():
    both = tlo.NearestNeighborModel(a_model(), 3)
    both.adapt(batches(*some_examples()))
    scores, ids = both(np.zeros([0, WIDTH], "float32"))
    assert scores.shape == ids.shape == (0, 3)


def test_no_queries_of_sparse_features():
    model = tlo.NearestNeighborModel(a_model(sparse=True), k=2, feature_weight=0.3)
    model.adapt(sparse_batches(*some_examples()))
    none = tf.sparse.from_dense(some_examples()[0][:0])
    for call in (model, tf.function(model)):
        scores, ids = call(none)
        assert scores.shape == ids.shape == (0, 2)


def test_it_adapts_again_and_is_loaded_as_it_was(tmp_path):
    model, (x, y) = a_model(), some_examples()
    both = tlo.NearestNeighborModel(
        model, 4, num_neighbors=9, temperature=0.3, weight=0.7, floor=0.1
    )
    both.adapt(batches(x, y))
    before = both.predict(x, verbose=0)
    model.layers[0].kernel.assign(2 * model.layers[0].kernel)
    both.adapt(batches(x, y))
    after = both.predict(x, verbose=0)
    assert np.any(before[0] != after[0])
    both.save(tmp_path / "both.keras")
    loaded = keras.saving.load_model(tmp_path / "both.keras")
    for one, other in zip(loaded.predict(x, verbose=0), after, strict=True):
        np.testing.assert_array_equal(one, other)


def test_what_is_refused():
    model, (x, y) = a_model(), some_examples()
    for arguments, text in (
        ((0,), "k must be .* at least 1"),
        ((1, 0), "num_neighbors must be .* at least 1"),
        ((1, 1, 0.0), "temperature must be .* above 0"),
        ((1, 1, 0.1, 1.5), "weight must be .* at most 1"),
        (
            (1, 1, 0.1, 0.5, 0.6),
            "feature_weight must be at most 1 - weight, with weight=0.5; got 0.6",
        ),
        ((1, 1, 0.1, 0.5, 0.5, 0.0), "floor must be .* above 0"),
    ):
        with pytest.raises(ValueError, match=text):
            tlo.NearestNeighborModel(model, *arguments)
    both = tlo.NearestNeighborModel(model, 3)
    with pytest.raises(RuntimeError, match="adapt must be called"):
        both(x)
    with pytest.raises(ValueError, match="pairs"):
        both.adapt([(x, y, np.ones(EXAMPLES))])
    with pytest.raises(ValueError, match="at least one example"):
        both.adapt([])
    both.adapt(batches(x, y))
    scores = both(x)[0]
    with pytest.raises(ValueError, match="as many examples"):
        both.adapt(batches(x[:5], y[:5]))
    np.testing.assert_array_equal(both(x)[0], scores)
    with pytest.raises(ValueError, match="k must be at most num_classes=150"):
        tlo.NearestNeighborModel(model, 151).adapt(batches(x, y))
    dense = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(4)])
    with pytest.raises(TypeError, match="must end in a head"):
        tlo.NearestNeighborModel(dense, 1).adapt(batches(x, y))


def a_masked_model():
    """A model of sequences that leaves out positions with only zeros."""
    keras.utils.set_random_seed(0)
    head = tlo.heads.DenseHead(CLASSES, kernel_initializer="random_normal")
    mask = keras.layers.Masking()
    layers = [keras.Input([None, WIDTH]), mask, keras.layers.Dense(5, "tanh"), head]
    model = keras.Sequential(layers)
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy())
    return model


@pytest.mark.parametrize("padding", [0, -1])  # the label of examples that are left out
def test_what_a_mask_leaves_out_is_not_looked_at(padding):
    x, _ = some_examples()
    y = np.random.default_rng(1).integers(1, CLASSES, EXAMPLES)
    x, y = x.reshape(-1, 4, WIDTH), y.reshape(-1, 4)
    x_padded = np.zeros((len(x), 7, WIDTH), "float32")
    y_padded = np.full([len(x), 7], padding)
    x_padded[:, 1:5], y_padded[:, 1:5] = x, y
    padded, plain = (tlo.NearestNeighborModel(a_masked_model(), 3) for _ in range(2))
    chosen = []
    for model, inputs, labels in ((padded, x_padded, y_padded), (plain, x, y)):
        model.adapt([(inputs, labels)])
        queries = inputs[::-1] + 0.01 * (inputs[::-1] != 0)
        chosen.append(model.choose_weights([(queries, labels[::-1])]))
    assert padded.stored == plain.stored
    assert chosen[0] == chosen[1]
    for own, other in zip(padded(x_padded), plain(x), strict=True):
        np.testing.assert_allclose(own[:, 1:5], other, rtol=1e-6)


@pytest.mark.parametrize("sparse", [False, True])
def test_rows_are_chosen_of_dense_and_of_sparse_vectors(sparse):
    rows = np.array([[1, 0, 2], [0, 0, 0], [3, 4, 0], [5, 0, 6]], "float32")
    kept = np.array([True, False, False, True])
    of = rows_of(tf.sparse.from_dense(rows) if sparse else tf.constant(rows), tf.constant(kept))
    got = tf.sparse.to_dense(of) if sparse else of
    np.testing.assert_array_equal(got, rows[kept])


def test_weights_that_are_set_count_at_once():
    model, (x, y) = a_model(), some_examples()
    both = tlo.NearestNeighborModel(model, 3, weight=0.1)
    both.adapt(batches(x, y))
    both.predict(x, verbose=0)
    both.weight = 0.9
    np.testing.assert_allclose(both.predict(x, verbose=0)[0], both(x)[0], rtol=1e-5)
    for name, value, message in (
        ("weight", 1.5, "weight must be"),
        ("feature_weight", 0.2, "feature_weight must be at most 1 - weight"),
    ):
        with pytest.raises(ValueError, match=message):
            setattr(both, name, value)
    assert (both.weight, both.feature_weight) == (0.9, 0.0)


@pytest.mark.parametrize("sparse", [False, True])
def test_what_is_not_finite_is_refused(sparse):
    model, (x, y) = a_model(sparse=sparse), some_examples()
    data = sparse_batches if sparse else batches
    both = tlo.NearestNeighborModel(model, 3, feature_weight=0.5)
    both.adapt(data(x, y))
    before = both.get_weights()
    x[7, 2] = np.nan
    for of in (both.adapt, both.choose_weights):
        with pytest.raises(tf.errors.InvalidArgumentError, match="must be finite"):
            of(data(x, y))
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be finite"):
        both(tf.sparse.from_dense(x) if sparse else x)
    for was, now in zip(before, both.get_weights(), strict=True):
        np.testing.assert_array_equal(was, now)


def test_of_sparse_targets_those_above_0_are_labels():
    model, (x, y) = a_model(), some_examples()
    targets = np.zeros((EXAMPLES, CLASSES), "float32")
    for row, labels in zip(targets, y.to_list(), strict=True):
        row[labels] = 0.5
    values = tf.sparse.from_dense(targets - 0.25 * (np.arange(CLASSES) % 7 == 0))  # some below 0
    values = tf.sparse.retain(values, values.values != 0)
    models = [tlo.NearestNeighborModel(model, 3) for _ in range(2)]
    for each, labels in zip(models, (y, values), strict=True):
        each.adapt([(x, labels)])
    for own, other in zip(*(each.get_weights()[-2:] for each in models), strict=True):
        np.testing.assert_array_equal(np.sort(own), np.sort(other))
