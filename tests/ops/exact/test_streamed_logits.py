# SPDX-License-Identifier: Apache-2.0
"""Every implementation of streamed_logits against the float64 oracle, at awkward shapes."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from ops.streamed_logits_cases import IMPLEMENTATIONS, integers, random_labels, use
from oracles import streamed_logits as oracle

from tfx_largeout.ops.exact.streamed_logits import streamed_logits

# B, D, C, K, k
SHAPES = [
    (1, 1, 1, 1, 1),
    (1, 252, 10007, 5, 100),
    (7, 3, 2, 1, 2),
    (4, 507, 123, 5, 123),
    (5, 252, 123, 5, 5),
    (7, 1, 10007, 1, 5),
    (33, 3, 123, 0, 0),
    (33, 252, 1009, 5, 5),
    (33, 507, 2, 0, 1),
    (33, 3, 10007, 5, 0),
    (33, 3, 1009, 1, 1009),
    (40, 3, 10007, 100, 100),
    (257, 3, 1009, 1, 5),
]
EMPTY_SHAPES = [(0, 3, 5, 2, 1), (5, 0, 7, 2, 3), (5, 3, 0, 2, 0), (5, 0, 0, 0, 0)]


@pytest.fixture(params=IMPLEMENTATIONS)
def implementation(request, monkeypatch):
    return use(request.param, monkeypatch)


def check_integers(result, expected, logsumexp_rtol=1e-6):
    """Whole numbers leave nothing to rounding: all but the logsumexp must be exact."""
    np.testing.assert_array_equal(result.target_logits, expected.target_logits)
    np.testing.assert_array_equal(result.target_ranks, expected.target_ranks)
    np.testing.assert_array_equal(result.top_scores, expected.top_scores)
    np.testing.assert_array_equal(result.top_ids, expected.top_ids)
    np.testing.assert_allclose(result.logsumexp, expected.logsumexp, rtol=logsumexp_rtol, atol=1e-6)


@pytest.mark.parametrize("shape", SHAPES + EMPTY_SHAPES, ids=str)
def test_whole_numbers_are_exact(shape, implementation):
    batch, width, num_classes, num_labels, k = shape
    rng = np.random.default_rng(0)
    hidden, kernel = integers(rng, batch, width), integers(rng, num_classes, width)
    bias, labels = integers(rng, num_classes), random_labels(rng, batch, num_labels, num_classes)
    result = streamed_logits(hidden, kernel, bias, labels, k, implementation=implementation)
    check_integers(result, oracle.streamed_logits(hidden, kernel, bias, labels, k))
    assert [x.dtype for x in result] == [*(tf.float32, tf.float32, tf.int64, tf.float32, tf.int64)]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("with_bias", [True, False])
def test_dtypes_of_the_op(dtype, with_bias, implementation):
    rng = np.random.default_rng(1)
    hidden, kernel, labels = integers(rng, 19, 37), integers(rng, 1501, 37), None
    bias = integers(rng, 1501) if with_bias else None
    labels = random_labels(rng, 19, 3, 1501)
    result = streamed_logits(
        tf.cast(hidden, dtype),
        tf.cast(kernel, dtype),
        None if bias is None else tf.cast(bias, dtype),
        labels,
        7,
        implementation=implementation,
    )
    check_integers(result, oracle.streamed_logits(hidden, kernel, bias, labels, 7))


@pytest.mark.parametrize("dtype", ["float16", "float64"])
def test_dtypes_that_only_the_composed_version_has(dtype):
    rng = np.random.default_rng(2)
    hidden, kernel, bias = integers(rng, 9, 11), integers(rng, 301, 11), integers(rng, 301)
    labels = random_labels(rng, 9, 2, 301)
    result = streamed_logits(hidden, kernel.astype(dtype), bias.astype(dtype), labels, 4)
    check_integers(result, oracle.streamed_logits(hidden, kernel, bias, labels, 4))
    assert result.logsumexp.dtype == (tf.float64 if dtype == "float64" else tf.float32)


def test_float64_is_computed_in_float64():
    rng = np.random.default_rng(3)
    hidden, kernel = rng.normal(size=(5, 64)), rng.normal(size=(500, 64))
    labels = random_labels(rng, 5, 2, 500)
    result = streamed_logits(hidden, tf.Variable(kernel), None, labels, 3)
    expected = oracle.streamed_logits(hidden, kernel, None, labels, 3)
    np.testing.assert_allclose(result.logsumexp, expected.logsumexp, rtol=1e-13)
    np.testing.assert_allclose(result.target_logits, expected.target_logits, rtol=1e-10)


@pytest.mark.parametrize("batch", [3, 35, 40])
def test_equal_rows_tie_by_lower_id(batch, implementation):
    """The op gives equal rows the same bits. TensorFlow's matmul does only for whole numbers."""
    rng = np.random.default_rng(4)
    source = rng.integers(0, 10, 997)
    rows, hidden = rng.normal(size=(10, 61)), rng.normal(size=(batch, 61))
    if implementation == "composed":
        rows, hidden = np.round(100 * rows), np.round(100 * hidden)
    hidden, kernel = hidden.astype(np.float32), rows.astype(np.float32)[source]
    labels = random_labels(rng, batch, 3, 997)
    result = streamed_logits(hidden, kernel, None, labels, 997, implementation=implementation)
    scores = np.asarray(result.top_scores)
    ids = np.asarray(result.top_ids)
    for b in range(batch):
        assert sorted(ids[b]) == list(range(997))
        ties = scores[b, 1:] == scores[b, :-1]
        np.testing.assert_array_equal(ties, source[ids[b, 1:]] == source[ids[b, :-1]])
        assert (ids[b, 1:][ties] > ids[b, :-1][ties]).all()
        for slot, label in enumerate(labels[b]):
            if label >= 0:
                assert np.flatnonzero(ids[b] == label)[0] == result.target_ranks[b, slot]
                place = result.target_ranks[b, slot]
                assert scores[b, place] == result.target_logits[b, slot].numpy()


@pytest.mark.parametrize("make", [tf.Variable, keras.Variable], ids=["tf", "keras"])
def test_variables_after_a_scatter(make, implementation):
    rng = np.random.default_rng(5)
    hidden, kernel, bias = integers(rng, 9, 11), integers(rng, 301, 11), integers(rng, 301)
    labels = random_labels(rng, 9, 2, 301)
    kernel_variable, bias_variable = make(kernel), make(bias)
    rows = np.array([3, 300])
    kernel[rows], bias[rows] = 5.0, -2.0
    for variable, table in ((kernel_variable, kernel), (bias_variable, bias)):
        tf.raw_ops.ResourceScatterUpdate(
            resource=variable.handle, indices=rows, updates=table[rows]
        )
    result = streamed_logits(
        hidden, kernel_variable, bias_variable, labels, 4, implementation=implementation
    )
    check_integers(result, oracle.streamed_logits(hidden, kernel, bias, labels, 4))


def test_unknown_batch_size_in_a_graph(implementation):
    rng = np.random.default_rng(6)
    kernel, bias = integers(rng, 301, 11), integers(rng, 301)
    kernel_variable, bias_variable = tf.Variable(kernel), tf.Variable(bias)

    @tf.function(input_signature=[tf.TensorSpec([None, 11]), tf.TensorSpec([None, None], tf.int64)])
    def call(hidden, labels):
        result = streamed_logits(
            hidden, kernel_variable, bias_variable, labels, 4, implementation=implementation
        )
        assert result.logsumexp.shape.as_list() == [None]
        assert result.target_ranks.shape.as_list() == [None, None]
        assert result.top_ids.shape.as_list() == [None, 4]
        return result

    for batch, num_labels in ((1, 0), (5, 2), (33, 1)):
        hidden, labels = integers(rng, batch, 11), random_labels(rng, batch, num_labels, 301)
        expected = oracle.streamed_logits(hidden, kernel, bias, labels, 4)
        check_integers(call(hidden, labels), expected)


def test_an_update_in_the_same_graph_comes_first(implementation):
    kernel = tf.Variable(tf.zeros([100, 4]))

    @tf.function
    def call(hidden):
        kernel.scatter_nd_update([[7]], tf.ones([1, 4]))
        before = streamed_logits(
            hidden, kernel, None, [[7]], 1, implementation=implementation
        ).target_logits
        kernel.scatter_nd_update([[7]], 2.0 * tf.ones([1, 4]))
        return before

    np.testing.assert_array_equal(call(tf.ones([1, 4])), [[4.0]])
    np.testing.assert_array_equal(kernel[7], np.full(4, 2.0))


def test_keras_autocast_does_not_touch_the_table(implementation):
    """Inside a bfloat16 layer, a variable's value would be cast, and so copied."""
    rng = np.random.default_rng(7)
    hidden, kernel = integers(rng, 3, 5), integers(rng, 50, 5) + 1 / 1024

    class Layer(keras.layers.Layer):
        def build(self, _):
            self.kernel = self.add_weight(shape=(50, 5), initializer="zeros")
            self.kernel.assign(kernel)

        def call(self, inputs):
            labels = tf.zeros([3, 0], tf.int64)
            return streamed_logits(
                inputs, self.kernel, None, labels, 1, implementation=implementation
            ).top_scores

    scores = Layer(dtype="mixed_bfloat16")(tf.constant(hidden))
    expected = oracle.streamed_logits(hidden, kernel, None, np.zeros((3, 0), int), 1)
    np.testing.assert_array_equal(scores, expected.top_scores)


@pytest.mark.parametrize("source", ["hidden", "kernel"])
@pytest.mark.parametrize("output", ["logsumexp", "target_logits", "top_scores"])
def test_a_gradient_is_refused(source, output, implementation):
    sources = {"hidden": tf.Variable(tf.ones([2, 3])), "kernel": tf.Variable(tf.ones([5, 3]))}
    with tf.GradientTape() as tape:
        result = streamed_logits(
            sources["hidden"], sources["kernel"], None, [[1], [2]], 2, implementation=implementation
        )
        loss = tf.reduce_sum(getattr(result, output))
    with pytest.raises(LookupError, match="call the model with training=True"):
        tape.gradient(loss, sources[source])


def test_saved_model_round_trip(implementation, tmp_path):
    rng = np.random.default_rng(8)
    module = tf.Module()
    module.kernel = tf.Variable(integers(rng, 301, 11))
    module.bias = tf.Variable(integers(rng, 301))

    @tf.function(input_signature=[tf.TensorSpec([None, 11])])
    def top(hidden):
        labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
        result = streamed_logits(
            hidden, module.kernel, module.bias, labels, 3, implementation=implementation
        )
        return result.top_scores, result.top_ids

    module.top = top
    tf.saved_model.save(module, str(tmp_path))
    hidden = integers(rng, 4, 11)
    loaded = tf.saved_model.load(str(tmp_path))
    scores, ids = loaded.top(hidden)
    expected = oracle.streamed_logits(
        hidden, module.kernel.numpy(), module.bias.numpy(), np.zeros((4, 0), int), 3
    )
    np.testing.assert_array_equal(scores, expected.top_scores)
    np.testing.assert_array_equal(ids, expected.top_ids)


def test_the_composed_version_exports_tensorflow_ops_only(tmp_path):
    module = tf.Module()
    module.kernel = tf.Variable(tf.ones([30, 4]))
    module.call = tf.function(
        lambda h: (
            streamed_logits(
                h, module.kernel, None, tf.zeros([2, 1], tf.int64), 3, implementation="composed"
            ).top_ids
        ),
        input_signature=[tf.TensorSpec([2, 4])],
    )
    tf.saved_model.save(module, str(tmp_path))
    assert b"Tfx" not in (tmp_path / "saved_model.pb").read_bytes()
