# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import hash_index as oracle
from serving.models import (
    CLASSES,
    NAMES,
    WIDTH,
    K,
    X,
    assert_same,
    clustered_model,
    dense_model,
    exported,
    loaded,
    model_of,
)

import tfx_largeout as tlo
from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder
from tfx_largeout.serving.searcher import SearchOptions, searcher_of

NUM_TABLES = 6
FAMILIES = {
    "winners": (tlo.indexes.WTAHash(4), 2, {}),
    "bins": (tlo.indexes.DWTAHash(2), 3, {}),
    "planes": (tlo.indexes.SimHash(), 4, {}),
    "products": (tlo.indexes.SimHash(), 4, {"similarity": "inner_product", "length_ranges": 3}),
}


def index_of(model, family="products", **arguments):
    """An index over the rows of a model's head, of tables that miss classes."""
    functions, hashes, more = FAMILIES[family]
    index = tlo.indexes.HashIndex(functions, hashes, NUM_TABLES, **more, **arguments)
    head = model.layers[-1]
    index.rebuild(head.kernel, head.bias)
    return index


def hidden_of(model, x=X):
    return model.layers[0](x)


def answer(model, k, index, num_probed=None, x=X, **options):
    """Returns the answers of an export, without writing one: logits."""
    every = dict.fromkeys(SearchOptions.__dataclass_fields__)
    every |= {"rows": "float32", "rescore": False, "seed": 0, "temperature": 1.0}
    every |= {"k": k, "index": index, **options}
    searcher = searcher_of(model.layers[-1], SearchOptions(**every))
    number = searcher.num_probed if num_probed is None else num_probed
    best = searcher.best(hidden_of(model, x), tf.constant(number))
    found = {"scores": best.scores, "ids": best.ids}
    if best.log_partition is not None:
        found["log_partition"] = best.log_partition
    return {name: values.numpy() for name, values in found.items()}


def assert_as_in_process(result, model, k, index, activation=None, x=X, **arguments):
    layer = tlo.TopK(model.layers[-1], k, activation, index, **arguments)
    assert_same(result, layer(hidden_of(model, x)))


def best_by_definition(model, index, num_probed, num_found):
    """The ids and scores `[N, K]`, from the tables of an index one by one, in float64."""
    head, hidden = model.layers[-1], hidden_of(model).numpy().astype(np.float64)
    vectors = hidden
    if index.similarity == "inner_product":
        vectors = np.concatenate([hidden, np.ones((len(X), 1)), np.zeros((len(X), 1))], axis=1)
    elements, planes = (np.asarray(each) for each in (index.elements, index.planes))
    if planes.size:
        values = oracle.sign_values(vectors, planes)
    else:
        values = oracle.winner_values(vectors, elements.astype(int), index._bins)
    codes = oracle.codes(
        vectors, values, index.family.num_values, NUM_TABLES, index.hashes_per_table
    )
    order = BucketOrder.draw(NUM_TABLES, head.num_classes, tf.constant([0, 0]))
    entries, starts = (np.asarray(each).astype(np.int64) for each in index.tables[:2])
    rotations = order.rotations.numpy()
    codes[:, order.tables.numpy()[num_probed:]] = -1
    visits = [
        oracle.visited(
            entries,
            starts,
            own[np.newaxis],
            order.tables.numpy(),
            rotations,
            index.max_per_bucket,
            index.num_ranges,
        )
        for own in codes
    ]
    found, _ = oracle.own_candidates(visits, num_found, NUM_TABLES * index.num_ranges)
    logits = hidden @ head.kernel.numpy().T.astype(np.float64) + head.bias.numpy()
    scores, ids = np.full((len(X), K), -np.inf), np.full((len(X), K), -1)
    for row, own in enumerate(found):
        best = sorted(own[own >= 0], key=lambda c: (-logits[row, c], c))[:K]
        ids[row, : len(best)], scores[row, : len(best)] = best, logits[row, best]
    return scores, ids


@pytest.mark.parametrize(
    ("family", "num_found", "max_per_bucket"),
    [("products", 60, 8), ("winners", 60, 8), ("bins", 600, 256), ("planes", 5, 3)],
)
def test_it_is_what_the_definition_finds(family, num_found, max_per_bucket, monkeypatch):
    # A turn has five of the twelve examples.
    monkeypatch.setattr(
        "tfx_largeout.serving.stored_indexes._BLOCK_ELEMENTS", 5 * num_found * WIDTH
    )
    model = clustered_model()
    index = index_of(model, family, max_per_bucket=max_per_bucket)
    found = []
    for num_probed in (1, 3, NUM_TABLES):
        result = answer(model, K, index, num_probed, num_found=num_found)
        assert_same(result, best_by_definition(model, index, num_probed, num_found))
        found.append(result["ids"])
    assert np.any(found[0] != found[-1])
    assert_as_in_process(result, model, K, index, num_found=num_found)


@pytest.mark.parametrize(
    ("activation", "k", "family"),
    [
        ("softmax", 7, "products"),
        ("sigmoid", 40, "planes"),
        (None, 1, "bins"),
    ],
)
@pytest.mark.thorough
def test_any_batch_size_and_activation(activation, k, family, tmp_path):
    model = dense_model(200)
    index = index_of(model, family)
    tlo.export(model, tmp_path / "hash", k, index=index, activation=activation)
    serving = loaded(tmp_path / "hash")
    for batch in (0, 1, 33):
        x = np.random.default_rng(batch).normal(size=(batch, WIDTH)).astype("float32")
        result = serving(inputs=x)
        assert_as_in_process(result, model, k, index, activation, x)
        if activation == "softmax":
            top = tlo.TopK(model.layers[-1], k, None, index)(hidden_of(model, x))
            expected = tf.exp(top[0] - result["log_partition"][:, tf.newaxis])
            np.testing.assert_allclose(result["scores"], expected, atol=1e-5)


def test_ties_go_to_the_lower_id():
    model = dense_model(400)
    head = model.layers[-1]
    head.kernel.assign(np.repeat(head.kernel.numpy()[:20], 20, axis=0))  # 20 of each
    head.bias.assign(np.zeros(400))
    index = index_of(model, max_per_bucket=400)
    result = answer(model, 30, index, num_found=400)
    for scores, ids in zip(result["scores"], result["ids"], strict=True):
        assert len(np.unique(scores)) < 4
        assert sorted(zip(-scores, ids, strict=True)) == list(zip(-scores, ids, strict=True))
        assert (ids[:20] % 20 == np.arange(20)).all()


@pytest.mark.parametrize("activation", [None, pytest.param("softmax", marks=pytest.mark.thorough)])
def test_where_fewer_than_k_are_found_nothing_follows(activation, tmp_path):
    model = dense_model()
    index = index_of(model, "planes")
    x = np.concatenate([X, np.zeros((1, WIDTH), "float32")])  # zeros find nothing
    arguments = {"index": index, "num_probed": 1, "activation": activation, "names": NAMES}
    result = exported(model, tmp_path / "few", x, k=20, **arguments)
    missing = result["ids"] < 0
    found = (~missing).sum(axis=1)
    assert found[-1] == 0 and 1 <= found[:-1].max() < 20
    assert np.all(missing == (np.arange(20) >= found[:, np.newaxis]))
    assert np.all(result["scores"][missing] == (-np.inf if activation is None else 0))
    assert np.all(result["names"][missing] == b"")
    if activation == "softmax":
        sums = result["scores"].sum(axis=1)
        np.testing.assert_allclose(sums, (found > 0).astype(float), rtol=1e-5)
        assert np.all(np.isneginf(result["log_partition"]) == (found == 0))


@pytest.mark.thorough
@pytest.mark.parametrize("rows", ["bfloat16", "int8"])
def test_rounded_rows(rows, tmp_path):
    model = clustered_model()
    index = index_of(model)
    expected = tlo.TopK(model.layers[-1], K, None, index)(hidden_of(model))
    rounded = exported(model, tmp_path / "rounded", index=index, rows=rows)
    np.testing.assert_allclose(rounded["scores"], expected[0], rtol=2e-2, atol=0.1)
    assert np.abs(rounded["scores"] - expected[0]).max() > 1e-4
    again = exported(
        model, tmp_path / "again", index=index, rows=rows, rescore=True, activation="softmax"
    )
    np.testing.assert_array_equal(again["ids"], expected[1])
    scores = np.log(again["scores"]) + again["log_partition"][:, np.newaxis]
    np.testing.assert_allclose(scores, expected[0], atol=1e-4)
    assert again["scores"].sum(axis=1).max() <= 1 + 1e-5


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_not_finite_stays_with_its_example(bad):
    inputs = keras.Input((WIDTH,))
    model = keras.Sequential([keras.layers.Identity(), tlo.heads.DenseHead(CLASSES)])
    model(inputs)
    index = index_of(model)
    x = X.copy()
    x[3, 2] = bad
    expected, result = (answer(model, K, index, x=each, activation="softmax") for each in (X, x))
    assert np.isnan(result["scores"][3]).all() and np.isnan(result["log_partition"][3])
    assert (result["ids"][3] >= 0).all()  # -1: no class, with probability 0
    others = np.arange(len(X)) != 3
    for name, values in result.items():
        np.testing.assert_array_equal(values[others], expected[name][others])


@pytest.mark.thorough
def test_the_index_of_a_head_and_its_recall(tmp_path):
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 3, 20, similarity="inner_product")
    head = tlo.heads.SampledHead(
        CLASSES, tlo.samplers.LSHEmbedding(9), tlo.optimizers.RowSGD(0.1), index=index, seed=1
    )
    model = model_of(head)
    tlo.export(model, tmp_path / "new", K, index=head.index)  # it has not drawn candidates yet
    assert_as_in_process(loaded(tmp_path / "new")(inputs=X), model, K, index)
    model.compile("sgd", tlo.losses.ActiveSetSoftmax())
    model.fit(X, np.arange(len(X)), epochs=2, verbose=0)
    tlo.export(model, tmp_path / "old", K, index=head.index, num_probed=1)
    recalls = [tlo.serving.recall(model, tmp_path / "old", X, n) for n in (1, 5, 20)]
    assert recalls[0] < recalls[1] < recalls[2] <= 1
    assert tlo.serving.recall(model, tmp_path / "old", X) == recalls[0]
    before = [weight.numpy() for weight in index.weights]
    model.fit(X, np.arange(len(X)), verbose=0)
    assert any(np.any(old != new) for old, new in zip(before, index.weights, strict=True))
    assert tlo.serving.recall(model, tmp_path / "old", X, 20) <= 1  # the old file is unchanged


@pytest.mark.thorough
def test_only_tables_and_hash_functions_go_along(tmp_path):
    model = dense_model(2000, width=32)
    index = index_of(model)
    tlo.export(model, tmp_path / "hash", index=index)
    written = tf.train.list_variables(str(tmp_path / "hash" / "variables" / "variables"))
    sizes = sorted(shape for name, shape in written if name.endswith("VARIABLE_VALUE") and shape)
    weights = [*model.weights, index.entries, index.starts, index.elements, index.planes]
    assert sizes == sorted(list(weight.shape) for weight in weights)


def wrong_shape():
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 3)
    index.rebuild(tf.Variable(tf.ones([CLASSES, WIDTH + 1])))
    return index


def never_rebuilt():
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 3)
    index.build((CLASSES, WIDTH))
    return index


def corrupt(name):
    index = index_of(dense_model())
    values = getattr(index, name).numpy()
    values[2, 0] = 2**32 - 7
    getattr(index, name).assign(values)
    return index


BAD = {
    "not built": (
        lambda: tlo.indexes.HashIndex(),
        {},
        (RuntimeError, "index must be built before it is asked"),
    ),
    "not over rows": (never_rebuilt, {}, (RuntimeError, "index must be built over rows before")),
    "of another shape": (wrong_shape, {}, (ValueError, r"kernel must be \[C, D\] = \[50, 9\]")),
    "starts": (lambda: corrupt("starts"), {}, (ValueError, "got table 2, which is corrupt")),
    "entries": (lambda: corrupt("entries"), {}, (ValueError, "got table 2, which is corrupt")),
    "bounds": (
        tlo.indexes.RowBounds,
        {},
        (ValueError, "index must be None, 'ivf' or a HashIndex; got <RowBounds"),
    ),
    "lists": (None, {"num_lists": 3}, (ValueError, "num_lists must be None with a HashIndex")),
    "no table": (None, {"num_probed": 0}, (ValueError, "num_probed must be an integer of at l")),
    "tables": (
        None,
        {"num_probed": 7},
        (ValueError, "num_probed must be at most the number of tables, 6; got 7"),
    ),
    "below k": (
        None,
        {"num_found": 4},
        (ValueError, "num_found must be an integer of at least 5; got 4"),
    ),
    "above C": (
        None,
        {"num_found": 51},
        (ValueError, "num_found must be at most num_classes=50; got 51"),
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_indexes_are_refused_and_nothing_is_written(name, tmp_path):
    make, arguments, (error, message) = BAD[name]
    model = dense_model()
    index = index_of(model) if make is None else make()
    with pytest.raises(error, match=message):
        tlo.export(model, tmp_path / "model", K, index=index, **arguments)
    assert not list(tmp_path.iterdir())


def test_a_head_without_rows_w_is_refused(tmp_path):
    model = model_of(tlo.heads.FactoredHead(CLASSES, 0.1))
    with pytest.raises(TypeError, match="an index must go with a head that has W and b; got Fact"):
        tlo.export(model, tmp_path / "model", K, index=index_of(dense_model()))
    assert not list(tmp_path.iterdir())


@pytest.mark.thorough
@pytest.mark.parametrize("number", [0, 7])
def test_a_request_for_no_table_or_too_many_is_refused(number, tmp_path):
    model = dense_model()
    tlo.export(model, tmp_path / "hash", index=index_of(model))
    probe = loaded(tmp_path / "hash", "with_num_probed")
    with pytest.raises(tf.errors.InvalidArgumentError, match="num_probed must be at least 1 and"):
        probe(inputs=tf.constant(X), num_probed=tf.constant(number))
