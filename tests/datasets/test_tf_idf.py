# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from oracles import weighting_and_sampling as oracle
from oracles import xc_files

from tfx_largeout.datasets import read_xc, tf_idf


@pytest.fixture
def train_and_test(tmp_path):
    rng = np.random.default_rng(0)
    rows = [xc_files.draw(rng, n, 30, 5) for n in (80, 20)]
    for _, features in rows[1][:3]:
        features.update(dict.fromkeys(features, 0.0))
    paths = [xc_files.write(tmp_path / f"{i}.txt", r, 30, 5) for i, r in enumerate(rows)]
    return rows, [read_xc(path) for path in paths]


def test_weights_of_both_sets_come_from_train(train_and_test):
    rows, containers = train_and_test

    weighted = tf_idf(*containers)

    assert len(weighted) == 2
    for row_list, examples in zip(rows, weighted, strict=True):
        expected = [
            value for row in oracle.tf_idf(rows[0], row_list) for _, value in sorted(row.items())
        ]
        smallest = np.finfo(np.float32).tiny
        np.testing.assert_allclose(examples.feature_values, expected, rtol=1e-6, atol=smallest)


def test_logs_keep_the_sign(train_and_test):
    _, (train, _) = train_and_test
    values = np.sign(train.feature_values) * np.log1p(np.abs(train.feature_values))

    (of_logs,) = tf_idf(dataclasses.replace(train, feature_values=values))
    (weighted,) = tf_idf(train, log=True)

    assert (weighted.feature_values < 0).any()
    np.testing.assert_allclose(weighted.feature_values, of_logs.feature_values, rtol=1e-6)


def test_a_value_of_0_is_no_feature(train_and_test):
    _, (train, _) = train_and_test
    values = train.feature_values.copy()
    values[::3] = 0
    splits = np.concatenate([[0], np.cumsum(values != 0)])[train.feature_splits]
    without = dataclasses.replace(
        train,
        feature_splits=splits,
        feature_ids=train.feature_ids[values != 0],
        feature_values=values[values != 0],
    )

    (zeros,) = tf_idf(dataclasses.replace(train, feature_values=values))
    (gone,) = tf_idf(without)

    np.testing.assert_array_equal(zeros.feature_values[values != 0], gone.feature_values)


def test_only_values_change(train_and_test):
    _, (train, _) = train_and_test
    before = train.feature_values.copy()

    (weighted,) = tf_idf(train)

    for name in ("feature_splits", "feature_ids", "label_splits", "label_ids"):
        np.testing.assert_array_equal(getattr(weighted, name), getattr(train, name))
    np.testing.assert_array_equal(train.feature_values, before)


@pytest.mark.parametrize("width", ["num_features", "num_labels"])
def test_examples_of_another_width_are_refused(train_and_test, width):
    _, (train, test) = train_and_test
    here = getattr(train, width)
    wider = dataclasses.replace(test, **{width: here + 1})

    with pytest.raises(ValueError, match=f"others must have {width} = {here}.*got {here + 1}"):
        tf_idf(train, test, wider)
