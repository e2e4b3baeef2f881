# SPDX-License-Identifier: Apache-2.0
"""SciPy's sparse matrices, in containers and in Keras's own loops."""

from __future__ import annotations

import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.datasets import SparseExamples

sparse = pytest.importorskip("scipy.sparse")
N, V, C = 60, 23, 17
X = sparse.random(N, V, 0.2, "csr", np.float64, 0)
Y = (sparse.random(N, C, 0.15, "csr", np.float64, 1) > 0).astype(np.float32)


def model_of(head=None, loss=None, **options) -> keras.Model:
    keras.utils.set_random_seed(3)
    inputs = keras.Input([V], sparse=True)
    hidden = tlo.layers.SparseDense(5, "tanh")(inputs)
    model = keras.Model(inputs, (head or tlo.heads.DenseHead(C))(hidden))
    loss = loss or tlo.losses.SoftmaxCrossentropy()
    model.compile("sgd", loss, metrics=[tlo.metrics.PrecisionAtK(2)], **options)
    return model


@pytest.mark.parametrize("kind", ["csr_matrix", "csr_array", "coo_matrix", "csc_array"])
@pytest.mark.parametrize("dtype", [np.float64, np.int8, bool])
def test_a_container_of_two_matrices(kind, dtype):
    of = getattr(sparse, kind)
    examples = SparseExamples.from_csr(of(X), of(Y.astype(dtype)))
    features, labels = examples.to_csr()
    np.testing.assert_array_equal(features.toarray(), X.toarray().astype(np.float32))
    np.testing.assert_array_equal(labels.toarray(), Y.toarray())
    batch, label_rows = next(iter(examples.dataset(N)))
    np.testing.assert_array_equal(tf.sparse.to_dense(batch), X.toarray().astype(np.float32))
    assert label_rows.to_list() == [np.flatnonzero(row).tolist() for row in Y.toarray()]


def test_ids_in_any_order_and_what_values_say():
    x = sparse.csr_matrix((np.arange(1.0, 5), [3, 1, 0, 2], [0, 2, 2, 4]), [3, 4])
    y = sparse.csr_matrix((np.array([0.5, 0, 3]), [4, 1, 2], [0, 1, 2, 3]), [3, 6])
    examples = SparseExamples.from_csr(x, y, label_values="positive")
    assert examples.feature_ids.tolist() == [1, 3, 0, 2]
    assert examples.feature_values.tolist() == [2, 1, 3, 4]
    assert examples.label_splits.tolist() == [0, 1, 1, 2]
    assert examples.label_ids.tolist() == [4, 2]
    splits, ids = np.array([0, 3]), np.array([2, 0, 1])
    examples = SparseExamples(splits, np.arange(3), np.ones(3), splits, ids, 3, 4)
    assert examples.to_csr()[1].toarray().tolist() == [[1, 1, 1, 0]]
    assert examples.label_ids.tolist() == [2, 0, 1]  # as they were
    assert x.indices.tolist() == [3, 1, 0, 2]  # as it was


TWICE = sparse.csr_matrix((np.ones(3), [1, 1, 0], [0, 2, 3]), [2, 4])
INF = sparse.csr_matrix([[1, 0], [0, np.inf]])
HALF = sparse.csr_matrix([[1, 0], [0, 0.5]])
TWO = sparse.csr_matrix([[1, 0], [0, 1]])


@pytest.mark.parametrize(
    ("features", "labels", "error", "message"),
    [
        (np.eye(2), TWO, TypeError, "features must be a sparse matrix .*; got ndarray"),
        (TWO, [[1], [0]], TypeError, "labels must be a sparse matrix of SciPy; got list"),
        (TWO, Y, ValueError, f"the same number of rows; got 2 and {N}"),
        (TWICE, TWO, ValueError, "features: row 0, from 0: a feature must not occur twice .*got 1"),
        (TWO, TWICE, ValueError, "labels: row 0, from 0: a label must not occur twice"),
        (INF, TWO, ValueError, "features: row 1, .* feature 1 must be a finite float32.* got inf"),
        (TWO, HALF, ValueError, r"labels: row 1, .* label 1 must be 1, or 0 .*; got 0\.5"),
        (sparse.coo_array([1.0, 2.0]), TWO, ValueError, r"two dimensions; got shape \(2,\)"),
        (TWO.astype(complex), TWO, ValueError, "features: .* must be real numbers; .* complex128"),
    ],
)
def test_refused(features, labels, error, message):
    with pytest.raises(error, match=message):
        SparseExamples.from_csr(features, labels)


def test_matrices_that_were_made_by_hand_and_lie():
    x = TWO.copy()
    x.indices[1] = 7
    with pytest.raises(ValueError, match=r"row 1, from 0: a feature .* \[0, 2\); got 7"):
        SparseExamples.from_csr(x, TWO)


def test_without_scipy(monkeypatch):
    monkeypatch.setitem(sys.modules, "scipy.sparse", None)
    with pytest.raises(ModuleNotFoundError, match="to_csr needs SciPy: pip install scipy"):
        SparseExamples.from_csr(X, Y).to_csr()


@pytest.mark.parametrize("name", ["sampled", *thorough("dense")])
@pytest.mark.parametrize("dtype", [bool, *thorough(np.float64)])
def test_the_loops_of_keras_take_matrices_as_they_take_data_sets(name, dtype):
    made = {
        "dense": lambda: tlo.heads.DenseHead(C),
        "sampled": lambda: tlo.heads.SampledHead(
            C, tlo.samplers.Uniform(C), tlo.optimizers.RowSGD(0.1)
        ),
    }
    losses = {
        "dense": tlo.losses.SoftmaxCrossentropy,
        "sampled": tlo.losses.ComplementarySum,
    }
    results = []
    for in_memory in (True, False):
        keras.utils.set_random_seed(3)
        model = model_of(made[name](), losses[name]())
        y = Y.astype(dtype)
        data = SparseExamples.from_csr(X, Y).dataset(32)
        x_y = (X, y) if in_memory else (data,)
        options = {"shuffle": False, "verbose": 0}
        history = model.fit(*x_y, epochs=2, validation_data=x_y if in_memory else data, **options)
        results.append(
            [
                *(series[-1] for series in history.history.values()),
                *model.evaluate(*x_y, verbose=0),
                model.predict(X if in_memory else data, verbose=0),
                *tlo.top_k_model(model, 3).predict(X if in_memory else data, verbose=0),
            ]
        )
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.all_cases
@pytest.mark.parametrize("loss", ["SoftmaxCrossentropy", "ComplementarySum", "SampledLogistic"])
def test_zeros_and_ones_are_a_set_to_every_loss(loss):
    sampled = loss != "SoftmaxCrossentropy"

    def value(labels, training):
        keras.utils.set_random_seed(3)
        rate = tlo.optimizers.RowSGD(0.1)
        head = (
            tlo.heads.SampledHead(C, tlo.samplers.Uniform(5), rate)
            if sampled
            else tlo.heads.DenseHead(C)
        )
        return function(labels, head(hidden, training=training))

    hidden, y = np.random.default_rng(0).normal(size=(N, 4)).astype("float32"), Y.copy()
    rows = tf.ragged.constant([np.flatnonzero(row).tolist() for row in Y.toarray()], tf.int64)
    y.data[y.indices == 0] = 0  # an explicit zero is not a label
    rows = tf.ragged.boolean_mask(rows, rows != 0)
    function = getattr(tlo.losses, loss)(reduction=None)
    for training in (True, False):
        wanted = value(rows, training)
        for labels in (y.astype(np.float32), y.astype(bool)):
            np.testing.assert_allclose(value(labels, training), wanted, rtol=1e-5, atol=1e-6)


def test_what_the_loops_refuse():
    model = model_of(run_eagerly=True)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"add up to at most 1"):
        model.evaluate(X, Y * 0.9, verbose=0)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"looks like.*y\.astype\(bool\)"):
        model.evaluate(X, Y.astype(int), verbose=0)
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=r"incompatible|columns"):
        model.predict(X[:, 1:], verbose=0)
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=r"must have .* columns|C]"
    ):
        model.evaluate(X, sparse.csr_matrix(Y[:, 1:]), verbose=0)


def test_an_explicit_zero_is_no_label():
    y = Y.copy()
    y.data[::3] = 0
    labelled = np.asarray(y.sum(axis=1)).ravel() > 0
    x, y = X[labelled], y[labelled]
    without = y.copy()
    without.eliminate_zeros()
    model = model_of(run_eagerly=True)
    np.testing.assert_allclose(
        model.evaluate(x, y, verbose=0), model.evaluate(x, without, verbose=0), rtol=1e-5
    )
