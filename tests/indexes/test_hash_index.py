# SPDX-License-Identifier: Apache-2.0
"""HashIndex follows W by its schedule, and continues after a restart."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from ops.hash_index_cases import numbers_of
from oracles import hash_index as oracle

from tfx_largeout.indexes import DWTAHash, HashIndex, InvertedMultiIndex, SimHash, WTAHash

CLASSES, WIDTH = 60, 16


def rows(seed, n=CLASSES):
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


def built_index(kernel, *arguments, **options):
    index = HashIndex(*arguments, **options)
    index.rebuild(kernel)
    return index


def state(index):
    """Copies of the weights."""
    return [weight.numpy().copy() for weight in index.weights]


def check_same(index, expected):
    for weight, want in zip(index.weights, expected, strict=True):
        np.testing.assert_array_equal(weight.numpy(), want)


def check_tables(index, vectors):
    """Checks that tables hold the rows of the kernel, by the codes that these have."""
    codes = index.codes(tf.constant(vectors)).numpy()
    for t in range(index.num_tables):
        entries, starts = oracle.table(codes[:, t], index.num_buckets)
        np.testing.assert_array_equal(numbers_of(index.entries)[t], entries)
        np.testing.assert_array_equal(numbers_of(index.starts)[t], starts)


class Training:
    """Changes rows of a kernel, as steps do."""

    def __init__(self, index, kernel, seed):
        self.index, self.kernel = index, kernel
        self.rng = np.random.default_rng(seed)

    @tf.function
    def _step(self, ids, changed):
        self.kernel.scatter_nd_update(ids[:, tf.newaxis], changed)
        self.index.update(self.kernel, None, ids)

    def step(self):
        ids = self.rng.integers(0, CLASSES, 5)
        changed = self.rng.normal(size=(5, WIDTH)).astype(np.float32)
        changed[1:] = np.where(ids[1:, None] == ids[:1], changed[:1], changed[1:])
        changed = changed[[list(ids).index(c) for c in ids]]  # one value for each class
        self._step(tf.constant(ids), tf.constant(changed))


SCHEDULES = [  # L, first period, growth, steps
    (10, 20, 1.5, 250),
    (50, 50, 1.1, 250),
    (7, 30, 1.0, 200),
    (1, 10, 2.0, 160),
    (30, 4, 1.3, 60),
    (9, 1, 1.0, 12),
]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_each_round_brings_all_tables_up_to_date(schedule):
    num_tables, first_period, growth, steps = schedule
    kernel = tf.Variable(rows(0))
    options = {"first_period": first_period, "growth": growth}
    index = built_index(kernel, WTAHash(4), 2, num_tables, **options)
    update = tf.function(lambda: index.update(kernel, None, tf.constant([3], tf.int64)))
    built = []  # the tables of each step
    for _ in range(steps):
        before = index.built_at.numpy()
        update()
        built.append(np.flatnonzero(index.built_at.numpy() != before))
    most = max(int(np.ceil(num_tables / first_period)) + 2, 2)
    assert max(len(tables) for tables in built) <= most
    order = np.concatenate(built)
    np.testing.assert_array_equal(order, np.arange(len(order)) % num_tables)  # one by one
    built_in_step = np.repeat(np.arange(steps), [len(tables) for tables in built])
    round_ends = built_in_step[num_tables - 1 :: num_tables]
    assert len(round_ends) >= 3
    lengths = np.diff(round_ends, prepend=-1)
    periods = first_period * growth ** np.arange(len(lengths))
    # A round may end up to two tables late, or begin with as many in hand.
    slack = 2 * 2 * periods / num_tables + 1
    if num_tables <= 2:
        slack = 2.0
    assert np.all(np.abs(lengths - periods) <= slack)


def period_of(index):
    return float(index.schedule.numpy()[2])


@pytest.mark.parametrize("factor", [0.99, 1.01])
def test_the_period_grows_while_few_classes_move(factor):
    kernel, changed = tf.Variable(rows(0)), rows(0)
    changed[::3] = rows(1)[::3]
    codes = HashIndex(WTAHash(4), 2, 4)
    codes.rebuild(kernel)
    moved = np.mean(codes.codes(kernel.read_value()).numpy() != codes.codes(changed).numpy())
    assert 0.2 < moved < 0.4
    index = built_index(
        kernel, WTAHash(4), 2, 4, first_period=4, growth=2.0, max_drift=factor * moved
    )
    kernel.assign(changed)
    for _ in range(4):
        index.update(kernel, None, tf.range(CLASSES, dtype=tf.int64))
    assert period_of(index) == (8 if factor > 1 else 4)


def test_the_period_shrinks_when_rows_begin_to_move():
    kernel = tf.Variable(rows(0))
    index = built_index(kernel, WTAHash(4), 2, 4, first_period=4, growth=2.0, max_drift=0.2)

    def period_after(steps, moves):
        for step in range(steps):
            if moves:
                kernel.assign(rows(step))
            index.update(kernel, None, tf.range(CLASSES, dtype=tf.int64))
        return period_of(index)

    assert period_after(4 + 8, moves=False) == 16
    assert period_after(16, moves=True) == 8
    assert period_after(8, moves=True) == 4
    assert period_after(3 * 4, moves=True) == 4  # never below the first


def test_tables_whose_turn_it_was_hold_the_changes():
    kernel = tf.Variable(rows(0))
    index = built_index(kernel, WTAHash(4), 2, 6, first_period=6, growth=1)
    training = Training(index, kernel, 1)
    for _ in range(30):
        training.step()
        codes = index.codes(kernel.read_value()).numpy()
        for t in np.flatnonzero(index.built_at.numpy() == index.clock.numpy()):
            entries, starts = oracle.table(codes[:, t], index.num_buckets)
            np.testing.assert_array_equal(numbers_of(index.entries)[t], entries)
            np.testing.assert_array_equal(numbers_of(index.starts)[t], starts)
    for _ in range(12):  # two rounds without changes
        index.update(kernel, None, tf.constant([], tf.int64))
    check_tables(index, kernel.numpy())


@pytest.mark.parametrize("before_the_end", [0, 7, 40])
def test_upkeep_goes_on_when_the_clock_is_at_its_end(before_the_end):
    """As with a clock at its beginning, step for step."""
    options = {"hashes_per_table": 2, "num_tables": 7, "first_period": 9, "max_drift": 0.01}
    kernels = [tf.Variable(rows(1)) for _ in range(2)]
    young, old = (
        Training(built_index(kernel, DWTAHash(4), **options), kernel, seed=2) for kernel in kernels
    )
    for _ in range(10):
        young.step()
        old.step()
    shift = np.iinfo(np.int32).max - before_the_end - old.index.clock.numpy()
    for times in (old.index.clock, old.index.touched_at, old.index.built_at):
        times.assign((times.numpy() + shift).astype(times.dtype))
    for _ in range(80):
        young.step()
        old.step()
        for name in ("entries", "starts", "schedule"):
            own, expected = (getattr(t.index, name).numpy() for t in (old, young))
            np.testing.assert_array_equal(own, expected)
        is_marked = [
            t.index.touched_at.numpy() > t.index.built_at.numpy()[:, np.newaxis]
            for t in (old, young)
        ]
        np.testing.assert_array_equal(*is_marked)
    assert 0 < old.index.clock.numpy() < 200


def test_tables_that_were_never_built_stay_so_when_the_clock_is_at_its_end():
    kernel = tf.Variable(rows(1))
    index = HashIndex(DWTAHash(4), hashes_per_table=2, num_tables=3, first_period=9)
    index.build(kernel.shape)
    index.clock.assign(np.iinfo(np.int32).max)
    for _ in range(20):
        index.update(kernel, None, tf.zeros([0], tf.int64))
    check_tables(index, rows(1))


@pytest.mark.parametrize(
    "index",
    [
        HashIndex(),
        HashIndex(SimHash(), 9, 4, name="nearest"),
        HashIndex(WTAHash(3), 2, 5, 7.5, 1.25, 0.01, max_per_bucket=11, seed=3),
        HashIndex(DWTAHash(4), dtype="bfloat16"),
    ],
)
def test_config_round_trip(index):
    config = keras.saving.serialize_keras_object(index)
    again = keras.saving.deserialize_keras_object(config)
    assert type(again) is HashIndex
    assert type(again.family) is type(index.family)
    assert again.get_config() == index.get_config()
    kernel = tf.Variable(rows(0))
    for each in (index, again):
        each.rebuild(kernel)
    check_same(again, state(index))


def test_the_seed_chooses_the_functions():
    kernel = tf.Variable(rows(0))
    one, same, other = (built_index(kernel, WTAHash(4), 2, 5, seed=seed) for seed in (1, 1, 2))
    check_same(same, state(one))
    assert np.any(other.elements.numpy() != one.elements.numpy())


@pytest.mark.parametrize("family", [DWTAHash(4), WTAHash(4), SimHash()])
@pytest.mark.cpu
def test_with_saved_weights_it_goes_on_bit_for_bit(family):
    kernel = tf.Variable(rows(0))
    index = built_index(kernel, family, 3, 7, first_period=5)
    training = Training(index, kernel, 1)
    for _ in range(13):
        training.step()
    copy = tf.Variable(kernel.read_value())
    restored = HashIndex(family, 3, 7, first_period=5, seed=99)  # other functions, till restored
    restored.build((CLASSES, WIDTH))
    restored.set_weights(index.get_weights())
    other = Training(restored, copy, 2)
    training.rng = np.random.default_rng(2)
    queries = tf.constant(rows(5, 4)[:, np.newaxis])
    for step in range(20):
        training.step()
        other.step()
        check_same(restored, state(index))
        seed = tf.constant([step, 0])
        for per_example in (False, True):
            one, two = (
                each.candidates(queries, 9, seed, per_example) for each in (index, restored)
            )
            np.testing.assert_array_equal(one, two)


def test_rebuild_after_w_was_assigned():
    kernel = tf.Variable(rows(0))
    index = built_index(kernel, DWTAHash(4), 2, 5)
    check_tables(index, rows(0))
    kernel.assign(rows(1))
    index.update(kernel, None, tf.constant([], tf.int64))
    index.update(kernel, None, tf.constant([], tf.int64))
    check_tables(index, rows(0))  # nothing was marked
    index.rebuild(kernel)
    check_tables(index, rows(1))
    np.testing.assert_array_equal(index.built_at, np.repeat(index.clock.numpy(), 5))
    fresh = built_index(kernel, DWTAHash(4), 2, 5)
    np.testing.assert_array_equal(index.entries, fresh.entries)
    np.testing.assert_array_equal(index.starts, fresh.starts)


def test_a_kernel_that_is_not_finite_changes_nothing():
    kernel = tf.Variable(rows(0))
    index = built_index(kernel, DWTAHash(4), 2, 5, first_period=1)
    before = index.entries.numpy(), index.starts.numpy(), index.built_at.numpy()
    bad = rows(1)
    bad[7, 3] = np.nan
    kernel.assign(bad)
    everything = tf.range(CLASSES, dtype=tf.int64)
    calls = [lambda: index.rebuild(kernel), lambda: index.update(kernel, None, everything)]
    for call in calls:
        message = r"(?s)kernel must be finite.*row.*7"
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            call()
        for variable, want in zip(index.tables[:2], before[:2], strict=True):
            np.testing.assert_array_equal(variable, want)
        np.testing.assert_array_equal(index.built_at, before[2])
    kernel.assign(rows(1))
    index.update(kernel, None, tf.constant([], tf.int64))
    check_tables(index, rows(1))


@pytest.mark.parametrize("family", [DWTAHash(4), WTAHash(4), SimHash()])
@pytest.mark.parametrize("per_example", [False, True])
def test_rows_of_zeros_are_found_by_nobody(family, per_example):
    values = np.abs(rows(0))
    values[::3] = 0
    kernel = tf.Variable(values)
    index = built_index(kernel, family, 1, 20, max_per_bucket=CLASSES)
    queries = tf.constant(np.stack([values, -values, np.zeros_like(values)], axis=1))
    ids = index.candidates(queries, CLASSES, tf.constant([1, 2]), per_example)
    seen = set(ids.numpy().flat) - {-1}
    assert seen == {c for c in range(CLASSES) if c % 3}
    ids = index.candidates(queries[:, 2:], CLASSES, tf.constant([1, 2]), per_example)
    assert np.all(ids == -1)


def test_each_class_finds_itself():
    kernel = tf.Variable(rows(0))
    for family in (DWTAHash(4), WTAHash(4), SimHash()):
        index = built_index(kernel, family, 3, 4)
        queries = tf.constant(rows(0)[:, np.newaxis])
        ids = index.candidates(queries, CLASSES, tf.constant([1, 2]), per_example=True).numpy()
        for c in range(CLASSES):
            assert c in ids[c]


@pytest.mark.parametrize("per_example", [False, True])
def test_the_same_seed_gives_the_same_candidates(per_example):
    index = built_index(tf.Variable(rows(0)), DWTAHash(4), 1, 3)
    queries = tf.constant(rows(0)[:9, np.newaxis])
    one, again, other = (
        index.candidates(queries, 5, tf.constant([1, seed]), per_example) for seed in (2, 2, 3)
    )
    np.testing.assert_array_equal(one, again)
    assert np.any(one != other)


@pytest.mark.parametrize("family", [DWTAHash(4), WTAHash(4), SimHash()])
def test_a_bfloat16_kernel(family):
    kernel = tf.Variable(tf.cast(rows(0), tf.bfloat16))
    index = built_index(kernel, family, 2, 5, first_period=2, growth=1)
    check_tables(index, tf.cast(kernel, tf.float32).numpy())
    ids = tf.constant([3, 17], tf.int64)
    kernel.scatter_nd_update(ids[:, tf.newaxis], tf.cast(rows(1)[:2], tf.bfloat16))
    index.update(kernel, None, ids)
    index.update(kernel, None, ids[:0])
    check_tables(index, tf.cast(kernel, tf.float32).numpy())
    codes = index.codes(kernel.read_value())  # queries of bfloat16
    np.testing.assert_array_equal(codes, index.codes(tf.cast(kernel, tf.float32)))


def test_under_a_policy_of_bfloat16_weights_keep_their_dtypes():
    keras.config.set_dtype_policy("bfloat16")
    index = built_index(tf.Variable(rows(0)), SimHash(), 3, 4)
    assert index.planes.dtype == "float32"
    assert index.entries.dtype == "uint32"
    check_tables(index, rows(0))


def of_inner_products(**more) -> HashIndex:
    return HashIndex(SimHash(), 3, 4, first_period=2, similarity="inner_product", **more)


def test_rebuilding_takes_the_longest_row_for_a_radius():
    rows = np.random.default_rng(0).normal(size=(2**16 + 10, 3)).astype(np.float32)
    for place in (5, 2**16 + 5):  # the latter in another block
        rows[place] = [30, 40, 0]
        bias = np.zeros(len(rows), np.float32)
        bias[place] = 120
        index = of_inner_products()
        index.rebuild(tf.Variable(rows), tf.Variable(bias))
        assert index.radius.numpy() == pytest.approx(130)
        index.rebuild(tf.Variable(rows))
        assert index.radius.numpy() == pytest.approx(50)
        rows[place] = 0


def test_the_radius_follows_longer_rows_that_a_step_changed():
    rows = np.random.default_rng(0).normal(size=(10_000, 3)).astype(np.float32)
    kernel, index = tf.Variable(rows), of_inner_products()
    index.rebuild(kernel)
    before = index.radius.numpy()
    rows[9_999] = [0, 0, 1.2 * before]  # not among the rows that are always checked
    kernel.assign(rows)
    for _ in range(4):
        index.update(kernel, None, tf.constant([9_999], tf.int64))
    assert index.radius.numpy() == before  # not yet
    rows[9_999] = [0, 0, 2 * before]
    kernel.assign(rows)
    for _ in range(4):
        index.update(kernel, None, tf.constant([-1, 9_999], tf.int64))
    assert index.radius.numpy() == pytest.approx(2 * before)
    scratch = of_inner_products()
    scratch.rebuild(kernel)
    np.testing.assert_array_equal(index.entries, scratch.entries)
    np.testing.assert_array_equal(index.starts, scratch.starts)
    assert index.health(kernel)["stale"] == 0


def test_rebuilding_mends_corrupt_tables():
    kernel = tf.Variable(rows(0))
    index = built_index(kernel)
    expected = index.entries.numpy(), index.starts.numpy()
    index.entries.assign(np.full(index.entries.shape, 2**32 - 7))
    index.starts.assign(99 + tf.zeros_like(index.starts))
    with pytest.raises(tf.errors.InvalidArgumentError, match="rebuild the index"):
        for _ in range(100):
            index.update(kernel, None, tf.constant([1], tf.int64))
    index.rebuild(kernel)
    for array, want in zip((index.entries, index.starts), expected, strict=True):
        np.testing.assert_array_equal(array, want)


@pytest.mark.cpu
def test_without_a_radius_an_update_says_what_to_do():
    kernel = tf.Variable(rows(0))
    index = HashIndex(SimHash(), 3, 4, similarity="inner_product")
    index.build(kernel.shape)
    message = r"(?s)radii must fall.*rebuild the index"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        index.update(kernel, None, tf.constant([1], tf.int64))


@pytest.mark.parametrize(
    ("hashes", "message"), [(23, r"got 23, with 4 \* 2\^23"), (20_000, r"4 \* 2\^20000")]
)
def test_ranges_count_for_the_most_buckets(hashes, message):
    with pytest.raises(ValueError, match=message):
        HashIndex(SimHash(), hashes, similarity="inner_product")


@pytest.mark.parametrize("ranges", [0, 33, 1.5])
def test_length_ranges_must_be_a_few(ranges):
    with pytest.raises(ValueError, match=r"length_ranges must be .*; got"):
        of_inner_products(length_ranges=ranges)


def test_as_many_ranges_of_lengths_as_there_may_be():
    assert of_inner_products(length_ranges=32).length_ranges == 32


def test_how_full_the_tables_are():
    index = built_index(tf.Variable(rows(0)), num_tables=4, hashes_per_table=2)
    sizes = np.diff(numbers_of(index.starts), axis=1)
    health = {name: float(x) for name, x in index.health(tf.Variable(rows(0))).items()}
    assert health["occupied"] == pytest.approx(np.mean(sizes > 0))
    assert 0 < health["occupied"] < 1
    assert health["largest_bucket"] == pytest.approx(sizes.max() / CLASSES)


def test_what_follows_from_w_may_begin_anew():
    kernel = tf.Variable(rows(0))
    index, never = built_index(kernel), HashIndex()
    never.build(kernel.shape)
    index.start_anew()
    check_same(index, state(never))


def test_defaults_are_those_of_the_documentation():
    config = HashIndex().get_config()
    documented = {"hashes_per_table": 6, "num_tables": 50, "first_period": 50, "growth": 1.1}
    documented |= {"max_drift": None, "similarity": "angle", "length_ranges": 4}
    documented |= {"max_per_bucket": 256, "seed": 0}
    assert {name: config[name] for name in documented} == documented
    assert InvertedMultiIndex().num_words == 64
