# SPDX-License-Identifier: Apache-2.0
"""RowBounds: TopK with it gives the bits of TopK, and its bounds hold in float64."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from ops.streamed_logits_cases import IMPLEMENTATIONS, use

import tfx_largeout as tlo
from tfx_largeout.ops.exact.bounded_top_k import BoundedRows, bounded_top_k

MOST_EXAMPLES = 8


def needs_ops(test):
    """Marks a test in which classes are left out: by custom ops, on the CPU."""
    has_ops = tlo.ops.library.load() is not None
    reason = "bounds are used by the custom op alone"
    return pytest.mark.cpu(pytest.mark.skipif(not has_ops, reason=reason)(test))


def rng_of(seed=0):
    return np.random.default_rng(seed)


def normal(*shape, seed=0):
    return rng_of(seed).normal(size=shape).astype("float32")


def head_of(kernel, bias=None, dtype="float32"):
    head = tlo.heads.DenseHead(len(kernel), use_bias=bias is not None, dtype=dtype)
    head.build((None, kernel.shape[1]))
    head.kernel.assign(tf.cast(kernel, dtype))
    if bias is not None:
        head.bias.assign(tf.cast(bias, dtype))
    return head


def index_of(head):
    index = tlo.indexes.RowBounds()
    index.rebuild(head.kernel, head.bias)
    return index


def quanta_of(index, num_classes):
    """Returns q [C, D], s [C] and the errors [C], float64."""
    quanta = index.quanta.numpy().transpose(0, 2, 1)
    quanta = quanta.reshape(-1, quanta.shape[-1])
    flat = (quanta, index.scales.numpy().ravel(), index.errors.numpy().ravel())
    return tuple(x[:num_classes].astype(np.float64) for x in flat)


def check_same(head, index, hidden, k):
    """Returns how many candidates there were."""
    scores, ids = tlo.TopK(head, k, index=index)(hidden)
    expected = tlo.TopK(head, k)(hidden)
    np.testing.assert_array_equal(ids, expected[1])
    np.testing.assert_array_equal(scores, expected[0])
    return index.top_k(hidden, head.kernel, head.bias, k).num_candidates.numpy()


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("batch", [0, 1, 2, 3, 5, 8, 9])
def test_the_bits_of_the_exact_best(implementation, dtype, batch, monkeypatch):
    which = use(implementation, monkeypatch)
    head = head_of(normal(5003, 33), normal(5003, seed=1))
    kernel, bias = (tf.Variable(tf.cast(x, dtype)) for x in (head.kernel, head.bias))
    index = tlo.indexes.RowBounds()
    index.rebuild(kernel, bias)
    rows = BoundedRows(*(x._value for x in (index.quanta, index.scales, index.errors)))
    hidden = normal(batch, 33, seed=2)
    best = bounded_top_k(hidden, kernel, bias, rows, 10, implementation=which)
    none = tf.zeros([batch, 0], tf.int64)
    exact = tlo.ops.exact.streamed_logits.streamed_logits(
        hidden, kernel, bias, none, 10, implementation=which
    )
    np.testing.assert_array_equal(best.top_ids, exact.top_ids)
    np.testing.assert_array_equal(best.top_scores, exact.top_scores)
    is_bounded = which == "op" and batch <= MOST_EXAMPLES
    assert np.all((best.num_candidates.numpy() < 200) == is_bounded)


@pytest.mark.parametrize("width", [1, 7, 128])
@pytest.mark.parametrize("classes", [1, 2, 15, 16, 17, 1009, 4096])
@pytest.mark.parametrize("k", [1, 3, None])
def test_shapes(classes, width, k):
    k = classes if k is None else k
    if max(k, 2) > classes:
        return
    head = head_of(normal(classes, width))
    check_same(head, index_of(head), normal(3, width, seed=1), k)


@needs_ops
@pytest.mark.parametrize("with_bias", [False, True])
def test_ties_come_by_lower_id(with_bias):
    some = normal(250, 16)
    bias = np.tile(normal(250, seed=1), 20) if with_bias else None
    head = head_of(np.tile(some, (20, 1)), bias)
    hidden = normal(2, 16, seed=2)
    candidates = check_same(head, index_of(head), hidden, 50)
    assert np.all(candidates < 5000)
    ids = tlo.TopK(head, 50, index=index_of(head))(hidden)[1].numpy()
    assert np.all(np.diff(ids[:, :20], axis=1) == 250)


def lengths(kind, classes):
    return {
        "equal": np.ones(classes),
        "zipf": np.arange(1, classes + 1) ** -0.5,
        "wild": 10.0 ** rng_of(5).uniform(-20, 4, classes),
        "tiny": np.full(classes, 1e-38),
        "huge": 10.0 ** rng_of(5).uniform(15, 30, classes),
        "zeros": rng_of(5).integers(0, 2, classes),
    }[kind]


KINDS = ["equal", "zipf", "wild", "tiny", "huge", "zeros"]
BIASES = {
    "none": lambda classes: None,
    "small": lambda classes: normal(classes, seed=8),
    "large": lambda classes: 1e6 * normal(classes, seed=8),
    "one": lambda classes: np.where(np.arange(classes) == 77, 1e6, 0),
    "masks": lambda classes: np.where(np.arange(classes) % 3, -np.inf, 0),
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", BIASES)
def test_nasty_rows(kind, bias):
    classes = 3001
    kernel = normal(classes, 24) * lengths(kind, classes)[:, np.newaxis]
    head = head_of(kernel.astype("float32"), BIASES[bias](classes))
    index = index_of(head)
    for scale in (1e-30, 1, 1e10):
        check_same(head, index, normal(3, 24, seed=2) * np.float32(scale), 7)


@pytest.mark.parametrize("width", [1, 7, 130])
@pytest.mark.parametrize("kind", ["equal", "zipf", "wild", "zeros"])
@pytest.mark.parametrize("bias", ["none", "small", "large"])
def test_bounds_hold(kind, bias, width):
    """|exact - a_c| <= e_c, for float64 and float32 logits."""
    classes = 2000
    kernel = (normal(classes, width) * lengths(kind, classes)[:, np.newaxis]).astype("float32")
    # Each row has one number that is not an integer times the scale: the worst residual.
    kernel[:50, 0] = 127.0
    kernel[:50, 1:] = 0.5
    biases = BIASES[bias](classes)
    biases = np.zeros(classes, "float32") if biases is None else biases.astype("float32")
    head = head_of(kernel, biases)
    quanta, scales, errors = quanta_of(index_of(head), classes)
    hidden = np.concatenate([normal(4, width, seed=3), np.ones((1, width), "float32")])
    wide = hidden.astype(np.float64)
    near = scales * (wide @ quanta.T) + biases
    norms = np.linalg.norm(wide, axis=1, keepdims=True)
    bounds = errors * norms + (width / 64 + 24) * 2.0**-24 * np.abs(biases)
    exact = wide @ kernel.astype(np.float64).T + biases
    assert np.all(np.abs(exact - near) <= bounds)
    assert np.all(np.abs(head(hidden).numpy() - near) <= bounds)
    # They are not so wide as to say nothing.
    residuals = np.linalg.norm(kernel - scales[:, np.newaxis] * quanta, axis=1)
    lengths_of_rows = np.linalg.norm(kernel.astype(np.float64), axis=1)
    assert np.all(errors <= 1.001 * residuals + 1e-4 * lengths_of_rows + 1e-30)


@needs_ops
def test_whole_numbers_alone_give_a_wrong_order_and_bounds_the_right_one():
    kernel = normal(4000, 32)
    # Eight rows that differ by less than a step of their whole numbers, in falling order.
    kernel[100:108] = 3.0
    kernel[100:108, 0] = 4.0
    kernel[100:108, 1] = 3.0 + 1e-3 * np.array([0, 5, 2, 7, 1, 6, 3, 4])
    head = head_of(kernel)
    index = index_of(head)
    hidden = np.ones((1, 32), "float32")
    quanta, scales, _ = quanta_of(index, 4000)
    near = np.argsort(-scales * (quanta @ hidden[0]), kind="stable")[:8]
    exact = [103, 105, 101, 107, 106, 102, 104, 100]
    assert near.tolist() != exact
    np.testing.assert_array_equal(tlo.TopK(head, 8, index=index)(hidden)[1], [exact])
    assert check_same(head, index, hidden, 8) < 100


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 1e38])
def test_an_example_that_is_not_finite(value):
    head = head_of(normal(3001, 8), normal(3001, seed=1))
    hidden = normal(3, 8, seed=2)
    hidden[1, 3] = value
    candidates = check_same(head, index_of(head), hidden, 5)
    np.testing.assert_array_equal(candidates, [3001] * 3)


def test_biases_that_are_not_finite():
    bias = normal(3001, seed=1)
    bias[[5, 90, 700, 2999]] = [np.nan, np.inf, -np.inf, 3.4e38]
    head = head_of(normal(3001, 8), bias)
    check_same(head, index_of(head), normal(3, 8, seed=2), 5)


@pytest.mark.parametrize("activation", ["softmax", "sigmoid"])
def test_activations_and_models(activation, tmp_path):
    head = head_of(normal(3001, 8), normal(3001, seed=1))
    index = index_of(head)
    model = keras.Sequential([keras.Input((8,)), head])
    hidden = normal(3, 8, seed=2)
    expected = tlo.top_k_model(model, 4, activation)(hidden)
    top = tlo.top_k_model(model, 4, activation, index=index)
    for one in (top(hidden), tlo.TopK(head, 4, activation, index)(hidden)):
        np.testing.assert_array_equal(one[1], expected[1])
        np.testing.assert_array_equal(one[0], expected[0])
    top.save(tmp_path / "top.keras")
    loaded = keras.saving.load_model(tmp_path / "top.keras")
    assert isinstance(loaded.index, tlo.indexes.RowBounds)
    assert loaded.index is not index
    for left, right in zip(loaded.index.weights, index.weights, strict=True):
        np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(loaded.predict(hidden, verbose=0)[1], expected[1])


def test_a_layer_with_it_is_saved_and_made_from_its_configuration(tmp_path):
    head = head_of(normal(3001, 8))
    index = index_of(head)
    inputs = keras.Input((8,))
    model = keras.Model(inputs, tlo.TopK(head, 3, index=index, name="top")(inputs))
    hidden = normal(3, 8, seed=2)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for left, right in zip(model(hidden), loaded(hidden), strict=True):
        np.testing.assert_array_equal(left, right)
    layer = tlo.TopK.from_config(tlo.TopK(head, 3, index=index).get_config())
    assert isinstance(layer.index, tlo.indexes.RowBounds)
    assert layer.index is not index
    # Another W, which its index was never built from: nothing is ruled out.
    for left, right in zip(layer(hidden), tlo.TopK(layer.head, 3)(hidden), strict=True):
        np.testing.assert_array_equal(left, right)


@needs_ops
def test_a_batch_that_is_unknown_when_traced():
    head = head_of(normal(3001, 8))
    layer = tlo.TopK(head, 3, index=index_of(head))
    run = tf.function(layer, input_signature=[tf.TensorSpec([None, 8])], autograph=False)
    for batch in (0, 1, 3, 20):
        hidden = normal(batch, 8, seed=2)
        for left, right in zip(run(hidden), tlo.TopK(head, 3)(hidden), strict=True):
            np.testing.assert_array_equal(left, right)


def test_it_does_not_follow_w_until_it_is_rebuilt():
    head = head_of(normal(3001, 8), normal(3001, seed=1))
    index = index_of(head)
    hidden = normal(2, 8, seed=2)
    head.bias.assign(-head.bias.numpy())  # which is read as it is
    check_same(head, index, hidden, 5)
    head.kernel.assign(-normal(3001, 8, seed=3))
    index.rebuild(head.kernel, head.bias)
    check_same(head, index, hidden, 5)
    again = index_of(head)
    for left, right in zip(index.weights, again.weights, strict=True):
        np.testing.assert_array_equal(left, right)


@needs_ops
def test_bounds_of_another_w_are_found_out():
    head = head_of(normal(3001, 8), normal(3001, seed=1))
    index = index_of(head)
    head.kernel.assign(normal(3001, 8, seed=3))
    candidates = check_same(head, index, normal(4, 8, seed=2), 5)
    np.testing.assert_array_equal(candidates, 3001)  # a logit was out of its bounds: all were read


@pytest.mark.parametrize("in_graph", [False, True])
def test_w_that_is_not_finite_is_refused_and_nothing_changes(in_graph):
    head = head_of(normal(40000, 8))
    index = index_of(head)
    before = [weight.numpy() for weight in index.weights]
    kernel = normal(40000, 8, seed=1)
    kernel[39998, 2] = np.nan
    head.kernel.assign(kernel)

    def rebuild():
        index.rebuild(head.kernel)

    run = tf.function(rebuild, autograph=False) if in_graph else rebuild
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"kernel must be finite; .*row"):
        run()
    for weight, value in zip(index.weights, before, strict=True):
        np.testing.assert_array_equal(weight, value)
    kernel[39998, 2] = 1
    head.kernel.assign(kernel)
    run()
    check_same(head, index, normal(2, 8, seed=2), 5)
    fresh = tlo.indexes.RowBounds()
    head.kernel.assign(np.full_like(kernel, np.inf))
    with pytest.raises(tf.errors.InvalidArgumentError, match="kernel must be finite"):
        fresh.rebuild(head.kernel)
    assert not fresh.built


def test_before_a_rebuild_nothing_is_ruled_out():
    head = head_of(normal(3001, 8))
    index = tlo.indexes.RowBounds()
    index.build((3001, 8))
    check_same(head, index, normal(2, 8, seed=2), 5)


def test_refusals():
    head = head_of(normal(50, 8))
    index = index_of(head)
    hidden = normal(2, 8)
    with pytest.raises(
        ValueError, match="num_found must be None for an index of type RowBounds; got 10"
    ):
        tlo.TopK(head, 3, index=index, num_found=10)
    other = head_of(normal(49, 8))
    with pytest.raises(ValueError, match=r"kernel must be \[C, D\] = \[50, 8\], for which the ind"):
        tlo.TopK(other, 3, index=index)(hidden)
    before = index.quanta.numpy()
    with pytest.raises(ValueError, match=r"kernel must be \[C, D\] = \[50, 8\], for which the ind"):
        index.rebuild(other.kernel)
    np.testing.assert_array_equal(index.quanta, before)
    with pytest.raises(RuntimeError, match="index must be built before it is asked"):
        tlo.TopK(head, 3, index=tlo.indexes.RowBounds())(hidden)
    tree = tlo.heads.HierarchicalSoftmaxHead(50, tlo.optimizers.RowSGD(0.1))
    with pytest.raises(TypeError, match="an index must go with a head that has W and b; got Hier"):
        tlo.TopK(tree, 3, index=index)(hidden)
    with pytest.raises(TypeError, match="index must be "):
        tlo.heads.SampledHead(50, tlo.samplers.Uniform(9), tlo.optimizers.RowSGD(0.1), index=index)


THREADS = """
import sys
import numpy as np, tensorflow as tf
tf.config.threading.set_intra_op_parallelism_threads(int(sys.argv[1]))
import tfx_largeout as tlo
rng = np.random.default_rng(0)
head = tlo.heads.DenseHead(30_001)
head.build((None, 16))
head.kernel.assign(np.round(rng.normal(size=(30_001, 16)) * 2))  # ties are frequent
index = tlo.indexes.RowBounds()
index.rebuild(head.kernel)
best = index.top_k(rng.normal(size=(3, 16)).astype("float32"), head.kernel, head.bias, 20)
np.savez(sys.argv[2], *best)
"""


@pytest.mark.thorough
def test_the_number_of_threads_does_not_matter(tmp_path):
    program = tmp_path / "threads.py"
    program.write_text(THREADS)
    found = []
    for threads in (1, 3):
        path = tmp_path / f"{threads}.npz"
        done = run_child(tmp_path, str(program), str(threads), str(path))
        assert done.returncode == 0, done.stderr[-2000:]
        found.append(list(np.load(path).values()))
    for left, right in zip(*found, strict=True):
        np.testing.assert_array_equal(left, right)
