# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, use
from oracles import class_filter as oracle

from tfx_largeout.class_filter import ClassFilter
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.exact.filtered_top_k import filtered_top_k


@pytest.fixture(params=IMPLEMENTATIONS)
def which(request, monkeypatch):
    return use(request.param, monkeypatch)


def problem(batch, width, classes, excluded, seed=0, most=3):
    rng = np.random.default_rng(seed)
    whole = lambda *shape: rng.integers(-most, most + 1, shape).astype(np.float32)  # noqa: E731
    ids = rng.integers(-1, classes, (batch, excluded))
    return whole(batch, width), whole(classes, width), whole(classes), ids


def allowed_of(excluded, groups=None, wanted=None):
    as_int32 = lambda x: None if x is None else tf.constant(x, tf.int32)  # noqa: E731
    return ClassFilter(tf.constant(excluded, tf.int64), as_int32(groups), as_int32(wanted))


CASES = {
    "nothing excluded": (7, 5, 300, 0, 4, None),
    "ids that repeat": (3, 2, 40, 60, 9, None),
    "wide": (70, 9, 1300, 30, 11, None),
    "an allowed set": (20, 6, 900, 5, 6, "set"),
    "categories": (33, 6, 900, 5, 6, "categories"),
    "fewer than k are left": (5, 3, 12, 30, 10, "categories"),
    "no example": (0, 3, 12, 2, 3, None),
    "none is asked for": (2, 3, 12, 2, 0, None),
}


@pytest.mark.parametrize("case", CASES)
def test_the_best_that_may_be_found(case, which):
    batch, width, classes, number, k, kind = CASES[case]
    hidden, kernel, bias, excluded = problem(batch, width, classes, number)
    groups = wanted = None
    if kind is not None:
        rng = np.random.default_rng(1)
        groups = rng.integers(-1, 1 if kind == "set" else 4, classes)
        wanted = np.full(batch, -1) if kind == "set" else rng.integers(-1, 4, batch)
    top = filtered_top_k(
        hidden,
        tf.Variable(kernel),
        bias,
        k,
        allowed_of(excluded, groups, wanted),
        implementation=which,
    )
    scores = hidden.astype(np.float64) @ kernel.T + bias
    may = oracle.findable(classes, excluded, groups, wanted)
    want_scores, want_ids = oracle.best(scores, may, k)
    np.testing.assert_array_equal(top.ids, want_ids)
    np.testing.assert_array_equal(top.scores, want_scores)
    sums = np.log(np.exp(scores).sum(axis=1))
    np.testing.assert_allclose(top.log_partition, sums, rtol=1e-5)


def test_rows_of_a_shard(which):
    hidden, kernel, bias, excluded = problem(6, 4, 101, 20)
    groups = np.random.default_rng(2).integers(-1, 3, 101)
    wanted = np.arange(6) % 3
    shard = ClassShard(1, 3, 101)
    top = filtered_top_k(
        hidden,
        tf.Variable(kernel[1::3]),
        bias[1::3],
        5,
        allowed_of(excluded, groups[1::3], wanted),
        shard=shard,
        implementation=which,
    )
    may = oracle.findable(101, excluded, groups, wanted) & (np.arange(101) % 3 == 1)
    want = oracle.best(hidden.astype(np.float64) @ kernel.T + bias, may, 5)
    np.testing.assert_array_equal(top.scores, want[0])
    np.testing.assert_array_equal(top.ids, want[1])


def test_a_class_of_infinite_or_no_logit_is_above_one_that_may_not_be_found(which):
    bias = np.array([-np.inf, 2, np.nan, -np.inf, 1], np.float32)
    top = filtered_top_k(
        np.ones((1, 1), np.float32),
        tf.Variable(np.zeros((5, 1), np.float32)),
        bias,
        5,
        allowed_of([[0, 1]]),
        implementation=which,
    )
    np.testing.assert_array_equal(top.ids, [[4, 2, 3, -1, -1]])
    np.testing.assert_array_equal(top.scores, [[1, np.nan, -np.inf, -np.inf, -np.inf]])


def test_ids_out_of_range_are_refused(which):
    hidden, kernel, bias, _ = problem(2, 3, 12, 0)
    for wrong in (12, -2):
        with pytest.raises(tf.errors.InvalidArgumentError, match=rf"excluded must be .*{wrong}"):
            filtered_top_k(
                hidden,
                tf.Variable(kernel),
                bias,
                3,
                allowed_of([[0, 1], [wrong, 2]]),
                implementation=which,
            )
