# SPDX-License-Identifier: Apache-2.0
"""Exported models where not every class may be found."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS
from serving.models import (
    CLASSES,
    NAMES,
    WIDTH,
    K,
    X,
    assert_same,
    dense_model,
    loaded,
    model_of,
)

import tfx_largeout as tlo

RNG = np.random.default_rng(3)
SEEN = RNG.integers(-1, CLASSES, (len(X), 15))
CATEGORIES, WANTED = np.arange(CLASSES) % 3, np.arange(len(X)) % 4 - 1
FEW = range(0, CLASSES, 2)


def answer(folder, signature="serving_default", x=X, **more):
    result = loaded(folder, signature)(inputs=tf.constant(x), **more)
    return {name: values.numpy() for name, values in result.items()}


def hash_index(head):
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 1, 60, max_per_bucket=CLASSES)
    index.rebuild(head.kernel, head.bias)
    return {"index": index, "num_found": CLASSES}


SEARCHES = {
    "exact": lambda head: {},
    "rescored": lambda head: {"rows": "bfloat16", "rescore": True},
    "lists": lambda head: {"index": "ivf", "num_lists": 4, "num_probed": 4},
    "hash": hash_index,
}


@pytest.mark.parametrize("search", SEARCHES)
def test_the_best_that_may_be_found(search, tmp_path):
    model = dense_model()
    options = SEARCHES[search](model.layers[-1])
    tlo.export(model, tmp_path / "seen", K, exclude=True, names=NAMES, **options)
    exact = tlo.top_k_model(model, K, exclude=True)
    for seen in (SEEN, SEEN[:, :0]):
        found = answer(tmp_path / "seen", exclude=tf.constant(seen))
        assert_same(found, exact([X, seen]))
    assert found["names"][0, 0].decode() == NAMES[found["ids"][0, 0]]
    allowed = {"exclude": True, "allow": FEW, "categories": CATEGORIES}
    tlo.export(model, tmp_path / "all", 9, activation="softmax", **allowed, **options)
    found = answer(tmp_path / "all", exclude=tf.constant(SEEN), category=tf.constant(WANTED))
    scores, ids = tlo.top_k_model(model, 9, "softmax", **allowed)([X, SEEN, WANTED])
    assert np.any(ids == -1)
    np.testing.assert_array_equal(found["ids"], ids)
    if search != "hash":  # its probabilities are among the found classes
        np.testing.assert_allclose(found["scores"], scores, atol=1e-5)


def test_all_classes_are_excluded(tmp_path):
    everything = np.tile(np.arange(CLASSES), [len(X), 1])
    for name, options in (("exact", {}), ("lists", {"index": "ivf"})):
        tlo.export(dense_model(), tmp_path / name, K, exclude=True, names=NAMES, **options)
        found = answer(tmp_path / name, exclude=tf.constant(everything))
        assert (found["ids"] == -1).all() and (found["scores"] == -np.inf).all()
        assert (found["names"] == b"").all()


def test_num_probed_beside_it(tmp_path):
    model = dense_model()
    tlo.export(model, tmp_path / "m", K, index="ivf", num_lists=4, exclude=True)
    more = {"exclude": tf.constant(SEEN), "num_probed": tf.constant(4)}
    found = answer(tmp_path / "m", "with_num_probed", **more)
    assert_same(found, tlo.top_k_model(model, K, exclude=True)([X, SEEN]))
    assert tlo.serving.recall(model, tmp_path / "m", X, num_probed=4) == 1
    lists = {"index": "ivf", "num_lists": 4, "num_probed": 4}
    tlo.export(model, tmp_path / "few", K, allow=FEW, categories=CATEGORIES, **lists)
    assert tlo.serving.recall(model, tmp_path / "few", X, allow=FEW) == 1


def test_a_tree_and_a_factored_head(tmp_path):
    for kind in ("HierarchicalSoftmaxHead", "FactoredHead"):
        row = next(row for row in HEADS if type(row.make_head(CLASSES)).__name__ == kind)
        model = model_of(row.make_head(CLASSES))
        tlo.export(model, tmp_path / kind, K, exclude=True, allow=FEW)
        found = answer(tmp_path / kind, exclude=tf.constant(SEEN))
        assert_same(found, tlo.top_k_model(model, K, exclude=True, allow=FEW)([X, SEEN]))


def test_sequences_and_what_the_model_excludes_itself(tmp_path):
    inputs = keras.Input([None, WIDTH], name="x")
    seen = keras.Input([None, None], dtype="int64", name="seen")
    model = keras.Model([inputs, seen], tlo.heads.DenseHead(CLASSES)(inputs, exclude=seen))
    tlo.export(model, tmp_path / "m", K, exclude=True)
    x, ids = X.reshape(4, 3, WIDTH), SEEN.reshape(4, 3, 15)
    serve = loaded(tmp_path / "m")
    own, more = tf.constant(ids[..., :9]), tf.constant(ids[..., 9:])
    found = serve(x=tf.constant(x), seen=own, exclude=more)
    assert_same(found, tlo.top_k_model(model, K, exclude=True)([[x, own], more]))


def test_refusals(tmp_path):
    model = dense_model()
    for arguments, error, message in (
        ({"exclude": 1}, ValueError, "exclude must be True or False; got 1"),
        ({"allow": []}, ValueError, "allow must have at least one class"),
        ({"allow": [CLASSES]}, ValueError, "allow must be class ids below num_classes=50; got 50"),
        ({"categories": [1, 2]}, ValueError, "categories must have one entry per class.*got 2"),
    ):
        with pytest.raises(error, match=message):
            tlo.export(model, tmp_path / "no", **arguments)
        assert not (tmp_path / "no").exists()
    inputs = keras.Input([WIDTH], name="exclude"), keras.Input([WIDTH], name="other")
    added = keras.Model(inputs, tlo.heads.DenseHead(CLASSES)(inputs[0] + inputs[1]))
    with pytest.raises(ValueError, match="inputs must have other names than 'exclude'"):
        tlo.export(added, tmp_path / "no", exclude=True)
    tlo.export(model, tmp_path / "m", exclude=True, categories=CATEGORIES)
    wanted = tf.constant(WANTED)
    with pytest.raises(tf.errors.InvalidArgumentError, match="exclude: each id must"):
        answer(tmp_path / "m", exclude=tf.constant(SEEN + CLASSES), category=wanted)
    with pytest.raises(tf.errors.InvalidArgumentError, match="category must be at least 0 and"):
        answer(tmp_path / "m", exclude=tf.constant(SEEN), category=wanted + 2)
