# SPDX-License-Identifier: Apache-2.0
"""InvertedMultiIndex codes the rows of W, follows them, and continues after a restart."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import inverted_multi_index as oracle

from tfx_largeout.indexes import InvertedMultiIndex
from tfx_largeout.ops.multi_index.codebooks import Codebooks

CLASSES, WIDTH, WORDS = 60, 7, 4

quantizations = pytest.mark.parametrize("quantization", ["pq", "rq"])


def rows(seed, n=CLASSES):
    return np.random.default_rng(seed).normal(size=(n, WIDTH)).astype(np.float32)


def bias_of(seed):
    return np.random.default_rng(seed).normal(size=CLASSES).astype(np.float32)


def built_index(kernel, bias=None, **options):
    index = InvertedMultiIndex(**{"num_words": WORDS, **options})
    index.rebuild(kernel, bias)
    return index


def state(index):
    return [weight.numpy().copy() for weight in index.weights]


def check_same(index, expected):
    for weight, want in zip(index.weights, expected, strict=True):
        np.testing.assert_array_equal(weight.numpy(), want, err_msg=weight.path)


def words_of(index):
    return [np.asarray(x, np.float64) for x in (index.first_words, index.second_words)]


def check_lists(index, bias=None):
    """Checks that lists and sums match the codes, and weights the bias."""
    codes = index.codes.numpy()
    entries = np.argsort(codes, kind="stable")
    np.testing.assert_array_equal(index.entries, entries)
    pairs = np.arange(index.num_words**2 + 1)
    np.testing.assert_array_equal(index.starts, np.searchsorted(codes[entries], pairs))
    weights = index.class_weights.numpy()
    expected = np.maximum(
        np.round(oracle.weights(np.zeros(1) if bias is None else bias) * 2**30), 1
    )
    np.testing.assert_array_equal(weights, np.broadcast_to(expected, weights.shape))
    sums = np.concatenate([[0], np.cumsum(weights[entries].astype(np.int64))])
    np.testing.assert_array_equal(index.sums, sums)


def check_codes(index, vectors):
    expected = oracle.codes(np.float64(vectors), *words_of(index), index.quantization)
    np.testing.assert_array_equal(index.codes, expected)


@quantizations
def test_rows_have_the_codes_of_their_nearest_words(quantization):
    kernel, bias = tf.Variable(rows(0)), tf.Variable(bias_of(1))
    index = built_index(kernel, bias, quantization=quantization)
    check_codes(index, rows(0))
    check_lists(index, bias.numpy())
    assert len(np.unique(index.codes)) > WORDS


@quantizations
def test_rows_are_coded_in_blocks(quantization, monkeypatch):
    monkeypatch.setattr("tfx_largeout.indexes.inverted_multi_index._BLOCK_ROWS", 16)
    index = built_index(tf.Variable(rows(0)), quantization=quantization)
    check_codes(index, rows(0))


@quantizations
def test_an_iteration_of_k_means(quantization):
    index = built_index(tf.Variable(rows(0)), quantization=quantization)
    first, second = (tf.cast(x, tf.float32) for x in words_of(index))
    first = tf.concat([first[:-1], 1e3 + first[-1:]], axis=0)  # a word without a row
    vectors = rows(1)
    books = Codebooks(first, second, quantization == "rq").trained(vectors, 1, anew=False)
    of_first, of_second = oracle.parts(np.float64(vectors), quantization)
    new_first = oracle.means(of_first, first.numpy())
    if quantization == "rq":
        of_second = of_second - new_first[oracle.nearest(of_first, new_first)[0]]
    np.testing.assert_allclose(books.first, new_first, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        books.second, oracle.means(of_second, second.numpy()), rtol=1e-5, atol=1e-5
    )


@quantizations
def test_k_means_lowers_the_distortion(quantization):
    centers = 5 * rows(0, 9)
    kernel = tf.Variable(centers[np.arange(CLASSES) % 9] + 0.1 * rows(1))
    distortions = []
    for iterations in (0, 1, 10):
        index = InvertedMultiIndex(9, quantization)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tfx_largeout.indexes.inverted_multi_index._ITERATIONS", iterations)
            index.rebuild(kernel)
        distortions.append(float(index.health(kernel)["distortion"]))
    assert distortions[2] <= distortions[1] <= distortions[0]
    assert distortions[2] < 0.1


def test_equal_rows_leave_words_without_rows_but_all_is_finite():
    kernel = tf.Variable(np.ones([CLASSES, WIDTH], np.float32))
    index = built_index(kernel)
    check_lists(index)
    for _ in range(3):
        index.schedule.assign([1e9, 1, 0])
        index.update(kernel, None, tf.constant([], tf.int64))
    assert all(np.all(np.isfinite(x)) for x in words_of(index))
    assert float(index.health(kernel)["distortion"]) < 1e-6


class Training:
    """Changes rows of a kernel, as steps do."""

    def __init__(self, index, kernel, bias, seed):
        self.index, self.kernel, self.bias = index, kernel, bias
        self.rng = np.random.default_rng(seed)

    @tf.function
    def _step(self, ids, changed):
        self.kernel.scatter_nd_update(ids[:, tf.newaxis], changed)
        self.bias.scatter_nd_update(ids[:, tf.newaxis], changed[:, 0])
        self.index.update(self.kernel, self.bias, tf.concat([ids, [-1], ids[:1]], axis=0))

    def step(self):
        ids = self.rng.permutation(CLASSES)[:5]
        changed = self.rng.normal(size=(5, WIDTH)).astype(np.float32)
        self._step(tf.constant(ids), tf.constant(changed))
        return ids


@quantizations
def test_it_follows_w_by_its_schedule(quantization):
    kernel, bias = tf.Variable(rows(0)), tf.Variable(bias_of(0))
    options = {"first_period": 4, "growth": 1.5, "codebook_rounds": 3}
    index = built_index(kernel, bias, quantization=quantization, **options)
    training, codes_of, moves_of = Training(index, kernel, bias, 1), [], []
    expected, touched = index.codes.numpy(), set()
    for step in range(1, 60):
        before = state(index)
        touched |= set(training.step())
        check = index.codes.numpy()
        if not index.changed.numpy().any():
            codes_of.append(step)
            moves_of.append(np.any(before[0] != index.first_words.numpy()))
            if moves_of[-1]:
                touched = set(range(CLASSES))
            words, some = words_of(index), sorted(touched)
            expected[some] = oracle.codes(np.float64(kernel), *words, quantization)[some]
            touched = set()
            check_lists(index, bias.numpy())
        else:
            np.testing.assert_array_equal(np.flatnonzero(index.changed), sorted(touched))
            check_same(index, [*before[:7], index.changed.numpy(), before[8], state(index)[-1]])
        np.testing.assert_array_equal(check, expected)
    assert codes_of == [4, 10, 19, 33, 54]  # periods 4, 6, 9, 13.5, 20.25
    assert moves_of == [False, False, True, False, False]


def test_rebuild_after_w_was_assigned():
    kernel = tf.Variable(rows(0))
    index = built_index(kernel)
    kernel.assign(rows(1))
    index.update(kernel, None, tf.constant([], tf.int64))
    index.rebuild(kernel)
    check_codes(index, rows(1))
    check_lists(index)
    assert float(index.health(kernel)["stale"]) == 0


def test_health():
    kernel = tf.Variable(rows(0))
    index = InvertedMultiIndex(4)
    index.build(kernel.shape)
    assert float(index.health(kernel)["largest_pair"]) == 0  # nothing is coded yet
    index = built_index(kernel, num_words=1)
    values = {name: float(value) for name, value in index.health(kernel).items()}
    total = (rows(0) ** 2).sum()
    assert values["occupied"] == values["largest_pair"] == 1 and values["stale"] == 0
    left = rows(0) - rows(0).mean(axis=0)
    assert values["distortion"] == pytest.approx((left**2).sum() / total, rel=1e-4)
    index = built_index(kernel)
    kernel.assign(rows(1))
    values = index.health(kernel)
    assert values["stale"] > 0.5
    assert 0 < values["largest_pair"] < values["occupied"] <= 1


@pytest.mark.parametrize(
    "index",
    [
        InvertedMultiIndex(4, name="codes"),
        InvertedMultiIndex(3, "pq", False, np.arange(1, CLASSES + 1), 0.5, 7, 1.5, 2, 9),
        InvertedMultiIndex(4, counts=np.linspace(0.5, 3, CLASSES), dtype="bfloat16"),
    ],
)
@pytest.mark.cpu
def test_config_round_trip(index):
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(index))
    assert again.get_config() == index.get_config()
    for each in (index, again):
        each.rebuild(tf.Variable(rows(0)), tf.Variable(bias_of(0)))
    check_same(again, state(index))


@quantizations
@pytest.mark.cpu
def test_with_saved_weights_it_goes_on_bit_for_bit(quantization):
    kernel, bias = tf.Variable(rows(0)), tf.Variable(bias_of(0))
    options = {"num_words": WORDS, "quantization": quantization, "first_period": 3, "seed": 5}
    index = built_index(kernel, bias, **options, codebook_rounds=2)
    training = Training(index, kernel, bias, 1)
    for _ in range(8):
        training.step()
    restored = InvertedMultiIndex(**options, codebook_rounds=2)
    restored.build((CLASSES, WIDTH))
    restored.set_weights(index.get_weights())
    copies = [tf.Variable(x.read_value()) for x in (kernel, bias)]
    other = Training(restored, *copies, 2)
    training.rng = np.random.default_rng(2)
    for _ in range(20):
        training.step()
        other.step()
        check_same(restored, state(index))


def test_a_kernel_or_bias_that_is_not_finite_changes_nothing():
    kernel, bias = tf.Variable(rows(0)), tf.Variable(bias_of(0))
    index = built_index(kernel, bias, first_period=1)
    before = state(index)
    bad_rows, bad_bias = rows(1), bias_of(1)
    bad_rows[7, 3], bad_bias[5] = np.inf, np.nan
    everything = tf.range(CLASSES, dtype=tf.int64)
    for bad, good, message in (
        ((kernel, bad_rows), rows(0), r"(?s)kernel must be finite.*row.*7"),
        ((kernel, np.full_like(bad_rows, 1e30)), rows(0), r"(?s)kernel must be finite.*row.*0"),
        ((bias, bad_bias), bias_of(0), r"(?s)bias must be finite.*nan"),
    ):
        bad[0].assign(bad[1])
        for call in (
            lambda: index.rebuild(kernel, bias),
            lambda: index.update(kernel, bias, everything),
            tf.function(lambda: index.update(kernel, bias, everything)),
        ):
            with pytest.raises(tf.errors.InvalidArgumentError, match=message):
                call()
            index.changed.assign(tf.zeros_like(index.changed.value))  # marks stay
            check_same(index, before)
        bad[0].assign(good)
    index.update(kernel, bias, everything)
    check_lists(index, bias_of(0))


def test_weights_of_classes_that_are_far_apart_are_above_zero():
    bias = np.where(np.arange(CLASSES) % 2, -1e30, 3.0).astype(np.float32)
    index = built_index(tf.Variable(rows(0)), tf.Variable(bias))
    np.testing.assert_array_equal(index.class_weights, np.where(np.arange(CLASSES) % 2, 1, 2**30))


IDS = tf.range(CLASSES, dtype=tf.int64)[tf.newaxis]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("codes", WORDS**2, r"codes must be in \[0, 16\)|damaged: call rebuild"),
        ("codes", -1, r"codes must be in \[0, 16\)|damaged: call rebuild"),
        ("class_weights", 0, "class_weights must be above 0"),
        ("class_weights", -7, "class_weights must be above 0"),
        ("entries", CLASSES, "damaged: call rebuild"),
        ("entries", -3, "damaged: call rebuild"),
        ("starts", CLASSES + 9, "damaged: call rebuild"),
        ("starts", -2, "damaged: call rebuild"),
        ("sums", -(2**60), "damaged: call rebuild"),
        ("first_words", np.nan, "first_words must be finite"),
        ("second_words", np.inf, "second_words must be finite"),
    ],
)
def test_what_is_damaged_is_refused_and_mended_by_rebuild(name, value, message):
    kernel = tf.Variable(rows(0))
    index = built_index(kernel)
    whole = index.softmax(rows(2, 3)).log_probability(tf.repeat(IDS, 3, axis=0))
    variable = getattr(index, name)
    damaged = variable.numpy()
    numbers = damaged.view(np.int32) if damaged.dtype == np.uint32 else damaged
    numbers.flat[damaged.size // 2] = value
    variable.assign(damaged)

    def use():
        softmax = index.softmax(rows(2, 3))
        softmax.log_probability(tf.repeat(IDS, 3, axis=0))
        return softmax.sample(500, tf.constant([1, 2]))[1]

    for way in (use, tf.function(use)):
        with pytest.raises(tf.errors.InvalidArgumentError, match=message):
            way()
    index.rebuild(kernel)
    check_lists(index)
    assert np.isfinite(use()).all()
    assert np.isfinite(whole).all()


def test_an_index_that_was_not_made_is_refused():
    index = InvertedMultiIndex(WORDS)
    with pytest.raises(RuntimeError, match="index must be built before it is asked"):
        index.softmax(rows(2, 3))
    index.build((CLASSES, WIDTH))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"call index\.rebuild"):
        index.softmax(rows(2, 3))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"num_words": 0}, ValueError, "num_words must be an integer of at least 1; got 0"),
        ({"num_words": 2.5}, ValueError, "num_words must be an integer .* got 2.5"),
        ({"num_words": 4097}, ValueError, "num_words must be at most 4096; got 4097"),
        ({"quantization": "opq"}, ValueError, "quantization must be one of 'pq', 'rq'; got 'opq'"),
        ({"counts": [1, -1, 3]}, ValueError, "counts must be finite .* got -1 for class 1"),
        ({"counts": ["a"]}, TypeError, "counts must be numbers"),
        ({"power": 1.5}, ValueError, "power must be .* at most 1; got 1.5"),
        ({"first_period": 0}, ValueError, "first_period must be .* at least 1; got 0"),
        ({"growth": 0.5}, ValueError, "growth must be .* at least 1; got 0.5"),
        ({"codebook_rounds": 0}, ValueError, "codebook_rounds must be an integer .* got 0"),
        ({"seed": -1}, ValueError, "seed must be an integer of at least 0; got -1"),
        ({"seed": 2**63}, ValueError, r"seed must be below 2\*\*63; got 9223372036854775808"),
    ],
)
def test_arguments(options, error, message):
    with pytest.raises(error, match=message):
        InvertedMultiIndex(**options)


@pytest.mark.parametrize(
    ("options", "shape", "message"),
    [
        ({"num_words": 61}, (60, 7), "num_words must be at most num_classes=60; got 61"),
        ({"quantization": "pq"}, (70, 1), "quantization='pq' must go with rows of .* 2 .* got 1"),
        ({"counts": [1, 2]}, (70, 7), "counts must have one entry .* 70 classes; got 2"),
    ],
)
def test_arguments_that_do_not_fit_w(options, shape, message):
    index = InvertedMultiIndex(**options)
    with pytest.raises(ValueError, match=message):
        index.build(shape)
    assert not index.built and not index.weights


def test_another_w_is_refused():
    index = built_index(tf.Variable(rows(0)))
    for call in (index.rebuild, index.health, lambda kernel: index.update(kernel, None, IDS[0])):
        with pytest.raises(ValueError, match=r"kernel must be \[C, D\] = \[60, 7\].* got shape"):
            call(tf.Variable(rows(0)[1:]))
