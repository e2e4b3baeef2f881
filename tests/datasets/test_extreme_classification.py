# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
import gzip
import lzma

import numpy as np
import pytest
import tensorflow_datasets as tfds

from tfx_largeout.datasets import (
    ExtremeClassification,
    ExtremeClassificationConfig,
    read_xc,
    uniform_labels,
)
from tfx_largeout.datasets.wordnet_reverse_dictionary.wordnet_reverse_dictionary import DATA_FOLDER

SIZES = {"num_features": 27_463, "num_labels": 137_311}
CONFIG = ExtremeClassificationConfig("wordnet", **SIZES)


@pytest.fixture
def manual_dir(tmp_path):
    """400 real training examples as older archives name them, and 100 real test examples."""
    folder = tmp_path / "manual" / "wordnet"
    folder.mkdir(parents=True)
    for split, number, name, compress in [
        ("train", 400, "wordnet_train.txt", bytes),
        ("test", 100, "test.txt.gz", gzip.compress),
    ]:
        with lzma.open(DATA_FOLDER / "lemma" / f"{split}.txt.xz", "rb") as file:
            _, sizes = next(file).split(b" ", 1)
            lines = b"".join(next(file) for _ in range(number))
        (folder / name).write_bytes(compress(b"%d %b%b" % (number, sizes, lines)))
    return folder.parent


def prepare(config, tmp_path, manual_dir):
    builder = ExtremeClassification(config=config, data_dir=tmp_path / "data")
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(manual_dir=manual_dir)
    )
    return builder


def label_sets(builder, split):
    return sorted(x["labels"].tolist() for x in tfds.as_numpy(builder.as_dataset(split)))


def label_sets_of(examples):
    return sorted(row.tolist() for row in np.split(examples.label_ids, examples.label_splits[1:-1]))


def test_prepares_what_the_files_hold(tmp_path, manual_dir):
    builder = prepare(CONFIG, tmp_path, manual_dir)

    assert builder.info.metadata == {**SIZES, "uniform": 0}
    train = read_xc(manual_dir / "wordnet" / "wordnet_train.txt")
    assert label_sets(builder, "train") == label_sets_of(train)
    assert builder.info.splits["test"].num_examples == 100


def test_uniform_variant(tmp_path, manual_dir):
    config = ExtremeClassificationConfig("wordnet_uniform", folder="wordnet", uniform=50)

    builder = prepare(config, tmp_path, manual_dir)

    assert builder.info.metadata == {**SIZES, "num_labels": 50, "uniform": 50}
    containers = [
        read_xc(manual_dir / "wordnet" / name) for name in ("wordnet_train.txt", "test.txt.gz")
    ]
    for split, examples in zip(
        ("train", "test"), uniform_labels(*containers, num_labels=50), strict=True
    ):
        assert label_sets(builder, split) == label_sets_of(examples)


def test_sizes_of_a_set_without_expectations_come_from_the_files(tmp_path, manual_dir):
    config = ExtremeClassificationConfig("any", folder="wordnet")

    prepare(config, tmp_path, manual_dir)

    again = ExtremeClassification(config=config, data_dir=tmp_path / "data")
    assert again.info.metadata == {**SIZES, "uniform": 0}


@pytest.mark.parametrize(
    "prepared, asked",
    [({}, {"uniform": 50}), ({"uniform": 50}, {}), ({"uniform": 50}, {"uniform": 40})],
    ids=["all, 50", "50, all", "50, 40"],
)
def test_what_was_prepared_with_other_labels_is_refused(tmp_path, manual_dir, prepared, asked):
    def config(options):
        return ExtremeClassificationConfig("any", folder="wordnet", **options)

    prepare(config(prepared), tmp_path, manual_dir)

    ExtremeClassification(config=config(prepared), data_dir=tmp_path / "data")
    with pytest.raises(ValueError, match=r"as it was prepared.*Give the config another name"):
        ExtremeClassification(config=config(asked), data_dir=tmp_path / "data")


@pytest.mark.parametrize("what", ["num_features", "num_labels"])
def test_other_sizes_than_expected_are_refused(tmp_path, manual_dir, what):
    config = dataclasses.replace(CONFIG, **{what: 5})

    message = rf"wordnet_train\.txt:1: {what} of wordnet must be 5; got {getattr(CONFIG, what)}"
    with pytest.raises(ValueError, match=message):
        prepare(config, tmp_path, manual_dir)


def test_missing_and_ambiguous_files_are_named(tmp_path, manual_dir):
    (manual_dir / "wordnet" / "test.txt.gz").rename(manual_dir / "wordnet" / "t.gz")
    with pytest.raises(FileNotFoundError, match=r"wordnet must hold one test\.txt.*got none"):
        prepare(CONFIG, tmp_path, manual_dir)

    (manual_dir / "wordnet" / "train.txt").write_text("0 1 1\n")
    with pytest.raises(ValueError, match=r"one train\.txt.* got train\.txt, wordnet_train\.txt"):
        prepare(CONFIG, tmp_path, manual_dir)


def test_instructions_come_up_when_nothing_was_downloaded(tmp_path):
    builder = tfds.builder("extreme_classification/amazon_670k", data_dir=tmp_path)

    with pytest.raises(AssertionError, match=r"manikvarma\.org/downloads/XC"):
        builder.download_and_prepare()


def test_amazon_uniform_is_amazon_670k_with_the_number_of_labels_of_the_paper():
    configs = ExtremeClassification.builder_configs
    uniform, whole = configs["amazon_uniform"], configs["amazon_670k"]

    assert (uniform.folder, uniform.uniform) == (whole.folder, 158_114)
    assert (whole.num_features, whole.num_labels) == (135_909, 670_091)
