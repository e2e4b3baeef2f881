# SPDX-License-Identifier: Apache-2.0
"""softmax_selection: against the definition, and its estimate is unbiased."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, integers, random_labels, use
from variants import product

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.exact.softmax_selection import least_weight, softmax_selection

SEED = tf.constant([1, 2], tf.int64)
every_implementation = pytest.mark.parametrize("implementation", IMPLEMENTATIONS)


class Layer:
    """W, b, a batch, and its softmax in float64."""

    def __init__(
        self, classes, width, batch, num_labels=1, scale=1.0, whole=False, dtype="float32"
    ):
        rng = np.random.default_rng(0)
        numbers = integers if whole else lambda rng, *shape: scale * rng.normal(size=shape)
        arrays = numbers(rng, classes, width), numbers(rng, classes)
        self.kernel, self.bias = (tf.Variable(tf.cast(array, dtype)) for array in arrays)
        self.hidden = tf.constant(numbers(rng, batch, width).astype(np.float32))
        self.labels = random_labels(rng, batch, num_labels, classes)
        kernel, bias = (tf.cast(x, tf.float64).numpy() for x in (self.kernel, self.bias))
        self.logits = self.hidden.numpy().astype(np.float64) @ kernel.T + bias
        peak = self.logits.max(axis=1, keepdims=True)
        self.logsumexp = peak[:, 0] + np.log(np.exp(self.logits - peak).sum(axis=1))
        self.p = np.exp(self.logits - self.logsumexp[:, np.newaxis])

    def select(self, num_selected, implementation="auto", seed=SEED, products="float32"):
        arguments = self.kernel, self.bias, self.hidden, tf.constant(self.labels)
        options = {"products": products, "implementation": implementation}
        return softmax_selection(*arguments, num_selected, seed, **options)

    def select_by_shards(self, size, num_selected, implementation, products):
        """The selection of each of `size` shards: class c is row c // size of shard c % size."""
        return [
            softmax_selection(
                tf.Variable(self.kernel[rank::size]),
                tf.Variable(self.bias[rank::size]),
                self.hidden,
                tf.constant(self.labels),
                num_selected,
                SEED,
                shard=ClassShard(rank, size, self.logits.shape[1]),
                products=products,
                implementation=implementation,
            )
            for rank in range(size)
        ]

    @property
    def without_labels(self):
        """The softmax with 0 at the labels."""
        p = self.p.copy()
        rows, columns = np.nonzero(self.labels >= 0)
        p[rows, self.labels[rows, columns]] = 0
        return p


def dense(selection, shape):
    """The kept entries as a matrix."""
    return add_dense(selection, np.zeros(shape))


def add_dense(selection, result):
    """Adds the kept entries to a matrix."""
    rows, columns = np.nonzero(selection.ids.numpy() >= 0)
    ids = selection.ids.numpy()[rows, columns]
    np.add.at(result, (rows, ids), selection.probabilities.numpy()[rows, columns])
    return result


@every_implementation
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_values(implementation, dtype, monkeypatch):
    layer = Layer(1009, 17, 70, num_labels=3, dtype=dtype)
    selection = layer.select(40, use(implementation, monkeypatch))
    np.testing.assert_allclose(selection.logsumexp, layer.logsumexp, rtol=1e-6)
    rows = np.arange(70)[:, np.newaxis]
    targets = np.where(layer.labels >= 0, layer.logits[rows, layer.labels], 0)
    np.testing.assert_allclose(selection.target_logits, targets, rtol=1e-5, atol=1e-5)
    kept = dense(selection, layer.p.shape)
    expected = np.where(kept > 0, np.maximum(layer.without_labels, 1 / 40), 0)
    np.testing.assert_allclose(kept, expected, rtol=1e-5)
    assert 0 < (kept > 0).sum() <= 70 * 40
    assert (kept[layer.without_labels > 1 / 40] > 0).all()
    ids = np.where(selection.ids < 0, 2**31, selection.ids)
    assert (np.diff(ids, axis=1) >= 0).all()


@pytest.mark.parametrize(
    ("implementation", "dtype", "sizes"),
    product(
        IMPLEMENTATIONS,
        ["float32", "bfloat16"],
        [(1009, 17, 70), (300, 200, 3), (70, 1, 33)],
    ),
)
def test_bfloat16_products(implementation, dtype, sizes, monkeypatch):
    """The logits equal products of rounded factors, and are as accurate as a bfloat16 matmul."""
    classes, width, batch = sizes
    layer = Layer(classes, width, batch, dtype=dtype)
    layer.labels = np.tile(np.arange(classes), (batch, 1))
    selection = layer.select(2, use(implementation, monkeypatch), products="bfloat16")
    factors = [tf.cast(factor, tf.bfloat16) for factor in (layer.hidden, layer.kernel)]
    hidden, kernel = (tf.cast(factor, tf.float64).numpy() for factor in factors)
    bias = tf.cast(layer.bias, tf.float64).numpy()
    rounded = hidden @ kernel.T + bias
    np.testing.assert_allclose(selection.target_logits, rounded, rtol=1e-5, atol=1e-5)
    logsumexp = np.log(np.exp(rounded).sum(axis=1))
    np.testing.assert_allclose(selection.logsumexp, logsumexp, rtol=1e-6)
    theirs = tf.cast(tf.matmul(*factors, transpose_b=True), tf.float64) + bias
    ours = np.abs(selection.target_logits - layer.logits)
    assert ours.mean() <= np.abs(theirs - layer.logits).mean()
    assert ours.max() <= np.abs(theirs - layer.logits).max()


def test_float64():
    layer = Layer(500, 7, 9, dtype="float64")
    arguments = layer.kernel, None, tf.cast(layer.hidden, tf.float64), tf.constant(layer.labels)
    selection = softmax_selection(*arguments, 500, SEED)
    logits = arguments[2].numpy() @ layer.kernel.numpy().T
    expected = np.log(np.exp(logits).sum(axis=1))
    np.testing.assert_allclose(selection.logsumexp, expected, rtol=1e-12)
    assert selection.probabilities.dtype == tf.float64


@pytest.mark.parametrize("num_selected", [1, 30])
def test_no_bias(num_selected):
    """Over many seeds, each entry's mean is p, within 4 standard errors of rows and columns."""
    layer = Layer(300, 5, 40, num_labels=2)
    draws, p = 600, layer.without_labels
    total = sum(
        dense(layer.select(num_selected, seed=tf.constant([7, draw], tf.int64)), p.shape)
        for draw in range(draws)
    )
    share = np.minimum(1, p * num_selected)
    variance = np.maximum(p, 1 / num_selected) ** 2 * share * (1 - share) / draws
    error = total / draws - p
    for axis in (0, 1):
        deviations = error.sum(axis) / np.sqrt(variance.sum(axis) + 1e-14)
        assert np.abs(deviations).max() < 4.5
        assert 0.7 < deviations.std() < 1.3  # too little would not be random
    deviations = error / np.sqrt(variance + 1e-14)
    assert 0.97 < deviations[share < 1].std() < 1.03


def test_a_place_and_a_seed_say_what_is_kept():
    layer = Layer(300, 5, 40)
    first, again = layer.select(20), layer.select(20)
    other = layer.select(20, seed=tf.constant([1, 3], tf.int64))
    np.testing.assert_array_equal(first.ids, again.ids)
    assert first.ids.shape != other.ids.shape or np.any(first.ids != other.ids)


@every_implementation
def test_all_implementations_keep_the_same(implementation, monkeypatch):
    layer = Layer(4000, 9, 37, num_labels=2, whole=True)
    monkeypatch.setenv("TFX_LARGEOUT_ISA", "baseline")
    expected = layer.select(25)
    selection = layer.select(25, use(implementation, monkeypatch))
    np.testing.assert_array_equal(selection.ids, expected.ids)
    np.testing.assert_allclose(selection.probabilities, expected.probabilities, rtol=1e-5)


@every_implementation
def test_with_as_many_as_classes_all_are_kept_as_they_are(implementation, monkeypatch):
    layer = Layer(200, 5, 11, num_labels=2, scale=0.7)
    selection = layer.select(200, use(implementation, monkeypatch))
    kept = dense(selection, layer.p.shape)
    np.testing.assert_allclose(kept, layer.without_labels, rtol=1e-5)


@pytest.mark.parametrize(
    ("implementation", "products", "num_selected"),
    product(IMPLEMENTATIONS, ["float32", "bfloat16"], [25, 4000]),
)
def test_shards_keep_what_the_whole_layer_keeps(
    implementation, products, num_selected, monkeypatch
):
    layer = Layer(4000, 9, 37, num_labels=2, whole=True)
    name = use(implementation, monkeypatch)
    whole = layer.select(num_selected, name, products=products)
    shards = layer.select_by_shards(3, num_selected, name, products)
    parts = np.stack([shard.logsumexp for shard in shards])
    log_z = np.log(np.exp(parts.astype(np.float64)).sum(axis=0))
    np.testing.assert_allclose(log_z, whole.logsumexp, rtol=1e-6)
    targets = sum(shard.target_logits.numpy() for shard in shards)
    np.testing.assert_array_equal(targets, whole.target_logits)
    kept = np.zeros(layer.p.shape)
    epsilon = least_weight(num_selected, 4000)
    for shard in shards:
        # With the log Z of fewer classes more are kept, and all that stay are among them.
        thinned = shard.thinned(tf.constant(log_z, tf.float32), epsilon)
        stays = thinned.ids >= 0
        np.testing.assert_array_equal(thinned.ids[stays], shard.ids[stays])
        add_dense(thinned, kept)
    np.testing.assert_allclose(kept, dense(whole, layer.p.shape), rtol=1e-5)


@every_implementation
def test_what_is_kept_has_its_logit_and_its_key(implementation, monkeypatch):
    layer = Layer(500, 6, 21)
    selection = layer.select(40, use(implementation, monkeypatch))
    rows, columns = np.nonzero(selection.ids.numpy() >= 0)
    logits = layer.logits[rows, selection.ids.numpy()[rows, columns]]
    np.testing.assert_allclose(selection.logits.numpy()[rows, columns], logits, atol=1e-5)
    u = np.exp(logits - selection.keys.numpy()[rows, columns])
    assert (u > 0).all() and (u < 1 + 1e-4).all() and 0.2 < u.mean() < 0.5
    assert (layer.p[rows, selection.ids.numpy()[rows, columns]] > u / 40 * (1 - 1e-4)).all()
    padding = selection.ids < 0
    np.testing.assert_array_equal(selection.keys[padding], 0)


@pytest.mark.parametrize(
    ("implementation", "shift"), product(IMPLEMENTATIONS, [-3e4, -100.0, 100.0, 3e4])
)
def test_large_logits(implementation, shift, monkeypatch):
    layer = Layer(700, 4, 20)
    expected = layer.select(30)
    layer.bias.assign_add(tf.fill([700], shift))
    selection = layer.select(30, use(implementation, monkeypatch))
    np.testing.assert_allclose(selection.logsumexp, layer.logsumexp + shift, rtol=1e-6)
    if abs(shift) < 1e3:  # else the logits are rounded
        assert (selection.ids.numpy() >= 0).sum() == pytest.approx(
            (expected.ids.numpy() >= 0).sum(), rel=0.01
        )


@every_implementation
def test_very_different_logits(implementation, monkeypatch):
    layer = Layer(500, 4, 20, scale=60.0)
    selection = layer.select(30, use(implementation, monkeypatch))
    np.testing.assert_allclose(selection.logsumexp, layer.logsumexp, rtol=1e-5)
    best = np.where(layer.without_labels > 0.5)
    assert (dense(selection, layer.p.shape)[best] > 0.45).all()


@every_implementation
@pytest.mark.parametrize(("classes", "batch"), [(2, 1), (2, 0), (1000, 0), (3, 40)])
def test_small_sizes(implementation, classes, batch, monkeypatch):
    layer = Layer(classes, 3, batch)
    selection = layer.select(2, use(implementation, monkeypatch))
    np.testing.assert_allclose(selection.logsumexp, layer.logsumexp, rtol=1e-5)
    assert selection.ids.shape[0] == batch


@every_implementation
def test_none_are_kept_where_none_are_asked_for(implementation, monkeypatch):
    layer = Layer(700, 4, 20)
    selection = layer.select(0, use(implementation, monkeypatch))
    np.testing.assert_allclose(selection.logsumexp, layer.logsumexp, rtol=1e-6)
    assert selection.ids.shape == selection.probabilities.shape == (20, 0)


@every_implementation
def test_all_classes_equal(implementation, monkeypatch):
    layer = Layer(1000, 3, 64)
    layer.kernel.assign(tf.zeros_like(layer.kernel))
    layer.bias.assign(tf.zeros_like(layer.bias))
    selection = layer.select(100, use(implementation, monkeypatch))
    np.testing.assert_allclose(selection.logsumexp, np.log(1000), rtol=1e-6)
    mean = (selection.ids.numpy() >= 0).sum() / 64
    assert mean == pytest.approx(100, abs=4 * np.sqrt(100 / 64))


@pytest.mark.parametrize(
    ("num_selected", "seed", "error", "message"),
    [
        (-1, [1, 2], ValueError, "num_selected must be an integer of at least 0; got -1"),
        (51, [1, 2], ValueError, "num_selected must be at most num_classes=50; got 51"),
        (2.5, [1, 2], ValueError, "num_selected must be an integer"),
        (5, [1], ValueError, r"seed must be \[2\].*got shape \(1,\)"),
    ],
)
def test_bad_arguments(num_selected, seed, error, message):
    with pytest.raises(error, match=message):
        Layer(50, 3, 4).select(num_selected, seed=tf.constant(seed, tf.int64))
