# SPDX-License-Identifier: Apache-2.0
"""examples/serve/train.py: a text has the features that its definition has in the data."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from child import run_child

from tfx_largeout.datasets import load_wordnet, tf_idf, wordnet_names

FOLDER = Path(__file__).parents[2] / "examples" / "serve"


@pytest.fixture(scope="module")
def train():
    sys.path.insert(0, str(FOLDER))
    try:
        yield importlib.import_module("train")
    finally:
        sys.path.remove(str(FOLDER))
        for name in ("train", "text"):
            sys.modules.pop(name, None)


def sparse_rows(examples, count):
    (features, _) = next(iter(examples.dataset(count)))
    return features


def assert_same(rows, expected):
    rows, expected = tf.sparse.reorder(rows), tf.sparse.reorder(expected)
    np.testing.assert_array_equal(rows.indices, expected.indices)
    np.testing.assert_allclose(rows.values, expected.values, rtol=1e-6)
    np.testing.assert_array_equal(rows.dense_shape, expected.dense_shape)


@pytest.mark.thorough
def test_texts_of_the_words_of_definitions_have_their_rows(train):
    counts, test = load_wordnet("hyper")
    words, _ = wordnet_names("hyper")
    layer = train.text_layer(counts, words)
    rng = np.random.default_rng(0)
    for examples, expected in zip((counts, test), tf_idf(counts, test), strict=True):
        chosen = rng.choice(len(examples), 500, replace=False)
        texts = []
        for row in chosen:
            place = slice(*examples.feature_splits[row : row + 2])
            times = examples.feature_values[place].astype(int)
            own = np.repeat(np.array(words)[examples.feature_ids[place]], times)
            texts.append(" ".join(rng.permutation(own)))
        assert_same(layer(tf.constant(texts)), sparse_rows(expected.take(chosen), 500))


def test_a_gloss_of_wordnet_has_the_row_of_its_synset(train):
    counts, _ = load_wordnet("lemma")
    words, lemmas = wordnet_names("lemma")
    (weighted,) = tf_idf(counts)
    gloss = (
        "an imaginary line around the Earth forming the great circle that is equidistant from the "
        "north and south poles"
    )
    at = np.flatnonzero(counts.label_ids == lemmas.index("equator"))
    rows = np.searchsorted(counts.label_splits, at, side="right") - 1
    (row,) = [
        row
        for row in rows
        if words.index("imaginary") in counts.feature_ids[slice(*counts.feature_splits[row:][:2])]
    ]
    layer = train.text_layer(counts, words)
    assert_same(layer(tf.constant([gloss])), sparse_rows(weighted.take(np.array([row])), 1))


TEXTS = [
    "A person's well-being, (esp.) in the 1990s",
    "under_scores; TABS\tand\nlines: a/b/c...",
    "Ünïcode ÉTÉ \u0130stanbul \u01c5 \u00b2 \u0663 e\u0301",
    "the the THE the",
    "unknownword",
    "",
    "\u00a0 -- !?",
]


def test_texts_are_cut_as_the_data_were(train):
    """Maximal runs of letters and digits, in lower case: SOURCE.txt of the data."""
    runs = [re.findall(r"[^\W_]+", text.lower()) for text in TEXTS]
    words = sorted({word for own in runs for word in own} - {"unknownword"})
    idf = np.linspace(1, 2, len(words), dtype=np.float32)
    layer = sys.modules["text"].TfIdf(words, idf)
    expected = np.zeros([len(TEXTS), len(words)])
    for row, own in zip(expected, runs, strict=True):
        for word in own:
            if word in words:
                row[words.index(word)] += idf[words.index(word)]
    expected /= np.maximum(np.linalg.norm(expected, axis=1, keepdims=True), 1e-9)
    np.testing.assert_allclose(tf.sparse.to_dense(layer(tf.constant(TEXTS))), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error"),
    [(["words"], "must not be there, or be empty; got words"), (["new", "-k=0"], "-k must be in")],
)
def test_what_would_fail_after_the_training_fails_before_it(
    train, tmp_path, monkeypatch, capsys, options, error
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "words").mkdir()
    (tmp_path / "words" / "1").touch()
    monkeypatch.setattr(sys, "argv", ["train.py", *options])
    with pytest.raises(SystemExit):
        train.main()
    assert error in capsys.readouterr().err


@pytest.mark.thorough
def test_trains_and_exports(tmp_path):
    options = ("--config=lemma", "--epochs=1", "--examples=1500", "-k=20")
    done = run_child(tmp_path, str(FOLDER / "train.py"), "words", *options)
    assert done.returncode == 0, done.stderr[-2000:]
    serve = tf.saved_model.load(str(tmp_path / "words")).signatures["serving_default"]
    answer = serve(inputs=tf.constant(["a large body of salt water", ""]))
    assert answer["names"].shape == answer["scores"].shape == (2, 20)
    _, lemmas = wordnet_names("lemma")
    for names, ids in zip(answer["names"].numpy(), answer["ids"].numpy(), strict=True):
        assert [name.decode() for name in names] == [lemmas[c].replace("_", " ") for c in ids]
