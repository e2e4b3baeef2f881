# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout.datasets import SparseExamples


def small(**changes) -> SparseExamples:
    arguments = {
        "feature_splits": [0, 2, 2, 5],
        "feature_ids": [1, 3, 0, 2, 3],
        "feature_values": [1.0, 2.0, 3.0, 4.0, 5.0],
        "label_splits": [0, 1, 3, 3],
        "label_ids": [4, 0, 4],
        "num_features": 4,
        "num_labels": 6,
    }
    return SparseExamples(**{**arguments, **changes})


def numbered(num_examples: int) -> SparseExamples:
    """Example i has the one label i, and i % 4 features of value i."""
    lengths = np.arange(num_examples) % 4
    return SparseExamples(
        feature_splits=np.concatenate([[0], np.cumsum(lengths)]),
        feature_ids=np.concatenate([np.arange(n) for n in lengths]),
        feature_values=np.repeat(np.arange(num_examples), lengths),
        label_splits=np.arange(num_examples + 1),
        label_ids=np.arange(num_examples),
        num_features=3,
        num_labels=num_examples,
    )


def order_of(dataset: tf.data.Dataset) -> list[int]:
    return [int(i) for _, labels in dataset for i in labels.values]


def test_arrays_are_read_only_and_typed():
    examples = small()

    with pytest.raises(ValueError, match="read-only"):
        examples.feature_ids[0] = 2
    with pytest.raises(dataclasses.FrozenInstanceError):
        examples.num_labels = 3
    assert examples.feature_ids.dtype == np.int32
    assert examples.feature_values.dtype == np.float32
    assert {a.dtype for a in (examples.feature_splits, examples.label_splits)} == {
        np.dtype("int64")
    }
    assert examples.label_ids.dtype == np.int64


def test_sizes_and_label_counts():
    examples = small()

    assert examples.num_examples == len(examples) == 3
    np.testing.assert_array_equal(examples.label_counts(), [1, 0, 0, 0, 2, 0])


def test_take_repeats_reorders_and_drops_rows():
    taken = small().take([2, 0, 0])

    np.testing.assert_array_equal(taken.feature_splits, [0, 3, 5, 7])
    np.testing.assert_array_equal(taken.feature_ids, [0, 2, 3, 1, 3, 1, 3])
    np.testing.assert_array_equal(taken.feature_values, [3, 4, 5, 1, 2, 1, 2])
    np.testing.assert_array_equal(taken.label_splits, [0, 0, 1, 2])
    np.testing.assert_array_equal(taken.label_ids, [4, 4])


def test_take_of_nothing():
    assert len(small().take([])) == 0


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([True, False, True], "rows must be integers; got dtype bool"),
        ([0.0, 1.0], "rows must be integers; got dtype float64"),
        ([[0, 1]], r"rows must be a vector; got shape \(1, 2\)"),
        ([0, -1], r"rows must be in \[0, N\) = \[0, 3\); got values from -1 to 0"),
        ([3], r"rows must be in \[0, N\) = \[0, 3\); got values from 3 to 3"),
    ],
)
def test_take_refuses_rows_that_are_not_there(rows, message):
    with pytest.raises(ValueError, match=message):
        small().take(rows)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"feature_splits": [0, 2, 2, 4]}, "feature_splits must run from 0 to 5"),
        ({"feature_splits": [1, 2, 2, 5]}, "feature_splits must run from 0 to 5"),
        ({"feature_splits": []}, "feature_splits must run from 0 to 5"),
        ({"feature_splits": [0, 3, 2, 5]}, "feature_splits must not fall"),
        ({"label_splits": [0, 1, 3]}, "must have the same length; got 4 and 3"),
        ({"label_splits": [0, 1, 2, 2]}, "label_splits must run from 0 to 3"),
        ({"feature_values": [1.0]}, "one value for each of feature_ids; got 1 and 5"),
        ({"num_features": 3}, r"feature_ids must be in .* = \[0, 3\); got values from 0 to 3"),
        ({"label_ids": [4, -1, 4]}, r"label_ids must be in .* = \[0, 6\); got values from -1 to 4"),
        ({"feature_ids": [1, 3, 2**32, 2, 3]}, r"\[0, 4\); got values from 1 to 4294967296"),
        ({"feature_ids": [1, 3, 0.7, 2, 3]}, "feature_ids must be integers; got dtype float64"),
        ({"feature_ids": [[1, 3, 0, 2, 3]]}, r"feature_ids must be a vector; got shape \(1, 5\)"),
        ({"label_ids": [True, False, True]}, "label_ids must be integers; got dtype bool"),
        ({"label_splits": [0, 1.5, 3, 3]}, "label_splits must be integers; got dtype float64"),
        ({"feature_values": ["1"] * 5}, "feature_values must be real numbers; got dtype <U1"),
        ({"feature_values": np.ones([5, 1])}, r"feature_values must be a vector; .*\(5, 1\)"),
        ({"num_labels": -3}, "num_labels must be an integer of at least 0; got -3"),
        ({"num_features": 4.0}, r"num_features must be an integer of at least 0; got 4\.0"),
        ({"num_features": 2**31}, "num_features must be at most 2147483647; got 2147483648"),
        ({"feature_ids": [1, 3, 2, 2, 3]}, r"feature_ids must rise .* got \[2 2 3\] in row 2"),
        ({"feature_ids": [3, 1, 0, 2, 3]}, r"feature_ids must rise .* got \[3 1\] in row 0"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        small(**changes)


def test_batches_are_the_rows_in_order():
    (first_x, first_y), (last_x, last_y) = small().dataset(2)

    np.testing.assert_array_equal(tf.sparse.to_dense(first_x), [[0, 1, 0, 2], [0, 0, 0, 0]])
    np.testing.assert_array_equal(tf.sparse.to_dense(last_x), [[3, 0, 4, 5]])
    assert first_y.to_list() == [[4], [0, 4]]
    assert last_y.to_list() == [[]]


@pytest.mark.parametrize(("drop", "batches", "size"), [(False, 4, None), (True, 3, 5)])
def test_element_spec_and_cardinality(drop, batches, size):
    dataset = numbered(17).dataset(5, shuffle=True, drop_remainder=drop)

    features, labels = dataset.element_spec
    assert features == tf.SparseTensorSpec([size, 3], tf.float32)
    assert labels == tf.RaggedTensorSpec([size, None], tf.int64, ragged_rank=1)
    assert dataset.cardinality() == batches == len(list(dataset))


def test_no_remainder_when_the_batch_size_divides():
    assert numbered(10).dataset(5).cardinality() == 2
    assert order_of(numbered(10).dataset(5)) == list(range(10))


def test_each_epoch_shuffles_all_examples_anew():
    dataset = numbered(100).dataset(7, shuffle=True, seed=3)
    epochs = [order_of(dataset) for _ in range(3)]

    assert all(sorted(epoch) == list(range(100)) for epoch in epochs)
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]
    assert epochs[0] != list(range(100))


def test_shuffled_features_stay_with_their_labels():
    for features, labels in numbered(50).dataset(8, shuffle=True):
        for row, label in zip(
            tf.sparse.to_dense(features).numpy(), labels.values.numpy(), strict=True
        ):
            expected = [float(label)] * (label % 4) + [0.0] * (3 - label % 4)
            np.testing.assert_array_equal(row, expected)


def test_orders_follow_from_the_seed_alone():
    def epochs(seed):
        dataset = numbered(40).dataset(7, shuffle=True, seed=seed)
        return [order_of(dataset) for _ in range(3)]

    first = epochs(5)
    tf.random.set_seed(123)
    np.random.seed(123)
    assert epochs(5) == first
    assert epochs(6) != first


@pytest.mark.parametrize(
    "arguments",
    [
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"batch_size": 3, "seed": -1},
        {"batch_size": 3, "seed": 1.5},
    ],
)
def test_bad_dataset_arguments(arguments):
    name, value = list(arguments.items())[-1]
    with pytest.raises(ValueError, match=rf"{name} must be an integer .*; got {value}"):
        small().dataset(**arguments)


def test_fit_goes_through_the_epochs():
    """Keras takes sparse inputs and ragged labels, in whole epochs, each in another order."""
    seen = []

    def loss(y_true, y_pred):
        tf.py_function(lambda y: seen.append([int(i) for i in y]), [y_true.values], [])
        return tf.reduce_mean(y_pred**2)

    inputs = keras.Input([3], sparse=True)
    model = keras.Model(inputs, keras.layers.Dense(1)(inputs))
    model.compile("sgd", loss=loss)
    model.fit(numbered(20).dataset(6, shuffle=True), epochs=2, shuffle=False, verbose=0)

    assert [len(batch) for batch in seen] == [6, 6, 6, 2] * 2
    epochs = [[i for batch in batches for i in batch] for batches in (seen[:4], seen[4:])]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
