# SPDX-License-Identifier: Apache-2.0
"""TopK and top_k_model where not every class may be found."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import class_filter as oracle

import tfx_largeout as tlo

CLASSES, WIDTH, EXAMPLES = 60, 8, 6
RNG = np.random.default_rng(0)
H = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
SEEN = RNG.integers(-1, CLASSES, (EXAMPLES, 12))
LABELLED = np.arange(CLASSES) % 4
WANTED = np.array([0, 1, 2, 3, -1, 1])


@pytest.fixture
def head():
    head = tlo.heads.DenseHead(CLASSES, bias_initializer="random_normal")
    head.build((None, WIDTH))
    return head


@pytest.fixture
def model():
    head = tlo.heads.DenseHead(CLASSES, bias_initializer="random_normal")
    return keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(WIDTH), head])


def expected(logits, k, excluded, groups=None, wanted=None):
    may = oracle.findable(CLASSES, excluded, groups, wanted)
    return oracle.best(np.asarray(logits, np.float64), may, k)


def assert_found(found, wanted):
    np.testing.assert_array_equal(found[1], wanted[1])
    np.testing.assert_allclose(found[0], wanted[0], rtol=1e-5)


def test_forms_of_excluded_ids(head):
    rows = [[int(c) for c in row if c >= 0] for row in SEEN]
    wanted = expected(head(H), 5, SEEN)
    dense = tf.constant(SEEN + 1)
    sparse = tf.sparse.from_dense(dense)
    forms = (
        SEEN,
        SEEN.astype("int32"),
        tf.ragged.constant(rows),
        sparse.with_values(sparse.values - 1),
        np.concatenate([SEEN, SEEN[:, ::-1]], axis=1),
    )
    for form in forms:
        assert_found(tlo.TopK(head, 5)(H, exclude=form), wanted)
    assert_found(tlo.TopK(head, 5)(H, exclude=np.zeros([EXAMPLES, 0], int)), tlo.TopK(head, 5)(H))


def test_sequences(head):
    hidden, seen = H.reshape(2, 3, WIDTH), SEEN.reshape(2, 3, -1)
    scores, ids = tlo.TopK(head, 5)(hidden, exclude=seen)
    assert_found([np.reshape(x, [EXAMPLES, 5]) for x in (scores, ids)], expected(head(H), 5, SEEN))
    of_users = tlo.TopK(head, 5, categories=LABELLED)(hidden, category=WANTED.reshape(2, 3))[1]
    wanted = expected(head(H), 5, [[]] * EXAMPLES, LABELLED, WANTED)[1]
    np.testing.assert_array_equal(np.reshape(of_users, [EXAMPLES, 5]), wanted)


def test_fewer_than_k_are_left(head):
    seen = np.tile(np.arange(CLASSES - 2), [EXAMPLES, 1])
    seen[0] = 0  # all but one
    everything = np.tile(np.arange(CLASSES), [EXAMPLES, 1])
    for activation, nothing in ((None, -np.inf), ("softmax", 0), ("sigmoid", 0)):
        layer = tlo.TopK(head, 4, activation)
        scores, ids = layer(H, exclude=seen)
        np.testing.assert_array_equal(np.sort(ids[1:]), [[-1, -1, 58, 59]] * (EXAMPLES - 1))
        np.testing.assert_array_equal(scores[1:, 2:], np.full((EXAMPLES - 1, 2), nothing))
        scores, ids = layer(H, exclude=everything)
        np.testing.assert_array_equal(ids, np.full((EXAMPLES, 4), -1))
        np.testing.assert_array_equal(scores, np.full((EXAMPLES, 4), nothing))


def test_probabilities_are_those_among_all_classes(head):
    scores, ids = tlo.TopK(head, 5, "softmax", allow=range(30))(H, exclude=SEEN)
    probabilities = tf.nn.softmax(head(H)).numpy()
    np.testing.assert_allclose(
        scores, np.take_along_axis(probabilities, ids.numpy(), axis=1), rtol=1e-5
    )


@pytest.mark.parametrize("kind", ["hash", "bounds", "lists"])
def test_an_index_finds_as_many(head, kind):
    hashes = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 1, 60, max_per_bucket=CLASSES)
    lists = tlo.indexes.InvertedFile(num_lists=4, num_probed=4)
    index = {"hash": hashes, "bounds": tlo.indexes.RowBounds(), "lists": lists}[kind]
    index.rebuild(head.kernel, head.bias)
    number = {"num_found": CLASSES} if kind == "hash" else {}
    ragged = tf.RaggedTensor.from_tensor(tf.constant(SEEN), padding=-1)
    for activation in (None, "softmax"):
        layer = tlo.TopK(head, 5, activation, index=index, **number)
        exact = tlo.TopK(head, 5, activation)(H, exclude=SEEN)
        function = tf.function(layer)
        for found in (layer(H, exclude=SEEN), function(H, exclude=ragged)):
            if kind == "hash" and activation:  # among the found classes, including excluded ones
                np.testing.assert_array_equal(found[1], exact[1])
            else:
                assert_found(found, exact)
    layer = tlo.TopK(head, 5, index=index, allow=range(9, 40), categories=LABELLED, **number)
    groups = np.where((np.arange(CLASSES) >= 9) & (np.arange(CLASSES) < 40), LABELLED, -1)
    assert_found(layer(H, SEEN, WANTED), expected(head(H), 5, SEEN, groups, WANTED))


def test_a_model_with_more_inputs(model, tmp_path):
    top = tlo.top_k_model(model, 5, exclude=True, allow={3, *range(9, 50)}, categories=LABELLED)
    groups = np.where(np.isin(np.arange(CLASSES), [3, *range(9, 50)]), LABELLED, -1)
    wanted = expected(model.predict(H, verbose=0), 5, SEEN, groups, WANTED)
    assert_found(top.predict([H, SEEN, WANTED], verbose=0), wanted)
    assert_found(top.predict([H, SEEN, WANTED[:, np.newaxis]], verbose=0), wanted)
    data = tf.data.Dataset.from_tensor_slices(((H, SEEN, WANTED),)).batch(4)
    assert_found(top.predict(data, verbose=0), wanted)
    top.save(tmp_path / "top.keras")
    loaded = keras.saving.load_model(tmp_path / "top.keras")
    assert_found(loaded.predict([H, SEEN, WANTED], verbose=0), wanted)


def test_ragged_ids_in_predict(model):
    top = tlo.top_k_model(model, 5, exclude=True)
    ragged = tf.ragged.constant([[int(c) for c in row if c >= 0] for row in SEEN])
    wanted = expected(model.predict(H, verbose=0), 5, SEEN)
    assert_found(top.predict([H, ragged], batch_size=4, verbose=0), wanted)


def test_a_layer_of_a_functional_model(head, tmp_path):
    inputs, seen = keras.Input([WIDTH]), keras.Input([None], dtype="int64", name="seen")
    outputs = tlo.TopK(head, 5, allow=np.arange(40), name="top")(inputs, exclude=seen)
    model = keras.Model([inputs, seen], outputs)
    wanted = expected(head(H), 5, SEEN, np.where(np.arange(CLASSES) < 40, 0, -1), [-1] * EXAMPLES)
    assert_found(model.predict([H, SEEN], verbose=0), wanted)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert_found(loaded.predict([H, SEEN], verbose=0), wanted)


BAD_ARGUMENTS = [
    ({"allow": []}, ValueError, "allow must have at least one class"),
    ({"allow": [[1, 2]]}, ValueError, r"allow must be of one dimension; got shape \(1, 2\)"),
    ({"allow": [1.0]}, TypeError, "allow must be integers; got dtype float64"),
    ({"allow": [True]}, TypeError, "allow must be integers; got dtype bool"),
    ({"allow": [3, CLASSES]}, ValueError, "allow must be class ids below num_classes=60; got 60"),
    ({"allow": [3, -1]}, ValueError, "allow must be at least 0 .* got -1 to 3"),
    ({"categories": [0, 1]}, ValueError, "categories must have one entry per class, .*=60; got 2"),
    ({"categories": LABELLED - 1}, ValueError, "categories must be at least 0"),
    ({"categories": LABELLED / 2}, TypeError, "categories must be integers; got dtype float64"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments(head, model, arguments, error, message):
    with pytest.raises(error, match=message):
        tlo.TopK(head, 3, **arguments)
    more = [WANTED] * ("categories" in arguments)
    with pytest.raises(error, match=message):
        tlo.top_k_model(model, 3, **arguments)([H, *more] if more else H)


BAD_CALLS = [
    ({"exclude": SEEN.astype("float32")}, TypeError, "exclude must be integers .*float32"),
    ({"exclude": SEEN[0]}, ValueError, r"exclude must be \[..., E\] class ids.*got shape \(12,\)"),
    ({"exclude": SEEN[:5]}, ValueError, r"exclude: .*\(6,\); got \(5,\)"),
    ({"exclude": SEEN + 2}, tf.errors.InvalidArgumentError, "exclude: each id must .*less than 60"),
    ({"exclude": SEEN - 1}, tf.errors.InvalidArgumentError, r"exclude: each id must .*got.*-2"),
    ({"category": WANTED}, ValueError, "category needs categories"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD_CALLS)
def test_bad_calls(head, arguments, error, message):
    seen = {name: np.where(x == 61, 60, x) for name, x in arguments.items()}
    with pytest.raises(error, match=message):
        tlo.TopK(head, 3)(H, **seen)
    with pytest.raises(error, match=message):
        tf.function(tlo.TopK(head, 3))(H, **seen)


def test_other_bad_calls(head, model):
    with pytest.raises(ValueError, match=r"exclude must be .*, or a tf.ragged.constant; got"):
        tlo.TopK(head, 3)(H, exclude=[[1]] * 5 + [[2, 3]])
    with pytest.raises(ValueError, match=r"exclude must be .*, or a tf.ragged.constant; got"):
        tlo.TopK(head, 3)(H, exclude=[[1]] * 5 + [[2, 3]])
    layer = tlo.TopK(head, 3, categories=LABELLED)
    with pytest.raises(ValueError, match="category must be given with categories"):
        layer(H)
    with pytest.raises(TypeError, match="category must be integers"):
        layer(H, category=WANTED.astype("float32"))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"at most 3, the .* got.*4"):
        layer(H, category=np.full(EXAMPLES, 4))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"category must be one .*6.*got.*2"):
        layer(H, category=WANTED[:2])
    with pytest.raises(ValueError, match=r"inputs must be a list \[x, exclude, category\]"):
        tlo.top_k_model(model, 3, exclude=True, categories=LABELLED)([H, SEEN])
    with pytest.raises(ValueError, match="exclude must be True or False; got 1"):
        tlo.top_k_model(model, 3, exclude=1)
