# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import importlib
import json
import lzma

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_datasets as tfds

from tfx_largeout.datasets import (
    WordNetReverseDictionary,
    load_wordnet,
    read_xc,
    sparse_batches,
    wordnet_names,
)

loader = importlib.import_module(
    "tfx_largeout.datasets.wordnet_reverse_dictionary.wordnet_reverse_dictionary"
)


@pytest.mark.parametrize("config", loader.CONFIGS)
def test_shipped_files_hold_what_their_statistics_say(config):
    stats = json.loads((loader.DATA_FOLDER / config / "stats.json").read_text())

    splits = load_wordnet(config, loader.SPLITS)

    for name, examples in zip(loader.SPLITS, splits, strict=True):
        assert (examples.num_features, examples.num_labels) == (stats["D"], stats["L"])
        assert examples.num_examples == stats[name]["N"]
        assert len(examples.feature_ids) == stats[name]["nnz"]
        assert np.count_nonzero(examples.label_counts()) == stats[name]["distinct_labels"]
    assert splits[0].label_counts().max() == stats["train"]["max_label_frequency"]


def test_names_tell_what_an_example_is():
    words, lemmas = wordnet_names("lemma")
    train, _ = load_wordnet("lemma")

    assert (len(words), len(lemmas)) == (train.num_features, train.num_labels)
    row = train.label_splits.searchsorted(
        np.flatnonzero(train.label_ids == lemmas.index("equator"))[0], side="right"
    )
    features = train.feature_ids[slice(*train.feature_splits[row - 1 : row + 1])]
    assert {"earth", "imaginary", "line"} <= {words[i] for i in features}


def test_licence_is_next_to_the_data():
    assert "Princeton University" in (loader.DATA_FOLDER / "LICENSE.wordnet").read_text()


@pytest.mark.parametrize("call", [load_wordnet, wordnet_names])
def test_unknown_config(call):
    with pytest.raises(ValueError, match=r"config must be one of .*; got 'hypo'"):
        call("hypo")


def test_unknown_split():
    with pytest.raises(ValueError, match=r"splits must be among .*; got 'dev'"):
        load_wordnet("hyper", ["train", "dev"])


@pytest.fixture
def excerpt(tmp_path, monkeypatch):
    """The first 300 examples of each split of `hyper` in place of the whole data."""
    folder = tmp_path / "excerpt"
    (folder / "hyper").mkdir(parents=True)
    for split in loader.SPLITS:
        with lzma.open(loader.DATA_FOLDER / "hyper" / f"{split}.txt.xz", "rt") as file:
            _, *sizes = next(file).split()
            lines = [next(file) for _ in range(300)]
        with lzma.open(folder / "hyper" / f"{split}.txt.xz", "wt") as file:
            file.writelines([" ".join(["300", *sizes]) + "\n", *lines])
    monkeypatch.setattr(loader, "DATA_FOLDER", folder)
    return folder / "hyper"


def test_builder(excerpt, tmp_path):
    builder = tfds.builder("wordnet_reverse_dictionary/hyper", data_dir=tmp_path)
    assert isinstance(builder, WordNetReverseDictionary)
    builder.download_and_prepare()

    assert builder.info.metadata == {"num_features": 27_463, "num_labels": 139_536}
    assert {name: split.num_examples for name, split in builder.info.splits.items()} == (
        dict.fromkeys(loader.SPLITS, 300)
    )
    stored = sorted(
        (x["labels"].tolist(), x["feature_ids"].tolist(), x["feature_values"].tolist())
        for x in tfds.as_numpy(builder.as_dataset("train"))
    )
    features, labels = next(iter(read_xc(excerpt / "train.txt.xz").dataset(300)))
    ragged = [
        tf.RaggedTensor.from_value_rowids(values, features.indices[:, 0], nrows=300).to_list()
        for values in (features.indices[:, 1], features.values)
    ]
    assert stored == sorted(zip(labels.to_list(), *ragged, strict=True))


def test_lemma_is_a_config_too():
    assert set(WordNetReverseDictionary.builder_configs) == {"hyper", "lemma"}


@pytest.mark.parametrize(
    ("drop", "sizes", "static"), [(False, [128, 128, 44], None), (True, [128, 128], 128)]
)
def test_sparse_batches(excerpt, tmp_path, drop, sizes, static):
    builder = WordNetReverseDictionary(config="hyper", data_dir=tmp_path)
    builder.download_and_prepare()
    examples = builder.as_dataset("test", read_config=tfds.ReadConfig(try_autocache=False))

    batches = sparse_batches(examples, 27_463, 128, drop_remainder=drop)

    assert batches.element_spec == (
        tf.SparseTensorSpec([static, 27_463], tf.float32),
        tf.RaggedTensorSpec([static, None], tf.int64, ragged_rank=1),
    )
    rows = iter(tfds.as_numpy(examples))
    assert [x.shape[0] for x, _ in batches] == sizes
    for features, labels in batches:
        dense = tf.sparse.to_dense(features).numpy()
        for i, label_row in enumerate(labels.to_list()):
            example = next(rows)
            assert label_row == example["labels"].tolist()
            np.testing.assert_array_equal(np.flatnonzero(dense[i]), example["feature_ids"])
            np.testing.assert_array_equal(
                dense[i][example["feature_ids"]], example["feature_values"]
            )


@pytest.mark.parametrize("arguments", [(0, 3), (3, 0), (1.5, 3), (3, True)])
def test_sparse_batches_refuses_sizes(arguments):
    with pytest.raises(ValueError, match=r"must be an integer of at least 1; got (0|1\.5|True)"):
        sparse_batches(tf.data.Dataset.range(3), *arguments)
