# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.labels import Labels, normalize_labels


def normal(y_true, num_classes=10, batch_shape=None):
    return normalize_labels(y_true, num_classes, batch_shape).ids.numpy().tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.int64, np.uint8, np.int16])
def test_one_label_an_example(dtype):
    assert normal(np.array([3, 0, 9], dtype)) == [[3], [0], [9]]
    assert normal(np.array([[3], [0], [9]], dtype)) == [[3], [0], [9]]


def test_padding_may_stand_anywhere():
    assert normal([[-1, 3], [2, -1], [-1, -1]]) == [[-1, 3], [2, -1], [-1, -1]]


def test_ragged():
    assert normal(tf.ragged.constant([[1, 2], [], [3]])) == [[1, 2], [-1, -1], [3, -1]]


def test_sparse_holds_ids_as_values():
    example = tf.train.Example(
        features=tf.train.Features(
            feature={"y": tf.train.Feature(int64_list=tf.train.Int64List(value=[7, 2]))}
        )
    ).SerializeToString()
    empty = tf.train.Example().SerializeToString()
    parsed = tf.io.parse_example([empty, example], {"y": tf.io.VarLenFeature(tf.int64)})["y"]
    assert normal(parsed) == [[-1, -1], [7, 2]]


def test_sparse_out_of_order():
    y = tf.SparseTensor([[1, 0], [0, 0]], tf.constant([4, 5], tf.int64), [2, 1])
    assert normal(y) == [[5], [4]]


@pytest.mark.parametrize(
    ("labels", "spec"),
    [
        (tf.ragged.constant([[1, 2], [3]]), tf.RaggedTensorSpec(None, tf.int32, ragged_rank=1)),
        (tf.sparse.from_dense([[1, 2], [3, 0]]), tf.SparseTensorSpec(None, tf.int32)),
        (tf.constant([[1, 2], [3, -1]]), tf.TensorSpec(None, tf.int32)),
    ],
    ids=["ragged", "sparse", "dense"],
)
def test_a_rank_that_is_not_known_while_a_step_is_traced(labels, spec):
    ids = tf.function(lambda y: normalize_labels(y, 10, [2]).ids, input_signature=[spec])
    assert ids(labels).numpy().tolist() == [[1, 2], [3, -1]]


def test_positions_are_flattened():
    assert normal([[1, 2], [3, 4]], batch_shape=[2, 2]) == [[1], [2], [3], [4]]
    assert normal([[[1, -1], [2, 3]]], batch_shape=[1, 2]) == [[1, -1], [2, 3]]


@pytest.mark.parametrize("dtype", [tf.uint8, tf.uint16, tf.int8])
def test_padding_of_small_integers_is_padding(dtype):
    ragged = tf.cast(tf.ragged.constant([[1, 2], [3]]), dtype)
    assert normal(ragged, 100_000) == normal(ragged.to_sparse(), 100_000) == [[1, 2], [3, -1]]


@pytest.mark.parametrize(
    ("y_true", "batch_shape"),
    [([1, 2, 3], [2]), ([[1, 2], [3, 4], [5, 6], [7, 8]], [2, 4]), ([[[1]], [[2]]], [1, 2])],
    ids=["rows", "swapped", "swapped with several labels"],
)
def test_the_batch_dimensions_must_agree(y_true, batch_shape):
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be the batch dimensions"):
        normalize_labels(y_true, 10, batch_shape)


def test_no_labels_at_all():
    assert normal(np.zeros([3, 0], np.int64)) == [[], [], []]
    assert normal(np.zeros([0], np.int64)) == []


def test_an_unknown_rank():
    traced = tf.function(
        lambda y: normalize_labels(y, 10).ids, input_signature=[tf.TensorSpec(None, tf.int64)]
    )
    assert traced([1, 2]).numpy().tolist() == [[1], [2]]
    assert traced([[1, 2], [3, -1]]).numpy().tolist() == [[1, 2], [3, -1]]
    with pytest.raises(tf.errors.InvalidArgumentError, match="must have rank 1"):
        traced([[[1]]])


def test_ids_stay_integers_above_two_to_the_24():
    big = [2**24, 2**24 + 1, 2**62, 2**62 + 1]
    assert normal(big, 2**62 + 2) == [[c] for c in big]
    assert normal([big], 2**62 + 2) == [big]


def test_labels_are_a_set():
    assert normal([[5, 5, 2, -1, 5], [1, 2, 1, 2, -1]]) == [[5, -1, 2, -1, -1], [1, 2, -1, -1, -1]]


def test_a_random_batch_keeps_each_label_once():
    rng = np.random.default_rng(0)
    ids = rng.integers(-1, 6, (200, 9))
    for before, after in zip(ids, normal(ids, 6), strict=True):
        kept = [c for c in after if c >= 0]
        assert sorted(kept) == sorted(set(before) - {-1})
        assert all(after[i] in (-1, before[i]) for i in range(9))


@pytest.mark.parametrize(
    "y_true",
    [
        np.array([1.0, 2.0]),
        np.array([[1.0], [2.0]], np.float32),
        tf.constant([[1.0, -1.0]], tf.float64),
        tf.ragged.constant([[1.0]]),
        tf.ragged.constant([[1.0]], tf.float64),
        tf.SparseTensor([[0, 0]], [True], [1, 1]),
        np.array([True, False]),
        np.array([1, 2], np.uint64),
    ],
    ids=["dense", "column", "several", "ragged", "ragged64", "sparse", "bool", "uint64"],
)
def test_only_integers_even_if_the_numbers_are_whole(y_true):
    message = "labels must be integer class ids that fit into int64; got dtype"
    head = tlo.heads.DenseHead(10)
    logits = head(np.ones([y_true.shape[0], 3], "float32"))
    for ask in (
        lambda y: normalize_labels(y, 10),
        tf.function(lambda y: normalize_labels(y, 10).ids),
        lambda y: tlo.losses.SoftmaxCrossentropy()(y, logits),
        lambda y: tlo.losses.SquaredError()(y, logits),
        lambda y: tlo.metrics.PrecisionAtK(1)(y, logits),
        lambda y: tlo.metrics.PrecisionAtK(1)(y, tf.zeros(logits.shape)),
    ):
        with pytest.raises(TypeError, match=message):
            ask(y_true)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_sparse_ids_of_floats_are_taken_for_targets_and_refused_by_their_shape(dtype):
    ids = tf.cast(tf.sparse.from_dense([[1, 2], [3, 0]]), dtype)
    with pytest.raises(ValueError, match=r"got \(2, 2\) of float.*, as values, must be integers"):
        normalize_labels(ids, 10)


def test_an_id_out_of_range_is_named_with_its_position():
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"(?s)less than 10.*got id\D*10\D.*position\D*2\D+1"
    ):
        normalize_labels([[1, 2], [3, 4], [5, 10], [11, 0]], 10)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"got id\D*-2\D"):
        normalize_labels([-2], 10)


@pytest.mark.parametrize("shape", [(), (2, 2, 2)])
def test_the_rank_is_checked(shape):
    with pytest.raises(ValueError, match="labels must have rank 1"):
        normalize_labels(np.zeros(shape, np.int64), 10)


def test_the_rank_of_ragged_labels_is_checked():
    with pytest.raises(ValueError, match="RaggedTensor labels must have rank 2"):
        normalize_labels(tf.ragged.constant([[[1]]]), 10)


def test_mean_over_the_labels_of_an_example():
    labels = Labels(tf.constant([[1, -1, 3], [2, -1, -1], [-1, -1, -1]], tf.int64))
    values = tf.constant([[2.0, np.nan, 4.0], [5.0, np.inf, 1.0], [7.0, 7.0, 7.0]])
    np.testing.assert_array_equal(labels.mean(values), [3, 5, 0])
    np.testing.assert_array_equal(labels.counts, [2, 1, 0])
    np.testing.assert_array_equal(labels.safe_ids[0], [1, 0, 3])


@pytest.mark.parametrize(
    ("y_true", "ignored", "expected"),
    [
        ([[3, -100], [-100, -100]], -100, [[3, -1], [-1, -1]]),
        ([0, 4, 0], 0, [[-1], [4], [-1]]),
        (np.array([255, 4], np.uint8), 255, [[-1], [4]]),
        (tf.ragged.constant([[12, 1], [], [12]]), 12, [[-1, 1], [-1, -1], [-1, -1]]),
        (tf.SparseTensor([[0, 1], [2, 0]], [12, 5], [3, 2]), 12, [[-1, -1], [-1, -1], [5, -1]]),
        ([[2, -1]], -1, [[2, -1]]),
    ],
    ids=["below", "class 0", "uint8", "ragged", "sparse", "-1"],
)
def test_an_id_that_is_ignored_is_padding(y_true, ignored, expected):
    ids = normalize_labels(y_true, 10, ignore_class=ignored).ids
    np.testing.assert_array_equal(ids, expected)
    traced = tf.function(lambda y: normalize_labels(y, 10, ignore_class=ignored).ids)
    np.testing.assert_array_equal(traced(y_true), expected)


def test_another_id_out_of_range_is_refused_beside_an_ignored_one():
    message = r"(?s)got id\D*-99\D.*ignore_class of"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        normalize_labels([-100, -99], 10, ignore_class=-100)


def test_indicators_are_refused_whichever_class_is_ignored():
    with pytest.raises(tf.errors.InvalidArgumentError, match="which looks like indicators"):
        normalize_labels(np.eye(4, dtype=int), 4, ignore_class=0)


def test_no_class_of_sparse_targets_is_ignored():
    targets = tf.SparseTensor([[0, 3]], [1.0], [4, 10])
    with pytest.raises(ValueError, match="ignore_class must be None for sparse targets"):
        normalize_labels(targets, 10, ignore_class=3)


def test_a_weighted_mean_over_the_labels_of_an_example():
    ids = tf.constant([[1, -1, 3], [2, 4, -1], [-1, -1, -1]], tf.int64)
    labels = Labels(ids, weights=tf.constant([[3.0, 9, 1], [0, 0, 9], [9, 9, 9]], tf.float64))
    values = tf.constant([[2.0, np.nan, 6.0], [5.0, 7.0, np.nan], [7.0, 7.0, 7.0]])
    np.testing.assert_array_equal(labels.mean(values), [3, 0, 0])
    np.testing.assert_array_equal(labels.mean_weight, [2, 0, 0])


def test_sparse_targets_give_ids_and_values():
    targets = tf.SparseTensor([[2, 9], [0, 3], [2, 1]], [0.5, -1.0, 2.0], [4, 10])
    labels = normalize_labels(targets, 10, [4])
    np.testing.assert_array_equal(labels.ids, [[3, -1], [-1, -1], [1, 9], [-1, -1]])
    np.testing.assert_array_equal(
        tf.where(labels.mask, labels.values, 0), [[-1, 0], [0, 0], [2, 0.5], [0, 0]]
    )


def test_sparse_targets_of_another_shape():
    targets = tf.SparseTensor([[0, 3]], [1.0], [4, 9])
    with pytest.raises(ValueError, match=r"must have shape \[B, C\] with C = 10; got \(4, 9\)"):
        normalize_labels(targets, 10)
    with pytest.raises(ValueError, match="got 2 batch dimensions"):
        normalize_labels(targets, 9, [2, 2])
    unknown = tf.function(
        lambda y: normalize_labels(y, 10).ids,
        input_signature=[tf.SparseTensorSpec([None, None], tf.float32)],
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="as many columns as there are"):
        unknown(targets)
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be the batch dimensions"):
        normalize_labels(targets, 9, [3])
