# SPDX-License-Identifier: Apache-2.0
"""Candidates from buckets match the definition, in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.hash_index_cases import empty_tables, expected_tables, numbers_of, use
from oracles import hash_index as oracle

from tfx_largeout.ops.hashing.bucket_candidates import BucketOrder, bucket_candidates

every_implementation = pytest.mark.parametrize("name", ["baseline", "composed"])
shared_or_per_example = pytest.mark.parametrize(
    "per_example", [False, True], ids=["shared", "per_example"]
)


class Case:
    """Tables of random codes, queries, and random arguments."""

    def __init__(self, seed, num_classes, buckets_of_range, queries, num_ranges=1):
        rng = np.random.default_rng(seed)
        self.num_ranges, num_tables = num_ranges, queries[2]
        num_buckets = num_ranges * buckets_of_range
        of_classes = rng.integers(-1, num_buckets, (num_classes, num_tables))
        self.entries, self.starts = expected_tables(of_classes, num_buckets)
        self.tables = empty_tables(num_tables, num_classes, num_buckets)
        self.tables.entries.assign(self.entries)
        self.tables.starts.assign(self.starts)
        self.codes = rng.integers(-1, buckets_of_range, queries).astype(np.int32)
        rotations = rng.integers(0, 2**32, num_tables)
        rotations[: min(2, num_tables)] = [0, 2**32 - 1][: min(2, num_tables)]
        self.order = BucketOrder(
            rng.permutation(num_tables).astype(np.int32),
            rng.permutation(rotations),
            rng.integers(0, num_classes),
        )

    @property
    def num_classes(self):
        return self.entries.shape[1]

    def tensors(self):
        """The order, in tensors."""
        return BucketOrder(
            tf.constant(self.order.tables),
            *(tf.constant(part, tf.int64) for part in self.order[1:]),
        )

    def collect(self, name, monkeypatch, budget, per_example, max_per_bucket):
        return bucket_candidates(
            self.tables,
            tf.constant(self.codes),
            budget,
            self.tensors(),
            per_example=per_example,
            max_per_bucket=max_per_bucket,
            num_ranges=self.num_ranges,
            gives_marks=True,
            implementation=use(name, monkeypatch),
        )

    def expected(self, budget, per_example, max_per_bucket):
        tables, rotations, first_class = self.order
        visits = [
            oracle.visited(
                self.entries,
                self.starts,
                codes,
                tables,
                rotations,
                max_per_bucket,
                self.num_ranges,
            )
            for codes in self.codes
        ]
        if per_example:
            return oracle.own_candidates(visits, budget, self.num_ranges * len(tables))
        return oracle.shared_candidates(visits, first_class, self.num_classes, budget)

    def check(self, name, monkeypatch, *arguments):
        result = self.collect(name, monkeypatch, *arguments)
        for got, expected in zip(result, self.expected(*arguments), strict=True):
            np.testing.assert_array_equal(got, expected)
        return np.sum(result.ids.numpy() >= 0, axis=-1)


SHAPES = [  # C, buckets, (N, Q, L), S, max_per_bucket
    (100, 8, (9, 1, 4), 40, 256),
    (100, 8, (64, 2, 4), 40, 3),
    (500, 3, (33, 3, 5), 130, 90),
    (30, 64, (70, 2, 6), 30, 1),
    (30, 2, (17, 1, 1), 9, 5),
    (12, 4, (1, 1, 2), 12, 2),
    (1, 1, (3, 2, 2), 1, 7),
    (20, 4, (0, 2, 3), 10, 4),
    (20, 4, (5, 0, 3), 10, 4),
]


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize("shape", SHAPES)
def test_candidates_are_those_of_the_definition(name, per_example, shape, monkeypatch):
    num_classes, num_buckets, queries, budget, max_per_bucket = shape
    for seed in range(3):
        case = Case(seed, num_classes, num_buckets, queries)
        case.check(name, monkeypatch, budget, per_example, max_per_bucket)


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize("seed", range(8))
def test_random_shapes(name, per_example, seed, monkeypatch):
    rng = np.random.default_rng(seed)
    num_classes, num_buckets = int(rng.integers(1, 200)), int(rng.integers(1, 30))
    queries = tuple(rng.integers(1, end) for end in (40, 4, 7))
    budget = int(rng.integers(1, num_classes + 1))
    case = Case(seed, num_classes, num_buckets, queries)
    case.check(name, monkeypatch, budget, per_example, int(rng.integers(1, 20)))


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize("num_ranges", [2, 5])
def test_a_query_looks_into_a_bucket_of_each_range(name, per_example, num_ranges, monkeypatch):
    for seed, shape in enumerate([(300, 4, (20, 2, 3)), (50, 1, (5, 3, 1)), (9, 3, (1, 1, 2))]):
        case = Case(seed, *shape, num_ranges)
        for budget in (3, 9):
            case.check(name, monkeypatch, budget, per_example, 2)
        case.codes[0, 0, 0] = shape[1]  # in the next range
        with pytest.raises(tf.errors.InvalidArgumentError, match="code"):
            case.collect(name, monkeypatch, 9, per_example, 2)


@every_implementation
def test_ranges_must_share_the_buckets(name, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    case.num_ranges = 2
    message = "starts must have as many buckets in each of num_ranges"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        case.collect(name, monkeypatch, 9, True, 9)


@every_implementation
@shared_or_per_example
def test_queries_without_a_code_find_nothing(name, per_example, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    case.codes[:] = -1
    assert not np.any(case.check(name, monkeypatch, 20, per_example, 9))


@every_implementation
@shared_or_per_example
def test_places_without_a_class_stay_empty(name, per_example, monkeypatch):
    case = Case(0, 40, 20, (1, 1, 2))
    found = case.check(name, monkeypatch, 30, per_example, 9)
    assert 0 < np.max(found) < 30


@every_implementation
@shared_or_per_example
def test_marks_are_left_out_where_nobody_asks(name, per_example, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    arguments = {"per_example": per_example, "max_per_bucket": 9}
    arguments["implementation"] = use(name, monkeypatch)
    found = bucket_candidates(case.tables, tf.constant(case.codes), 20, case.tensors(), **arguments)
    np.testing.assert_array_equal(found.ids, case.expected(20, per_example, 9)[0])
    assert found.marks.shape == [0]


@every_implementation
def test_equal_votes_are_decided_by_the_circle(name, monkeypatch):
    case = Case(0, 10, 1, (1, 1, 1))
    case.tables.entries.assign([np.arange(10)])
    case.tables.starts.assign([[0, 10]])
    case.codes[:] = 0
    for first_class, expected in [(0, [0, 1, 2]), (4, [4, 5, 6]), (8, [0, 8, 9])]:
        case.order = case.order._replace(first_class=first_class)
        result = case.collect(name, monkeypatch, 3, False, 10)
        np.testing.assert_array_equal(result.ids, expected)
        np.testing.assert_array_equal(result.marks, [1, 1, 1])


@every_implementation
@shared_or_per_example
def test_calls_leave_nothing_behind(name, per_example, monkeypatch):
    """The same op again, with other tables in between, and after an error."""
    large, small = Case(0, 300, 7, (40, 2, 3)), Case(1, 20, 3, (8, 1, 2))
    bad = Case(2, 300, 7, (40, 2, 3))
    bad.codes[-1] = 7
    for case in (large, small, bad, large, bad, small, large):
        if case is bad:
            with pytest.raises(tf.errors.InvalidArgumentError):
                case.collect(name, monkeypatch, 15, per_example, 50)
        else:
            case.check(name, monkeypatch, 15, per_example, 50)


@every_implementation
@shared_or_per_example
def test_in_one_graph_of_unknown_shapes(name, per_example, monkeypatch):
    implementation, case = use(name, monkeypatch), Case(0, 60, 6, (1, 1, 4))

    @tf.function(input_signature=[tf.TensorSpec([None, None, 4], tf.int32)])
    def call(codes):
        return bucket_candidates(
            case.tables,
            codes,
            20,
            case.tensors(),
            per_example=per_example,
            max_per_bucket=5,
            gives_marks=True,
            implementation=implementation,
        )

    assert call.get_concrete_function().structured_outputs.ids.shape[-1] == 20
    for queries in [(7, 2), (0, 1), (30, 1)]:
        case.codes = np.random.default_rng(1).integers(-1, 6, (*queries, 4)).astype(np.int32)
        for got, expected in zip(call(case.codes), case.expected(20, per_example, 5), strict=True):
            np.testing.assert_array_equal(got, expected)


def test_the_order_is_drawn_from_the_seed():
    one, again, other = (
        BucketOrder.draw(50, 1000, tf.constant(seed)) for seed in ([1, 2], [1, 2], [1, 3])
    )
    for part, same, another in zip(one, again, other, strict=True):
        np.testing.assert_array_equal(part, same)
        assert np.any(part != another)
    np.testing.assert_array_equal(np.sort(one.tables), np.arange(50))
    assert np.min(one.rotations) >= 0
    assert 2**31 < np.max(one.rotations) < 2**32
    assert 0 <= one.first_class < 1000


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize(
    ("budget", "message"),
    [
        (0, r"budget must be in \[1, C\] = \[1, 40\]; got.*0"),
        (-1, r"budget must be in \[1, C\] = \[1, 40\]; got.*-1"),
        (41, r"budget must be in \[1, C\] = \[1, 40\]; got.*41"),
    ],
)
def test_numbers_out_of_range(name, per_example, budget, message, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        case.collect(name, monkeypatch, budget, per_example, 9)


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": [0, 1, 1]}, "order must be a permutation of the 3 tables; got.*1"),
        ({"tables": [0, 1, 3]}, "order must be a permutation of the 3 tables; got.*3"),
        ({"tables": [0, -1, 1]}, "order must be a permutation of the 3 tables; got.*-1"),
        ({"rotations": [0, 2**32, 1]}, r"rotations must be in \[0, 2\^32\); got.*4294967296"),
        ({"rotations": [0, -3, 1]}, r"rotations must be in \[0, 2\^32\); got.*-3"),
        ({"first_class": 40}, r"first_class must be .*\[0, 40\); got.*40"),
        ({"first_class": -2}, r"first_class must be .*\[0, 40\); got.*-2"),
    ],
)
def test_a_bad_order_is_refused(name, per_example, change, message, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    change = {
        key: np.array(value, np.int32 if key == "tables" else np.int64)
        for key, value in change.items()
    }
    case.order = case.order._replace(**change)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        case.collect(name, monkeypatch, 10, per_example, 9)


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize("value", [5, 2**31 - 1])
def test_codes_out_of_range_are_refused(name, per_example, value, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    case.codes[4, 1, 2] = value
    with pytest.raises(tf.errors.InvalidArgumentError, match="code"):
        case.collect(name, monkeypatch, 40, per_example, 9)


@every_implementation
@shared_or_per_example
@pytest.mark.parametrize(
    ("array", "place", "value"),
    [
        ("entries", 0, 40),
        ("entries", 0, -1),
        ("starts", 1, -1),
        ("starts", 1, 41),  # still in the array, but of the next table
        ("starts", 0, 30),
    ],
)
def test_corrupt_tables_are_refused(name, per_example, array, place, value, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    case.tables.entries.assign(np.tile(np.arange(40), (3, 1)))
    case.tables.starts.assign(np.tile([0, 8, 16, 24, 32, 40], (3, 1)))
    case.codes[:] = 2
    case.collect(name, monkeypatch, 40, per_example, 9)
    case.codes[3, 1, 1] = 0
    variable = getattr(case.tables, array)
    values = numbers_of(variable)
    values[1, place] = value
    variable.assign(values)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"corrupt.*rebuild the index"):
        case.collect(name, monkeypatch, 40, per_example, 9)


@every_implementation
@pytest.mark.parametrize(("array", "place"), [("entries", 9), ("starts", 3)])
def test_what_is_corrupt_behind_the_last_class_that_is_read_does_not_matter(
    name, array, place, monkeypatch
):
    case = Case(0, 40, 5, (6, 2, 1))
    case.tables.entries.assign([np.arange(40)])
    case.tables.starts.assign([[0, 10, 20, 25, 30, 40]])
    case.codes[:, 0], case.codes[:, 1] = 0, 2
    case.order = case.order._replace(rotations=np.zeros(1, np.int64))
    variable = getattr(case.tables, array)
    values = variable.numpy()
    values[0, place] = np.uint32(2**32 - 5)
    variable.assign(values)
    taken = case.collect(name, monkeypatch, 9, True, 40).ids
    np.testing.assert_array_equal(taken, np.tile(np.arange(9), (6, 1)))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"corrupt.*rebuild the index"):
        case.collect(name, monkeypatch, 11, True, 40)


@every_implementation
@pytest.mark.parametrize("per_example", [True, False])
def test_codes_that_are_too_large_are_refused_read_or_not(name, per_example, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    case.codes[-1, -1, -1] = 5
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"(?s)codes must be below 5.*got.*5"):
        case.collect(name, monkeypatch, 1, per_example, 9)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tables": np.arange(4)}, r"order must be a permutation of the 3 tables; got shape \[4\]"),
        ({"rotations": np.zeros(2)}, r"rotations must be \[L\]; got shape \[2\]"),
        ({"first_class": np.zeros(2)}, r"first_class must be a scalar; got shape \[2\]"),
    ],
)
@pytest.mark.cpu
def test_shapes_that_disagree_are_refused(change, message, monkeypatch):
    case = Case(0, 40, 5, (6, 2, 3))
    change = {key: value.astype(np.int32) for key, value in change.items()}
    case.order = case.order._replace(**change)
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        case.collect("baseline", monkeypatch, 10, True, 9)
    case = Case(0, 40, 5, (6, 2, 3))
    case.codes = case.codes[..., :2]
    message = r"codes must be \[N, Q, L\] with L = 3"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        case.collect("baseline", monkeypatch, 10, True, 9)


def test_bad_arguments_of_the_wrapper():
    case = Case(0, 40, 5, (6, 2, 3))
    codes = tf.constant(case.codes, tf.int64)
    with pytest.raises(TypeError, match="codes must be int32; got int64"):
        bucket_candidates(
            case.tables, codes, 10, case.tensors(), per_example=True, max_per_bucket=3
        )
