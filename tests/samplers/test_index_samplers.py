# SPDX-License-Identifier: Apache-2.0
"""Samplers that find candidates in an index over W."""

from __future__ import annotations

import contextlib
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from loading import assert_goes_on_when_loaded
from oracles import hash_index as oracle
from samplers.drawing import assert_mean
from variants import cases_of, thorough

import tfx_largeout as tlo
from tfx_largeout.heads import candidate_head
from tfx_largeout.indexes import DWTAHash, HashIndex, SimHash, WTAHash
from tfx_largeout.labels import Labels
from tfx_largeout.samplers import (
    MIDX,
    ExactSoftmaxSampler,
    ExactTopK,
    LSHEmbedding,
    LSHLabel,
    Uniform,
    WTATopK,
)
from tfx_largeout.samplers.base import OutputWeights

CLASSES, WIDTH, BATCH = 60, 12, 7
RNG = np.random.default_rng(5)
KERNEL = RNG.standard_normal((CLASSES, WIDTH)).astype(np.float32)
BIAS = RNG.standard_normal(CLASSES).astype(np.float32)
HIDDEN = RNG.standard_normal((BATCH, WIDTH)).astype(np.float32)
LABELS = np.array(
    [[0, 5, -1], [59, -1, -1], [-1, 7, 2], [1, 2, 3], [-1, -1, -1], [4, -1, -1], [9, 8, 7]]
)
SEED = tf.constant([3, 4])

small_index = {
    "winner": lambda **more: HashIndex(DWTAHash(3), 2, 5, **more),
    "sign": lambda **more: HashIndex(SimHash(), 4, 5, **more),
    "inner product": lambda **more: HashIndex(SimHash(), 4, 5, similarity="inner_product", **more),
}
every_index = pytest.mark.parametrize("index", list(small_index))


def weights_with(index, kernel=KERNEL, bias=BIAS):
    """Returns weights as a head gives them to its sampler, with an index over them."""
    weights = OutputWeights(tf.Variable(kernel), None if bias is None else tf.Variable(bias), index)
    index.rebuild(weights.kernel, weights.bias)
    return weights


def drawn(sampler, weights, hidden=HIDDEN, labels=LABELS, seed=SEED):
    sampler.build(CLASSES)
    return sampler.sample(hidden, labels_of(labels), seed, weights)


def head_with(sampler, index, optimizer=None, **options):
    optimizer = optimizer or tlo.optimizers.RowAdam(0.01)
    return tlo.heads.SampledHead(CLASSES, sampler, optimizer, seed=1, index=index, **options)


def compiled(head):
    model = keras.Sequential([keras.Input([WIDTH]), head])
    model.compile("adam", loss=tlo.losses.ComplementarySum())
    return model


def labels_of(ids=LABELS):
    return Labels(tf.constant(ids, tf.int64))


def sharing_a_bucket(index, queries):
    """Returns for each query the set of classes that share a bucket with it in a table."""
    codes, entries, starts = (
        index.codes(queries).numpy(),
        index.entries.numpy(),
        index.starts.numpy(),
    )
    ranges = index.length_ranges if index.similarity == "inner_product" else 1
    first_buckets = np.arange(ranges) * (index.num_buckets // ranges)
    found = []
    for of_tables in codes:
        buckets = [
            entries[t, starts[t, first + code] : starts[t, first + code + 1]]
            for t, code in enumerate(of_tables)
            for first in first_buckets
            if code >= 0
        ]
        found.append(set(np.concatenate([*buckets, []]).astype(int)))
    return found


def present(ids):
    return set(ids[ids >= 0])


@every_index
def test_own_candidates_share_a_bucket_with_h(index):
    weights = weights_with(small_index[index]())
    ids = drawn(LSHEmbedding(CLASSES, per_example=True), weights).ids.numpy()
    expected = sharing_a_bucket(weights.index, HIDDEN)
    assert [present(row) for row in ids] == expected
    assert 0 < np.mean([len(row) for row in expected]) < CLASSES  # neither none nor all


@every_index
def test_label_candidates_share_a_bucket_with_a_label(index):
    weights = weights_with(small_index[index]())
    ids = drawn(LSHLabel(CLASSES, per_example=True), weights).ids.numpy()
    by_label = sharing_a_bucket(weights.index, KERNEL)
    for row, labels in zip(ids, LABELS, strict=True):
        assert present(row) == set().union(*(by_label[y] for y in labels if y >= 0))


@pytest.mark.parametrize("kind", [LSHEmbedding, LSHLabel])
def test_shared_candidates_are_of_the_whole_batch(kind):
    weights = weights_with(small_index["winner"]())
    found = drawn(kind(CLASSES), weights).ids.numpy()
    each = drawn(kind(CLASSES, per_example=True), weights).ids.numpy()
    assert found.shape == (CLASSES,)
    assert present(found) == set().union(*(present(row) for row in each))
    few = drawn(kind(5), weights).ids.numpy()
    assert present(few) < present(found)
    assert len(present(few)) == 5


@pytest.mark.parametrize("per_example", [False, *thorough(True)])
def test_with_a_background_the_sum_over_all_classes_is_unbiased(per_example):
    sampler = LSHEmbedding(8, Uniform(6, per_example=per_example), per_example=per_example)
    weights = weights_with(small_index["sign"]())
    logits = HIDDEN @ KERNEL.T
    draw = tf.function(lambda seed: drawn(sampler, weights, seed=seed), autograph=False)
    sums = []
    for seed in range(1500):
        candidates = draw(tf.constant([1, seed]))
        ids = np.broadcast_to(candidates.ids.numpy(), (BATCH, candidates.ids.shape[-1]))
        of_ids = np.take_along_axis(logits, np.maximum(ids, 0), 1)
        terms = np.exp(of_ids - candidates.log_expected.numpy())
        sums.append(np.where(ids >= 0, terms, 0).sum(axis=1))
    assert_mean(np.array(sums), np.exp(logits).sum(axis=1))


@pytest.mark.parametrize("per_example", [False, True])
def test_what_was_found_is_certain(per_example):
    weights = weights_with(small_index["sign"]())
    sampler = LSHEmbedding(8, Uniform(20), per_example=per_example)
    candidates = drawn(sampler, weights)
    assert sampler.num_candidates(BATCH) == (candidates.ids.shape[-1], per_example)
    found = np.broadcast_to(candidates.ids.numpy()[..., :8], (BATCH, 8))
    others = candidates.ids.numpy()[..., 8:]
    expected = candidates.log_expected.numpy()
    np.testing.assert_array_equal(expected[..., :8], 0)
    np.testing.assert_allclose(
        expected[..., 8:], np.where(others < 0, 0, np.log(20 / CLASSES)), 1e-6
    )
    for i, labels in enumerate(LABELS):
        assert not present(np.atleast_2d(others)[i if per_example else 0]) & present(found[i])
        for y, value in zip(labels, candidates.true_log_expected.numpy()[i], strict=True):
            certain = y < 0 or y in found[i]
            np.testing.assert_allclose(value, 0 if certain else np.log(20 / CLASSES), 1e-6)


@pytest.mark.thorough
@pytest.mark.parametrize("similarity", ["inner_product", *thorough("angle")])
def test_the_probability_to_be_found_corrects_the_sum(similarity):
    """Over the choice of hash functions; without it, the sum is too small."""
    hidden, labels = HIDDEN[:2], LABELS[:2]
    logits = hidden @ KERNEL.T
    corrected, plain = [], []
    for seed in range(400):
        index = HashIndex(SimHash(), 3, 4, similarity=similarity, max_per_bucket=CLASSES, seed=seed)
        sampler = LSHEmbedding(CLASSES, per_example=True, corrected=True)
        candidates = drawn(sampler, weights_with(index), hidden, labels)
        ids = candidates.ids.numpy()
        terms = np.where(ids >= 0, np.exp(np.take_along_axis(logits, np.maximum(ids, 0), 1)), 0)
        corrected.append((terms / np.exp(candidates.log_expected.numpy())).sum(axis=1))
        plain.append(terms.sum(axis=1))
    exact = np.exp(logits).sum(axis=1)
    assert_mean(np.array(corrected), exact)
    assert np.all(np.mean(plain, axis=0) < 0.9 * exact)


@pytest.mark.parametrize("similarity", ["angle", *thorough("inner_product")])
def test_a_model_trains_with_corrected_candidates(similarity):
    index = HashIndex(SimHash(), 3, 4, similarity=similarity)
    sampler = LSHEmbedding(CLASSES, per_example=True, corrected=True)
    head = head_with(sampler, index, tlo.optimizers.RowAdam(0.1))
    model = keras.Sequential([keras.Input([WIDTH]), keras.layers.Dense(5, "tanh"), head])
    model.compile("adam", loss=tlo.losses.ComplementarySum())
    losses = model.fit(HIDDEN, np.arange(BATCH), epochs=30, verbose=0).history["loss"]
    assert losses[-1] < 0.5 * losses[0]


@pytest.mark.parametrize("similarity", ["angle", "inner_product"])
@pytest.mark.parametrize("bias", [None, BIAS], ids=["no_bias", "bias"])
def test_the_probability_of_labels_is_that_of_theorem_2(similarity, bias):
    index = HashIndex(SimHash(), 3, 4, similarity=similarity)
    sampler = LSHEmbedding(CLASSES, per_example=True, corrected=True)
    candidates = drawn(sampler, weights_with(index, bias=bias))
    kernel, hidden = KERNEL.astype(float), HIDDEN.astype(float)
    if similarity == "inner_product":
        of_bias = np.zeros(CLASSES) if bias is None else bias
        longest = np.linalg.norm(np.column_stack([kernel, of_bias]), axis=1).max()
        radii = longest / 1.5 ** np.arange(4)
        kernel, ranges = oracle.longer_rows(kernel, of_bias, radii)
        assert len(set(ranges)) > 1
        hidden = np.column_stack([hidden, np.ones(BATCH), np.zeros(BATCH)])
    rows = kernel[np.maximum(LABELS, 0)]
    norms = np.linalg.norm(rows, axis=2) * np.linalg.norm(hidden, axis=1)[:, np.newaxis]
    cosine = np.einsum("nkd,nd->nk", rows, hidden) / norms
    found = 1 - (1 - (1 - np.arccos(cosine) / np.pi) ** 3) ** 4
    expected = np.where(LABELS < 0, 0, np.log(found))
    np.testing.assert_allclose(candidates.true_log_expected, expected, rtol=1e-4, atol=1e-5)


def test_wta_top_k_takes_the_best_that_were_found():
    sampler, weights = WTATopK(4, 30), weights_with(HashIndex(WTAHash(3), 1, 6))
    ids = drawn(sampler, weights).ids.numpy()
    assert ids.shape == (BATCH, 4)
    found = sampler.find(HIDDEN, labels_of(), SEED, weights).numpy()
    logits = HIDDEN @ KERNEL.T + BIAS
    for row, candidates, values in zip(ids, found, logits, strict=True):
        best = sorted(present(candidates), key=lambda c: -values[c])[:4]
        assert list(row[row >= 0]) == best


def test_an_inner_product_finds_large_rows_that_an_angle_misses():
    kernel = RNG.standard_normal((2000, WIDTH)).astype(np.float32)
    kernel[:20] *= 20  # these rows have the greatest logits
    hidden = np.maximum(RNG.standard_normal((200, WIDTH)), 0).astype(np.float32)
    best = np.argmax(hidden @ kernel.T, axis=1)

    def recall(similarity):
        index = HashIndex(SimHash(), 8, 20, similarity=similarity)
        index.rebuild(tf.Variable(kernel))
        ids = index.candidates(
            tf.constant(hidden)[:, tf.newaxis], 50, SEED, per_example=False
        ).numpy()
        return np.isin(best, ids).mean()

    assert recall("inner_product") > recall("angle") + 0.2


def test_ranges_of_lengths_keep_one_long_row_from_hiding_the_others():
    kernel = RNG.standard_normal((2000, WIDTH)).astype(np.float32)
    kernel[0] *= 50
    hidden = RNG.standard_normal((200, WIDTH)).astype(np.float32)
    best = np.argsort(-hidden @ kernel.T, axis=1)[:, :10]

    def recall(ranges):
        index = HashIndex(
            SimHash(), 6, 20, similarity="inner_product", length_ranges=ranges, max_per_bucket=10
        )
        index.rebuild(tf.Variable(kernel))
        ids = index.candidates(
            tf.constant(hidden)[:, tf.newaxis], 100, SEED, per_example=True
        ).numpy()
        return np.mean([np.isin(b, found).mean() for b, found in zip(best, ids, strict=True)])

    assert recall(12) > recall(1) + 0.2


def test_zero_rows_and_zero_queries_find_nothing():
    kernel = KERNEL.copy()
    kernel[10:20] = 0
    weights = weights_with(small_index["winner"](), kernel, bias=None)
    hidden = HIDDEN.copy()
    hidden[2] = 0
    ids = drawn(LSHEmbedding(CLASSES, per_example=True), weights, hidden).ids.numpy()
    assert not set(range(10, 20)) & present(ids)
    assert not present(ids[2])
    assert present(ids[1])


@cases_of("index", list(small_index))
@pytest.mark.parametrize(
    "sampler",
    [LSHEmbedding(10, Uniform(5), per_example=True), Uniform(30)],
    ids=lambda s: type(s).__name__,
)
def test_the_index_of_a_head_follows_the_weights_in_training(index, sampler):
    optimizer = tlo.optimizers.RowSGD(5.0)
    head = head_with(sampler, small_index[index](first_period=4), optimizer)
    model = compiled(head)
    x, y = np.tile(HIDDEN, (8, 1)), np.arange(8 * BATCH) % CLASSES
    head.index.rebuild(head.kernel, head.bias)
    before = head.index.entries.numpy()
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert np.any(head.index.entries.numpy() != before)
    # All rows have had their turn: from scratch, with the same radius, it is the same.
    for _ in range(8):
        head.index.update(head.kernel, head.bias, tf.constant([], tf.int64))
    scratch = small_index[index](first_period=1)
    scratch.rebuild(head.kernel, head.bias)
    scratch.radius.assign(head.index.radius)
    for _ in range(4):
        scratch.update(head.kernel, head.bias, tf.range(CLASSES, dtype=tf.int64))
    np.testing.assert_array_equal(head.index.entries, scratch.entries)
    np.testing.assert_array_equal(head.index.starts, scratch.starts)


@pytest.mark.parametrize("kind", thorough(LSHLabel, LSHEmbedding, WTATopK))
@pytest.mark.cpu
def test_a_saved_model_goes_on_bit_for_bit(kind, tmp_path):
    sampler = WTATopK(5, 20) if kind is WTATopK else kind(10, Uniform(5))
    model = compiled(head_with(sampler, HashIndex(DWTAHash(3), 2, 5, first_period=3)))
    x, y = np.tile(HIDDEN, (6, 1)), np.arange(6 * BATCH) % CLASSES
    model.fit(x, y, batch_size=BATCH, verbose=0)
    assert_goes_on_when_loaded(model, x, y, tmp_path, batch_size=BATCH)


@pytest.mark.parametrize(
    "sampler",
    [
        LSHEmbedding(7, Uniform(3), per_example=True),
        LSHEmbedding(7, per_example=True, corrected=True),
        LSHLabel(7),
        WTATopK(3, 9),
    ],
    ids=lambda s: type(s).__name__,
)
def test_config_round_trip(sampler):
    config = keras.saving.serialize_keras_object(sampler)
    again = keras.saving.deserialize_keras_object(json.loads(json.dumps(config)))
    assert type(again) is type(sampler)
    assert keras.saving.serialize_keras_object(again) == config


@pytest.mark.parametrize(
    ("make", "error", "match"),
    [
        (lambda: LSHEmbedding(0), ValueError, "num_found .*at least 1; got 0"),
        (
            lambda: head_with(LSHEmbedding(5), "wta"),
            TypeError,
            "index must be an Index or None; got 'wta'",
        ),
        (lambda: LSHEmbedding(5, 100), TypeError, "background must be a Sampler; got 100"),
        (
            lambda: LSHEmbedding(5, ExactTopK(3)),
            TypeError,
            "background must draw without regard to the weights",
        ),
        (
            lambda: LSHEmbedding(5, per_example=False, corrected=True),
            ValueError,
            "corrected must go with per_example=True and background=None",
        ),
        (
            lambda: head_with(
                LSHEmbedding(5, per_example=True, corrected=True), HashIndex(DWTAHash())
            ),
            NotImplementedError,
            "DWTAHash has no closed form",
        ),
        (lambda: WTATopK(10, 5), ValueError, "k must be at most num_found=5; got 10"),
        (
            lambda: LSHLabel(CLASSES + 1).build(CLASSES),
            ValueError,
            f"num_found must be at most num_classes={CLASSES}; got {CLASSES + 1}",
        ),
        (
            lambda: drawn(LSHLabel(5), None),
            ValueError,
            "weights.kernel must be the kernel of a head, as LSHLabel reads it; got None",
        ),
        (
            lambda: drawn(LSHLabel(5), OutputWeights(tf.Variable(KERNEL))),
            ValueError,
            "weights.index must be the index of a head for LSHLabel; got None",
        ),
        (
            lambda: drawn(LSHLabel(5), OutputWeights(tf.Variable(KERNEL), None, HashIndex())),
            RuntimeError,
            "index must be built before it is asked",
        ),
        (
            lambda: HashIndex(DWTAHash(), similarity="inner_product"),
            ValueError,
            "similarity='inner_product' must go with SimHash",
        ),
        (lambda: HashIndex(similarity="cosine"), ValueError, "similarity must be one of"),
    ],
)
def test_bad_arguments_are_refused(make, error, match):
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize("kind", [LSHLabel, Uniform])
def test_an_index_serves_one_head(kind):
    index = small_index["sign"]()
    head_with(LSHEmbedding(5), index).build((None, WIDTH))
    with pytest.raises(ValueError, match="index must serve no other head; got <HashIndex"):
        head_with(kind(5), index).build((None, WIDTH))


@pytest.mark.thorough
@pytest.mark.parametrize("kind", [LSHEmbedding, *thorough(LSHLabel, WTATopK, ExactTopK)])
def test_a_sampler_serves_several_heads(kind):
    """Training is as with a sampler for each head."""

    def trained(samplers):
        keras.utils.set_random_seed(1)
        heads = [
            head_with(sampler, small_index["sign"](first_period=2), name=f"head_{i}")
            for i, sampler in enumerate(samplers)
        ]
        models = [compiled(head) for head in heads]
        for _ in range(2):  # The heads take turns.
            for model in models:
                model.fit(HIDDEN, np.arange(BATCH), batch_size=4, shuffle=False, verbose=0)
        return [weight for model in models for weight in model.get_weights()]

    sampler = kind(5)
    for shared, alone in zip(trained([sampler, sampler]), trained([kind(5), kind(5)]), strict=True):
        np.testing.assert_array_equal(shared, alone)


def test_a_head_takes_the_default_index_of_its_sampler():
    assert isinstance(head_with(LSHEmbedding(5), None).index.family, DWTAHash)
    index = head_with(WTATopK(5), None).index
    assert isinstance(index.family, WTAHash)
    assert (index.hashes_per_table, index.num_tables) == (3, 200)
    assert head_with(Uniform(5), None).index is None
    assert head_with(ExactTopK(5), None).index is None


@pytest.mark.parametrize("sampler", [LSHLabel(7), Uniform(7)], ids=lambda s: type(s).__name__)
def test_a_head_is_serialized_with_its_index(sampler):
    index = HashIndex(WTAHash(5), 2, 3, 20, 1.5, max_per_bucket=9, seed=2)
    head = head_with(sampler, index)
    head.build((None, WIDTH))
    config = json.loads(json.dumps(keras.saving.serialize_keras_object(head)))
    again = keras.saving.deserialize_keras_object(config)
    assert again.index is not index
    assert again.index.get_config() == index.get_config()
    assert [w.shape for w in again.index.weights] == [w.shape for w in index.weights]


@every_index
@pytest.mark.parametrize("bad", [3, slice(None)], ids=["a row", "all"])
def test_weights_that_are_not_finite_are_refused_and_the_index_kept(index, bad):
    tables = weights_with(small_index[index](), bias=None).index
    before = [w.numpy() for w in tables.weights]
    kernel = 10 * KERNEL
    kernel[bad, 1] = np.nan
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
        tables.rebuild(tf.Variable(kernel))
    every = tf.range(CLASSES, dtype=tf.int64)
    tables.schedule.assign([2.0, 0.0, 1.0, 0.0])  # tables are due
    with pytest.raises(tf.errors.InvalidArgumentError, match="finite"):
        tables.update(tf.Variable(kernel), None, every)
    for weight, old in zip(tables.weights, before, strict=True):
        if weight.name not in ("schedule", "touched_at"):  # rows may be hashed once more
            np.testing.assert_array_equal(weight, old, err_msg=weight.name)


def test_an_index_is_of_one_shape_of_w():
    index = small_index["winner"]()
    with pytest.raises(RuntimeError, match="index must be built"):
        index.update(tf.Variable(KERNEL), None, tf.constant([], tf.int64))
    index.rebuild(tf.Variable(KERNEL))
    for other in (KERNEL[:-1], KERNEL[:, :-1]):
        with pytest.raises(ValueError, match=r"kernel must be .* for which the index was built"):
            index.update(tf.Variable(other), None, tf.constant([], tf.int64))
    with pytest.raises(ValueError, match="index must serve no other head"):
        head_with(LSHEmbedding(5), index).build((None, WIDTH))


def test_an_index_that_could_not_be_built_is_free():
    index = HashIndex(DWTAHash(WIDTH + 1))
    for _ in range(2):
        with pytest.raises(ValueError, match="window must be at most"):
            head_with(LSHEmbedding(5), index).build((None, WIDTH))


@pytest.mark.parametrize("kind", [LSHEmbedding, LSHLabel])
def test_an_index_in_the_place_of_another_argument_is_refused(kind):
    with pytest.raises(TypeError, match="positional arguments"):
        kind(8, None, HashIndex(SimHash()))


def test_a_refused_build_leaves_the_index_to_another_head():
    index, optimizer = HashIndex(SimHash()), tlo.optimizers.RowSGD(0.1)
    heads = [
        tlo.heads.SampledHead(CLASSES, Uniform(5), optimizer, index=each) for each in (None, index)
    ]
    heads[0].build((None, WIDTH))
    with pytest.raises(ValueError, match="optimizer must be one that serves no other"):
        heads[1].build((None, WIDTH))
    assert not index.built
    tlo.heads.SampledHead(CLASSES, Uniform(5), tlo.optimizers.RowSGD(0.1), index=index).build(
        (None, WIDTH)
    )


def test_rows_too_short_for_the_index_are_refused_before_anything_is_made():
    index = HashIndex(DWTAHash(WIDTH + 1))
    optimizer = tlo.optimizers.RowSGD(0.1)
    head = tlo.heads.SampledHead(CLASSES, Uniform(5), optimizer, index=index)
    for _ in range(2):
        with pytest.raises(ValueError, match="window must be at most"):
            head(tf.ones([2, WIDTH]))
    assert not head.weights and not index.built and not optimizer.built


@pytest.mark.parametrize(
    ("make", "works"),
    [
        (lambda: head_with(LSHLabel(7), small_index["sign"]()), True),
        (lambda: head_with(LSHEmbedding(7), small_index["sign"]()), True),
        (lambda: head_with(WTATopK(3, 9), small_index["winner"]()), True),
        (lambda: head_with(ExactTopK(7), None), True),
        (lambda: head_with(MIDX(7), None), False),
        (lambda: head_with(ExactSoftmaxSampler(7), None), False),
    ],
    ids=["label", "embedding", "winner", "exact", "midx", "softmax"],
)
@pytest.mark.all_cases
def test_which_of_them_work_with_a_part_of_the_rows(monkeypatch, make, works):
    def refuse(asked_by):
        raise NotImplementedError(asked_by)

    monkeypatch.setattr(candidate_head, "require_alone", refuse)
    head = make()
    with contextlib.nullcontext() if works else pytest.raises(NotImplementedError, match="on W"):
        head.build((None, WIDTH))
    assert head.built == works
