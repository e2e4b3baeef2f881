# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import keras
import numpy as np
import pytest
from variants import cases_of, product

from tfx_largeout.compare.head_builders import HeadBuilder
from tfx_largeout.compare.head_options import HASH_FAMILIES, fitted
from tfx_largeout.compare.head_table import HEAD_TABLE, head_row
from tfx_largeout.metrics import PrecisionAtK

NUM_CLASSES = 40


def build(row, **options):
    """A head of the table and its loss."""
    options = dict(row.options) | options
    few = {"num_sampled": 10, "num_found": 10, "top_k": 5, "hashes_per_table": 3}
    options |= {name: value for name, value in few.items() if name in options}
    if "head_learning_rate" in options:
        options["head_learning_rate"] = 1.0  # the default is for thousands of times more classes
    counts = np.arange(NUM_CLASSES)[::-1]  # the last class has no example
    options = fitted(options, row.default_options, NUM_CLASSES)
    return row.make(HeadBuilder(NUM_CLASSES, counts, seed=1, options=options))


def train(row):
    """Trains a small model with a head of the table; returns P@1."""
    head, loss = build(row)
    model = keras.Sequential([keras.Input([4]), keras.layers.Dense(8), head])
    model.compile(keras.optimizers.Adam(0.05), loss=loss, metrics=[PrecisionAtK(1)])
    x = np.random.default_rng(0).normal(size=[32, 4]).astype(np.float32)
    y = np.arange(32)[:, np.newaxis]
    # 100 steps in one epoch: each epoch would make its own iterators.
    model.fit(np.tile(x, [100, 1]), np.tile(y, [100, 1]), batch_size=32, shuffle=False, verbose=0)
    return model.evaluate(x, y, verbose=0)[1]


@cases_of("row", HEAD_TABLE)
def test_each_row_builds_a_head_and_a_loss_that_train(row):
    assert train(row) > 0.15  # chance: 0.03


def assert_has_a_loss(head, loss):
    hidden = np.random.default_rng(0).normal(size=[3, 8]).astype("float32")
    assert np.isfinite(loss(np.arange(3)[:, np.newaxis], head(hidden, training=True)))


@pytest.mark.parametrize(
    ("sampler", "name"),
    product(["log_uniform", "uniform", "unigram"], ["tf_nce", "complementary_sum"]),
)
def test_each_sampler_is_built(name, sampler):
    head, loss = build(head_row(name), sampler=sampler)
    assert_has_a_loss(head, loss)
    if name == "tf_nce":
        assert head.sampler == {"unigram": "fixed_unigram"}.get(sampler, sampler)
    else:
        assert type(head.sampler).__name__.lower() == sampler.replace("_", "")


@cases_of("hash_family", HASH_FAMILIES)
def test_each_hash_family_is_built(hash_family):
    head, loss = build(head_row("lsh_embedding"), hash_family=hash_family)
    assert_has_a_loss(head, loss)
    assert type(head.index.family) is HASH_FAMILIES[hash_family]
    by_products = hash_family == "inner_product"
    assert head.index.similarity == ("inner_product" if by_products else "angle")


def test_names_are_unique_and_unknown_names_refused():
    assert len({row.name for row in HEAD_TABLE}) == len(HEAD_TABLE)
    with pytest.raises(ValueError, match=r"must be one of full_softmax, .*; got 'softmax'"):
        head_row("softmax")


@pytest.mark.all_cases
@pytest.mark.parametrize("has_multi_optimizer", [False, True])
def test_defaults_follow_what_keras_has(has_multi_optimizer, monkeypatch):
    monkeypatch.setattr(keras.optimizers, "MultiOptimizer", object, raising=False)
    if not has_multi_optimizer:
        monkeypatch.delattr(keras.optimizers, "MultiOptimizer")
    for row in HEAD_TABLE:
        one = not row.updates_itself and not has_multi_optimizer
        same = {"head_optimizer": "same"} if one else {}
        assert row.default_options == {**row.options, **same}
