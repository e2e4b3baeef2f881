# SPDX-License-Identifier: Apache-2.0
"""Merged results of shards equal one pass over all classes."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, integers, random_labels, use
from oracles import streamed_logits as oracle

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.exact.streamed_logits import StreamedLogits, streamed_logits


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, monkeypatch):
    return use(request.param, monkeypatch)


class Case:
    """A layer in whole numbers, with ties, and its shards."""

    def __init__(self, num_classes=200, k=9, seed=0):
        rng = np.random.default_rng(seed)
        self.hidden, self.kernel = integers(rng, 7, 3), integers(rng, num_classes, 3)
        self.bias, self.k = integers(rng, num_classes), k
        self.labels = random_labels(rng, 7, 4, num_classes)

    def of_shard(self, first, stride, implementation, scores=None, as_variable=True):
        kernel = self.kernel[first::stride]
        return streamed_logits(
            self.hidden,
            tf.Variable(kernel) if as_variable else tf.constant(kernel),
            self.bias[first::stride],
            self.labels,
            min(self.k, len(kernel)),
            target_scores=scores,
            shard=ClassShard(first, stride, len(self.kernel)),
            implementation=implementation,
        )

    def expected(self):
        return oracle.streamed_logits(self.hidden, self.kernel, self.bias, self.labels, self.k)


def merge(shards, k):
    """The statistics over the classes of all shards, which were given the scores of all labels."""
    scores, ids = (
        np.concatenate([np.asarray(getattr(shard, name)) for shard in shards], axis=1)
        for name in ("top_scores", "top_ids")
    )
    best = np.lexsort((ids, -scores))[:, :k]
    return StreamedLogits(
        np.logaddexp.reduce([shard.logsumexp for shard in shards]),
        sum(shard.target_logits for shard in shards),
        np.where(shards[0].target_ranks >= 0, sum(x.target_ranks for x in shards), -1),
        np.take_along_axis(scores, best, axis=1),
        np.take_along_axis(ids, best, axis=1),
    )


def check(result, expected):
    np.testing.assert_allclose(result.logsumexp, expected.logsumexp, rtol=1e-6, atol=1e-6)
    for name in ("target_logits", "target_ranks", "top_scores", "top_ids"):
        np.testing.assert_array_equal(getattr(result, name), getattr(expected, name))


@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize(("num_classes", "k"), [(200, 9), (1009, 30), (3, 3)])
def test_merged_shards_are_one_pass(stride, num_classes, k, implementation):
    case = Case(num_classes, k)
    logits = [case.of_shard(i, stride, implementation) for i in range(stride)]
    scores = sum(x.target_logits for x in logits)
    np.testing.assert_array_equal(scores, case.expected().target_logits)
    results = [case.of_shard(i, stride, implementation, scores) for i in range(stride)]
    check(merge(results, k), case.expected())


def test_a_tensor_is_as_good_as_a_variable(implementation):
    case = Case()
    for scores in (None, np.full([7, 4], 1.5, np.float32)):
        want = case.of_shard(1, 3, implementation, scores)
        got = case.of_shard(1, 3, implementation, scores, as_variable=False)
        for a, b in zip(got, want, strict=True):
            np.testing.assert_array_equal(a, b)


def test_without_scores_the_labels_of_other_shards_have_no_rank(implementation):
    case = Case()
    result = case.of_shard(1, 2, implementation)
    is_here = (case.labels >= 0) & (case.labels % 2 == 1)
    assert is_here.any() and not is_here.all()
    np.testing.assert_array_equal(result.target_ranks >= 0, is_here)
    expected = np.where(is_here, case.expected().target_logits, 0)
    np.testing.assert_array_equal(result.target_logits, expected)


def test_a_label_is_not_above_itself_however_its_score_was_rounded(implementation):
    case = Case()
    exact = case.of_shard(0, 1, implementation)
    for off in (-0.25, 0.25):  # between two whole numbers
        scores = exact.target_logits + off
        ranks = case.of_shard(0, 1, implementation, scores).target_ranks.numpy()
        logits = case.hidden @ case.kernel.T + case.bias
        above = (logits[:, np.newaxis, :] > scores.numpy()[..., np.newaxis]).sum(axis=2)
        own = off < 0
        np.testing.assert_array_equal(ranks, np.where(case.labels >= 0, above - own, -1))


@pytest.mark.parametrize(
    "shard",
    [(-1, 1, 200), (0, 0, 200), (0, 1, 199), (1, 1, 200), (0, 2, 398), (0, 1, -1), (5, 2**62, 200)],
    ids=str,
)
def test_rows_that_are_no_classes_are_refused(shard, implementation):
    case = Case()
    case.labels[:] = -1
    with pytest.raises(tf.errors.InvalidArgumentError, match="first_class, class_stride and num"):
        streamed_logits(
            case.hidden,
            case.kernel,
            None,
            case.labels,
            1,
            shard=ClassShard(*shard),
            implementation=implementation,
        )


def test_labels_of_other_shards_are_in_range_and_no_others(implementation):
    case = Case()
    case.labels[2, 1] = 200
    with pytest.raises(tf.errors.InvalidArgumentError, match="labels must be class ids"):
        case.of_shard(1, 2, implementation)


def test_scores_of_another_shape_than_the_labels_are_refused(implementation):
    case = Case()
    for shape in ([0, 0], [7, 3], [6, 4]):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"target_scores must be \[B, K\]"):
            case.of_shard(0, 2, implementation, scores=tf.zeros(shape))


def test_a_shard_without_classes_adds_nothing(implementation):
    case = Case(num_classes=2, k=2)
    scores = streamed_logits(case.hidden, case.kernel, case.bias, case.labels, 0).target_logits
    shards = [case.of_shard(i, 3, implementation, scores) for i in range(3)]
    assert shards[2].top_ids.shape == (7, 0)
    check(merge(shards, 2), case.expected())
