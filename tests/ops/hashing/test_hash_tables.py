# SPDX-License-Identifier: Apache-2.0
"""Tables that follow W equal a build from scratch, in every implementation."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.hash_index_cases import (
    IMPLEMENTATIONS,
    KINDS,
    arrays,
    base_of,
    empty_tables,
    expected_codes,
    expected_tables,
    functions_of,
    numbers_of,
    random_vectors,
    use,
)
from oracles import hash_index as oracle

from tfx_largeout.ops.hashing.hash_codes import HashFunctions
from tfx_largeout.ops.hashing.hash_tables import update_tables

every_implementation = pytest.mark.parametrize("name", IMPLEMENTATIONS)
every_kind = pytest.mark.parametrize("kind", KINDS)


class Case:
    """A kernel, functions, tables, and the expected tables: codes `[C, L]` when built."""

    def __init__(self, seed, kind, shape, implementation, dtype="float32"):
        num_classes, width, window, self.num_tables, self.hashes = shape
        self.rng, self.implementation = np.random.default_rng(seed), implementation
        count = self.num_tables * self.hashes
        self.functions = functions_of(kind, self.rng, width, window, count)
        self.num_buckets = base_of(self.functions) ** self.hashes
        rows = random_vectors(self.rng, num_classes, width)
        self.kernel = tf.Variable(tf.cast(rows, dtype))
        self.tables = empty_tables(self.num_tables, num_classes, self.num_buckets)
        self.now, self.codes = 0, np.full((num_classes, self.num_tables), -1)
        self.built_at = np.full(self.num_tables, -1)

    @property
    def num_classes(self):
        return self.kernel.shape[0]

    def rows(self):
        """The kernel in NumPy."""
        return tf.cast(self.kernel, tf.float32).numpy()

    def write(self, ids, rows):
        """Changes rows without a mark."""
        values = self.rows()
        values[ids] = rows
        self.kernel.assign(tf.cast(values, self.kernel.dtype))

    def update(self, touched, first, end):
        """Returns how many classes moved."""
        moved = update_tables(
            self.kernel,
            None,
            self.tables,
            self.functions,
            self.hashes,
            tf.constant(touched, tf.int64),
            tf.constant(self.now + 1),
            tf.constant([first, end], tf.int64),
            tf.zeros([0]),
            implementation=self.implementation,
        )
        self.now += 1
        return int(moved)

    def build_expected(self, first, end):
        """Updates expected codes; returns how many classes must move."""
        codes = expected_codes(self.rows(), self.functions, self.num_tables, self.hashes)
        before = self.codes.copy()
        self.codes[:, first:end] = codes[:, first:end]
        self.built_at[first:end] = self.now
        return np.sum((self.codes >= 0) & (self.codes != before))

    def check(self):
        """Checks tables that were built at least once."""
        entries, starts = expected_tables(self.codes, self.num_buckets)
        is_built = self.built_at >= 0
        np.testing.assert_array_equal(numbers_of(self.tables.entries)[is_built], entries[is_built])
        np.testing.assert_array_equal(numbers_of(self.tables.starts), starts)
        np.testing.assert_array_equal(numbers_of(self.tables.built_at), self.built_at)


SHAPES = [  # C, D, window, L, K
    (70, 8, 8, 3, 2),
    (130, 30, 3, 5, 3),
    (65, 127, 16, 4, 2),
    (64, 252, 2, 2, 7),
    (1, 9, 3, 1, 1),
]


@every_implementation
@every_kind
@pytest.mark.parametrize("shape", SHAPES)
def test_updates_give_what_a_build_from_scratch_would(name, kind, shape, monkeypatch):
    case = Case(0, kind, shape, use(name, monkeypatch))
    rng, num_tables = case.rng, case.num_tables
    touched_at = np.zeros(case.num_classes)
    for _ in range(10):
        ids = rng.integers(-1, case.num_classes, rng.integers(0, case.num_classes))
        real = ids[ids >= 0]
        rows = random_vectors(rng, len(real), case.kernel.shape[1])
        some = rng.random(len(real)) < 0.7  # a mark on a row that did not change does no harm
        case.write(real[some], rows[some])
        first, end = np.sort(rng.integers(0, num_tables + 1, 2))
        moved = case.update(ids, first, end)
        touched_at[real] = case.now
        assert moved == case.build_expected(first, end)
        case.check()
        np.testing.assert_array_equal(numbers_of(case.tables.touched_at), touched_at)
    case.update([-1], 0, num_tables)
    case.build_expected(0, num_tables)
    case.check()


@every_implementation
@every_kind
def test_many_rows(name, kind, monkeypatch):
    """More than are hashed in a task, and than the fallback reads in a block."""
    case = Case(3, kind, (5000, 6, 3, 2, 3), use(name, monkeypatch))
    assert case.update([], 0, 2) == case.build_expected(0, 2) > 4000
    case.check()
    for count in (3, 1500):
        ids = case.rng.permutation(5000)[:count]
        case.write(ids, random_vectors(case.rng, count, 6))
        assert case.update(ids, 1, 2) == case.build_expected(1, 2) > 0
        case.check()


@every_implementation
def test_a_table_that_lags_behind_gets_all_changes_since(name, monkeypatch):
    case = Case(1, "wta", (40, 12, 4, 3, 2), use(name, monkeypatch))
    case.update([], 0, 3)
    case.build_expected(0, 3)
    for row in range(6):
        case.write([row], random_vectors(case.rng, 1, 12))
        case.update([row], 0, 1)
        case.build_expected(0, 1)
        case.check()
    case.update([], 0, 2)
    case.build_expected(0, 2)
    case.check()


@every_implementation
@every_kind
def test_rows_without_a_mark_keep_their_place(name, kind, monkeypatch):
    case = Case(2, kind, (50, 10, 3, 3, 2), use(name, monkeypatch))
    case.update([], 0, 3)
    case.build_expected(0, 3)
    case.write(np.arange(20), random_vectors(case.rng, 20, 10))
    case.write([30], np.nan)  # never read
    assert case.update([], 0, 3) == 0
    case.built_at[:] = case.now
    case.check()
    case.write([30], 1.0)
    assert case.update(np.arange(31), 0, 3) == case.build_expected(0, 3) > 0
    case.check()


@every_implementation
def test_rows_of_zeros_are_in_no_bucket(name, monkeypatch):
    for kind in KINDS:
        case = Case(4, kind, (9, 10, 3, 2, 2), use(name, monkeypatch))
        case.write(np.arange(9), 1.0)
        case.write([2, 5], 0.0)
        case.write([6], -0.0)
        assert case.update([], 0, 2) == 2 * 6
        expected = [[-1, -1, -1, 0, 1, 3, 4, 7, 8]] * 2
        np.testing.assert_array_equal(np.sort(numbers_of(case.tables.entries)), expected)
        np.testing.assert_array_equal(numbers_of(case.tables.starts)[:, -1], [6, 6])
        case.write(np.arange(9), 0.0)
        assert case.update(np.arange(9), 0, 2) == 0
        np.testing.assert_array_equal(numbers_of(case.tables.entries), -np.ones([2, 9]))


@every_implementation
@every_kind
def test_bfloat16_rows(name, kind, monkeypatch):
    case = Case(5, kind, (80, 33, 4, 4, 3), use(name, monkeypatch), dtype="bfloat16")
    if kind != "sign":  # numbers that are rounded, and tie then
        case.write(np.arange(40), 1 + case.rng.normal(size=(40, 33)) / 64)
    case.update([], 0, 4)
    case.build_expected(0, 4)
    case.check()
    case.write([3, 70], random_vectors(case.rng, 2, 33) + 1)
    assert case.update([70, 3], 1, 4) == case.build_expected(1, 4) > 0
    case.check()


def test_float64_rows():
    case = Case(6, "dwta", (30, 13, 4, 2, 2), "auto", dtype="float64")
    assert case.update([], 0, 2) == case.build_expected(0, 2) > 0
    case.check()


@every_implementation
def test_in_one_graph(name, monkeypatch):
    case = Case(7, "dwta", (60, 20, 4, 6, 3), use(name, monkeypatch))

    @tf.function(
        input_signature=[
            tf.TensorSpec([None], tf.int64),
            tf.TensorSpec([], tf.int32),
            tf.TensorSpec([2], tf.int64),
        ]
    )
    def call(touched, now, which):
        return update_tables(
            case.kernel,
            None,
            case.tables,
            case.functions,
            case.hashes,
            touched,
            now,
            which,
            tf.zeros([0]),
            implementation=case.implementation,
        )

    for first, end in [(0, 6), (2, 3), (5, 5), (0, 6)]:
        ids = case.rng.integers(0, 60, 7)
        case.write(ids, random_vectors(case.rng, 7, 20))
        case.now += 1
        moved = call(tf.constant(ids), case.now, tf.constant([first, end], tf.int64))
        assert moved == case.build_expected(first, end)
        case.check()


def check_refused(case, message, touched=(), first=0, end=3):
    """Checks the error, and that tables are as before."""
    before = arrays(case.tables)
    with pytest.raises(tf.errors.InvalidArgumentError, match=f"(?s){message}"):
        case.update(list(touched), first, end)
    for name, old, new in zip(case.tables._fields, before, arrays(case.tables), strict=True):
        if name != "touched_at":
            np.testing.assert_array_equal(new, old)


def built_case(name, monkeypatch) -> Case:
    case = Case(8, "wta", (20, 9, 3, 3, 2), use(name, monkeypatch))
    case.write(np.arange(20), case.rng.normal(size=(20, 9)))
    case.update([], 0, 3)
    case.build_expected(0, 3)
    return case


@every_implementation
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_rows_that_changed_must_be_finite(name, value, monkeypatch):
    """Marks are kept, as W has changed: when the row is repaired the tables follow."""
    case = built_case(name, monkeypatch)
    rows = case.rng.normal(size=(20, 9))
    rows[13, 4] = value
    case.write(np.arange(20), rows)
    check_refused(case, "kernel must be finite; got.*row.*13", touched=range(20), first=1)
    rows[13, 4] = 0
    case.write([13], rows[13])
    assert case.update([], 0, 3) == case.build_expected(0, 3) > 0
    case.check()


@every_implementation
@pytest.mark.parametrize("bad", [20, -2, 2**40])
def test_ids_must_be_classes(name, bad, monkeypatch):
    case = built_case(name, monkeypatch)
    marks = numbers_of(case.tables.touched_at)
    check_refused(case, rf"touched must be class ids in \[-1, 20\).*got.*{bad}", [1, 2, bad, 3])
    np.testing.assert_array_equal(numbers_of(case.tables.touched_at), marks)


@every_implementation
@pytest.mark.parametrize(("first", "end"), [(-1, 2), (2, 1), (0, 4), (4, 4)])
def test_tables_must_be_a_range(name, first, end, monkeypatch):
    case = built_case(name, monkeypatch)
    case.write([5], np.ones(9))
    message = rf"tables must be a range in \[0, 3\]; got.*{first}, {end}"
    check_refused(case, message, [5], first, end)


CORRUPT = {  # which array, and what to write where
    "entry above C": ("entries", 2, 20),
    "no entry in a bucket": ("entries", 2, -1),
    "an entry below -1": ("entries", 0, -7),
    "a class twice": ("entries", 0, None),
    "starts begin late": ("starts", 0, 1),
    "falling starts": ("starts", 4, 21),
    "negative start": ("starts", 3, -1),
    "starts end behind C": ("starts", 9, 21),
}


@every_implementation
@pytest.mark.parametrize("what", list(CORRUPT))
def test_corrupt_tables_are_refused(name, what, monkeypatch):
    case = corrupt_case(name, what, monkeypatch)
    case.write([5], np.ones(9))
    message = "entries and starts must be a table as it was written; table.*1.*rebuild the index"
    check_refused(case, message, [5])
    assert case.update([5], 2, 3) == case.build_expected(2, 3)  # this one is well
    np.testing.assert_array_equal(
        numbers_of(case.tables.entries)[2], expected_tables(case.codes, 9)[0][2]
    )


@every_implementation
@pytest.mark.parametrize("what", list(CORRUPT))
def test_corrupt_tables_are_written_anew_where_all_rows_have_changed(name, what, monkeypatch):
    case = corrupt_case(name, what, monkeypatch)
    case.codes[:, 1] = -1  # all of its classes move
    assert case.update(range(20), 0, 3) == case.build_expected(0, 3) == 20
    case.check()


def corrupt_case(name, what, monkeypatch) -> Case:
    case = built_case(name, monkeypatch)
    array, place, value = CORRUPT[what]
    variable = getattr(case.tables, array)
    values = numbers_of(variable)
    values[1, place] = values[1, place + 1] if value is None else value
    variable.assign(values)
    return case


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"now": tf.constant([1, 2])}, r"now must be a scalar; got shape \[2\]"),
        ({"which": tf.constant([0], tf.int64)}, r"tables must be .first, .*got shape \[1\]"),
        ({"kernel": tf.ones([20])}, r"kernel must be float \[C, D\] with .*got.*\[20\]"),
        ({"kernel": tf.ones([21, 9])}, r"entries must be \[L, C\] = \[3, 21\]; got"),
        ({"hashes_per_table": 1}, r"starts must be uint32 \[L, buckets \+ 1\].*got.*\[3,10\]"),
        ({"radii": tf.constant(1.0)}, r"radii must be \[m\]; got shape \[\]"),
    ],
)
@pytest.mark.cpu
def test_shapes_that_disagree_are_refused(change, message, monkeypatch):
    case = built_case("baseline", monkeypatch)
    if "kernel" in change:
        change = {"kernel": tf.Variable(change["kernel"])}
    arguments = {
        "kernel": case.kernel,
        "bias": None,
        "tables": case.tables,
        "functions": case.functions,
        "hashes_per_table": 2,
        "touched": tf.constant([], tf.int64),
        "now": tf.constant(9),
        "which": tf.constant([0, 3], tf.int64),
        "radii": tf.zeros([0]),
    }
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        update_tables(**{**arguments, **change}, implementation="op")
    case.check()


def test_bad_arguments_of_the_wrapper():
    tables = empty_tables(1, 3, 4)
    functions = HashFunctions.by_planes(np.ones((2, 5), np.float32))
    kernel, ids = tf.Variable(tf.ones([3, 5])), tf.constant([0], tf.int64)
    now, which, radii = tf.constant(1), tf.constant([0, 1], tf.int64), tf.zeros([0])
    with pytest.raises(TypeError, match="touched must be int64; got int32"):
        update_tables(kernel, None, tables, functions, 2, tf.constant([0]), now, which, radii)
    with pytest.raises(TypeError, match="now must be int32; got int64"):
        wrong = tf.constant(1, tf.int64)
        update_tables(kernel, None, tables, functions, 2, ids, wrong, which, radii)
    with pytest.raises(TypeError, match="which must be int64; got int32"):
        wrong = tf.constant([0, 1])
        update_tables(kernel, None, tables, functions, 2, ids, now, wrong, radii)


@every_implementation
@pytest.mark.parametrize("dtype", [tf.float32, tf.bfloat16])
@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("radii", [[3.0], [4.0, 3.0, 2.5]])
def test_with_radii_rows_are_longer_by_two(name, dtype, with_bias, radii, monkeypatch):
    implementation, rng = use(name, monkeypatch), np.random.default_rng(3)
    kernel = tf.Variable(tf.cast(rng.normal(size=(90, 10)), dtype))
    bias = tf.Variable(tf.cast(rng.normal(size=90), dtype)) if with_bias else None
    functions = HashFunctions.by_planes(rng.normal(size=(12, 12)).astype(np.float32))
    tables = empty_tables(4, 90, 8 * len(radii))
    arguments = tf.constant([], tf.int64), tf.constant(1), tf.constant([0, 4], tf.int64)
    update_tables(
        kernel,
        bias,
        tables,
        functions,
        3,
        *arguments,
        tf.constant(radii),
        implementation=implementation,
    )
    rows = tf.cast(kernel, tf.float64).numpy()
    b = tf.cast(bias, tf.float64).numpy() if with_bias else np.zeros(90)
    vectors, ranges = oracle.longer_rows(rows, b, radii)
    assert 0 < np.count_nonzero(vectors[:, -1]) < 90  # some rows are longer than all radii
    assert set(ranges) == set(range(len(radii)))
    codes = expected_codes(vectors, functions, 4, 3) + 8 * ranges[:, np.newaxis]
    entries, starts = expected_tables(codes, 8 * len(radii))
    np.testing.assert_array_equal(numbers_of(tables.entries), entries)
    np.testing.assert_array_equal(numbers_of(tables.starts), starts)


@every_implementation
@pytest.mark.parametrize("radii", [[0.0], [-1.0], [1.0, 1.0], [1.0, 2.0], [np.inf], [2.0, np.nan]])
def test_radii_must_fall(name, radii, monkeypatch):
    implementation = use(name, monkeypatch)
    functions = HashFunctions.by_planes(np.ones((2, 7), np.float32))
    with pytest.raises(tf.errors.InvalidArgumentError, match="radii must fall, and be finite"):
        update_tables(
            tf.Variable(tf.ones([3, 5])),
            None,
            empty_tables(1, 3, 4 * len(radii)),
            functions,
            2,
            tf.constant([0], tf.int64),
            tf.constant(1),
            tf.constant([0, 1], tf.int64),
            tf.constant(radii, tf.float32),
            implementation=implementation,
        )
