# SPDX-License-Identifier: Apache-2.0
"""InvertedFile: TopK with it gives the best of the lists near a query, and of all lists of all."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from indexes.test_row_bounds import head_of, needs_ops, normal

import tfx_largeout as tlo

CLASSES, WIDTH = 3001, 24


def clustered(classes=CLASSES, width=WIDTH, groups=40, seed=0):
    """Rows around a few centers."""
    random = np.random.default_rng(seed)
    centers = 2 * random.normal(size=(groups, width))
    rows = centers[random.integers(0, groups, classes)] + random.normal(size=(classes, width)) / 2
    return rows.astype("float32")


def index_of(head, *arguments):
    index = tlo.indexes.InvertedFile(*arguments)
    index.rebuild(head.kernel, head.bias)
    return index


def check_same(head, index, hidden, k):
    """The exact best: ids, and scores to rounding, which the number of examples may change."""
    scores, ids = tlo.TopK(head, k, index=index)(hidden)
    expected = tlo.TopK(head, k)(hidden)
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_allclose(scores, expected[0], rtol=2e-6, atol=2e-5)


def lists_of(index):
    """Returns the classes of each list, and how close lists are to h: a function of h [N, D]."""
    classes, ends = index.classes.numpy(), index.ends.numpy()
    parts = np.split(classes, ends[:-1])
    lists = [
        part[: end - begin].ravel()
        for part, begin, end in zip(parts, [0, *ends[:-1]], ends, strict=True)
    ]
    centers = index.centers.numpy().transpose(0, 2, 1).astype("float64")
    centers = centers.reshape(-1, centers.shape[-1])[: len(ends)]
    offsets, penalties = (
        table.numpy().ravel()[: len(ends)] for table in (index.offsets, index.penalties)
    )

    def closeness_of(h):
        lengths = np.sqrt((h**2).sum(axis=1, keepdims=True) + 1)
        return h @ centers.T + offsets - lengths * penalties

    return [each[each >= 0] for each in lists], closeness_of


def oracle(index, head, hidden, k, num_probed):
    """Returns scores and ids in float64, and whether rounding can't change the lists."""
    lists, closeness_of = lists_of(index)
    hidden = hidden.astype("float64")
    logits = hidden @ head.kernel.numpy().astype("float64").T
    logits += 0 if head.bias is None else head.bias.numpy()
    scores = np.full((len(hidden), k), -np.inf)
    ids = np.full((len(hidden), k), -1)
    is_clear = np.ones(len(hidden), bool)
    for b, closeness in enumerate(closeness_of(hidden)):
        order = np.argsort(-closeness, kind="stable")
        if num_probed < len(lists):
            edge = closeness[order[num_probed - 1]] - closeness[order[num_probed]]
            is_clear[b] = edge > 1e-4
        found = np.sort(np.concatenate([lists[each] for each in order[:num_probed]]))
        best = found[np.argsort(-logits[b, found], kind="stable")[:k]]
        scores[b, : len(best)], ids[b, : len(best)] = logits[b, best], best
    return scores, ids, is_clear


def test_each_class_is_in_one_list_near_its_center():
    head = head_of(clustered(), normal(CLASSES, seed=1))
    index = index_of(head, 50)
    lists, _ = lists_of(index)
    np.testing.assert_array_equal(np.sort(np.concatenate(lists)), np.arange(CLASSES))
    assert len(lists) == 50 and max(map(len, lists)) <= np.ceil(1.25 * CLASSES / 50)
    kernel = head.kernel.numpy()
    within = sum(
        ((kernel[each] - kernel[each].mean(axis=0)) ** 2).sum() for each in lists if len(each)
    )
    assert within < 0.4 * ((kernel - kernel.mean(axis=0)) ** 2).sum()


@needs_ops
@pytest.mark.parametrize("batch", [1, 3, 70])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize("num_probed", [1, 4, 50])
def test_the_best_of_the_nearest_lists(batch, with_bias, num_probed):
    head = head_of(clustered(), normal(CLASSES, seed=1) if with_bias else None)
    index = index_of(head, 50, num_probed)
    hidden = normal(batch, WIDTH, seed=2)
    scores, ids = tlo.TopK(head, 10, index=index)(hidden)
    expected, expected_ids, is_clear = oracle(index, head, hidden, 10, num_probed)
    assert is_clear.mean() > 0.9
    np.testing.assert_array_equal(ids.numpy()[is_clear], expected_ids[is_clear])
    np.testing.assert_allclose(scores.numpy()[is_clear], expected[is_clear], rtol=1e-5, atol=1e-5)
    candidates = index.top_k(hidden, head.kernel, head.bias, 10).num_candidates.numpy()
    assert np.all(candidates < CLASSES // 4)  # bounds ruled out the others


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_all_lists_give_the_exact_best(dtype):
    head = head_of(clustered(), normal(CLASSES, seed=1), dtype)
    check_same(head, index_of(head, 30, 30), normal(5, WIDTH, seed=2), 7)


@pytest.mark.parametrize("classes", [1, 2, 15, 16, 17, 257])
@pytest.mark.parametrize("width", [1, 7, 33])
@pytest.mark.parametrize("lists", [1, 2, 17, None])
def test_shapes(classes, width, lists):
    if max(lists or 1, 2) > classes:
        return
    head = head_of(normal(classes, width))
    lists = lists or round(classes**0.5)
    check_same(head, index_of(head, lists, lists), normal(3, width, seed=1), classes)


@needs_ops
def test_ties_come_by_lower_id_and_fewer_than_k_are_followed_by_none():
    some = clustered(120, 16, 4)
    head = head_of(np.tile(some, (20, 1)))
    index = index_of(head, 20, 20)
    check_same(head, index, normal(3, 16, seed=2), 50)
    index = index_of(head, 20, 1)
    hidden = normal(3, 16, seed=2)
    scores, ids = (each.numpy() for each in tlo.TopK(head, 2000, index=index)(hidden))
    expected, expected_ids, _ = oracle(index, head, hidden, 2000, 1)
    np.testing.assert_array_equal(ids, expected_ids)
    np.testing.assert_allclose(scores, expected, rtol=1e-5, atol=1e-5)
    assert np.all(ids[:, -1] == -1) and np.all(scores[:, -1] == -np.inf)
    probabilities = tlo.TopK(head, 2000, "sigmoid", index)(hidden)[0].numpy()
    assert np.all(probabilities[ids < 0] == 0)


@needs_ops
def test_recall_by_default_where_rows_are_clustered():
    head = head_of(clustered(20_000, 32, 200), normal(20_000, seed=1))
    hidden = clustered(200, 32, 200) / 4
    exact = tlo.TopK(head, 10)(hidden)[1].numpy()
    found = tlo.TopK(head, 10, index=index_of(head))(hidden)[1].numpy()
    recall = np.mean([np.isin(a, b).mean() for a, b in zip(exact, found, strict=True)])
    assert recall > 0.8


@pytest.mark.parametrize("value", [np.nan, np.inf, 1e38])
def test_an_example_that_is_not_finite(value):
    head = head_of(clustered(), normal(CLASSES, seed=1))
    hidden = normal(3, WIDTH, seed=2)
    hidden[1, 3] = value
    check_same(head, index_of(head, 30, 2), hidden, 5)


@pytest.mark.parametrize("table", ["centers", "offsets", "penalties"])
def test_a_center_that_is_not_a_number_is_found_out(table):
    head = head_of(clustered(), normal(CLASSES, seed=1))
    index = index_of(head, 30, 2)
    weight = getattr(index, table)
    values = weight.numpy()
    values.flat[0] = np.nan
    weight.assign(values)
    check_same(head, index, normal(3, WIDTH, seed=2), 5)  # all classes were looked at


@needs_ops
@pytest.mark.parametrize("scale", [1e-30, 1e10])
@pytest.mark.parametrize("bias", [None, 1e6])
def test_nasty_rows(scale, bias):
    rows = (
        clustered() * np.float32(10.0) ** np.random.default_rng(5).uniform(-20, 4, CLASSES)[:, None]
    )
    biases = None if bias is None else np.where(np.arange(CLASSES) == 77, bias, 0).astype("float32")
    head = head_of(rows.astype("float32"), biases)
    check_same(head, index_of(head, 30, 30), normal(3, WIDTH, seed=2) * np.float32(scale), 7)


def test_another_w_is_found_out_and_a_rebuild_follows_it():
    head = head_of(clustered(), normal(CLASSES, seed=1))
    index = index_of(head, 30, 3)
    hidden = normal(2, WIDTH, seed=2)
    head.kernel.assign(normal(CLASSES, WIDTH, seed=3))
    check_same(head, index, hidden, 5)  # a logit was out of its bounds: all were looked at
    best = tlo.TopK(head, 1)(hidden[:1])[1].numpy()[0, 0]
    index.rebuild(head.kernel, head.bias)
    kernel = head.kernel.numpy()
    head.kernel.assign(np.where(np.arange(CLASSES)[:, np.newaxis] == best, np.nan, kernel))
    check_same(head, index, hidden[:1], 1)  # a NaN where there was a number is out of its bounds
    head.kernel.assign(kernel)
    again = index_of(head, 30, 3)
    for left, right in zip(index.weights, again.weights, strict=True):
        np.testing.assert_array_equal(left, right)


def test_before_a_rebuild_and_with_damaged_lists_all_classes_are_looked_at():
    head = head_of(clustered())
    index = tlo.indexes.InvertedFile(30, 3)
    index.build((CLASSES, WIDTH))
    hidden = normal(2, WIDTH, seed=2)
    check_same(head, index, hidden, 5)
    for ends in (np.zeros(30), np.full(30, 10**9), np.arange(30)[::-1] * 5, np.full(30, -7)):
        index.rebuild(head.kernel)
        index.ends.assign(ends)
        check_same(head, index, hidden, 5)


def test_classes_out_of_range_are_taken_for_none():
    head = head_of(clustered(), normal(CLASSES, seed=1))
    index = index_of(head, 30, 30)
    classes = index.classes.numpy()
    classes[3, 5] = 2**31 - 1
    classes[4, 5] = -(2**31)
    index.classes.assign(classes)
    ids = tlo.TopK(head, CLASSES, index=index)(normal(2, WIDTH))[1].numpy()
    assert ids.max() < CLASSES and ids.min() >= -1


def test_a_model_with_it_is_saved(tmp_path):
    head = head_of(clustered(), normal(CLASSES, seed=1))
    index = index_of(head, 30, 3)
    model = tlo.top_k_model(keras.Sequential([keras.Input((WIDTH,)), head]), 4, index=index)
    hidden = normal(3, WIDTH, seed=2)
    expected = model(hidden)
    model.save(tmp_path / "top.keras")
    loaded = keras.saving.load_model(tmp_path / "top.keras")
    assert (loaded.index.num_lists, loaded.index.num_probed, loaded.index.seed) == (30, 3, 0)
    for left, right in zip(loaded(hidden), expected, strict=True):
        np.testing.assert_array_equal(left, right)


def test_softmax_is_that_of_all_classes():
    head = head_of(clustered(), normal(CLASSES, seed=1))
    hidden = normal(3, WIDTH, seed=2)
    expected = tlo.TopK(head, 4, "softmax")(hidden)
    for left, right in zip(
        tlo.TopK(head, 4, "softmax", index_of(head, 30, 3))(hidden), expected, strict=True
    ):
        np.testing.assert_array_equal(left, right)


def test_refusals():
    for arguments in ({"num_lists": 0}, {"num_probed": 0}, {"seed": -1}):
        ((name, value),) = arguments.items()
        with pytest.raises(ValueError, match=f"{name} must be .*got {value}"):
            tlo.indexes.InvertedFile(**arguments)
    head = head_of(normal(50, 8))
    with pytest.raises(ValueError, match="num_lists must be at most num_classes=50; got 51"):
        index_of(head, 51)
    with pytest.raises(ValueError, match="num_probed must be at most num_lists=5; got 6"):
        index_of(head, 5, 6)
    with pytest.raises(
        ValueError, match="num_found must be None for an index of type InvertedFile; got 10"
    ):
        tlo.TopK(head, 3, index=index_of(head), num_found=10)
    with pytest.raises(ValueError, match="num_probed must be at most num_lists=4; got 5"):
        tlo.indexes.InvertedFile(4, 5)
    for bias in (np.zeros(1), np.zeros(49), np.float32(0)):
        with pytest.raises(ValueError, match=r"bias must be \[C\]|bias must have"):
            tlo.indexes.InvertedFile().rebuild(head.kernel, bias)
    index = index_of(head, 5, 2)
    before = [weight.numpy() for weight in index.weights]
    other = head_of(normal(49, 8))
    with pytest.raises(ValueError, match=r"kernel must be \[C, D\] = \[50, 8\], for which the ind"):
        tlo.TopK(other, 3, index=index)(normal(2, 8))
    with pytest.raises(ValueError, match=r"kernel must be \[C, D\] = \[50, 8\], for which the ind"):
        index.rebuild(other.kernel)
    kernel = normal(50, 8)
    kernel[33, 2] = np.nan
    head.kernel.assign(kernel)
    with pytest.raises(ValueError, match="finite in float32; got one that is not in row 33"):
        index.rebuild(head.kernel)
    with pytest.raises(RuntimeError, match="outside of graphs"):
        tf.function(lambda: index.rebuild(head.kernel), autograph=False)()
    for weight, value in zip(index.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    with pytest.raises(RuntimeError, match="index must be built before it is asked"):
        tlo.TopK(head, 3, index=tlo.indexes.InvertedFile())(normal(2, 8))
