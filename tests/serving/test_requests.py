# SPDX-License-Identifier: Apache-2.0
"""Requests that an exported model can't answer, each followed by a valid one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from serving.models import WIDTH, K, X, dense_model, loaded, sparse_model

import tfx_largeout as tlo

FORMS = [{}, {"index": "ivf"}, {"activation": "softmax"}, {"rows": "int8", "rescore": True}]


@pytest.fixture(scope="module")
def dense(tmp_path_factory):
    folder = tmp_path_factory.mktemp("dense") / "1"
    tlo.export(dense_model(), folder, K)
    return loaded(folder)


@pytest.fixture(scope="module")
def sparse(tmp_path_factory):
    folder = tmp_path_factory.mktemp("sparse") / "1"
    tlo.export(sparse_model(), folder, K)
    return loaded(folder)


@pytest.mark.parametrize(
    "inputs",
    [
        pytest.param(np.ones([2, WIDTH + 1], "float32"), id="width"),
        pytest.param(np.ones([WIDTH], "float32"), id="rank"),
        pytest.param(np.ones([2, WIDTH], "int64"), id="dtype"),
    ],
)
def test_wrong_shapes_and_dtypes_are_refused(dense, inputs):
    expected = dense(inputs=tf.constant(X))["ids"].numpy()
    with pytest.raises(tf.errors.InvalidArgumentError):
        dense(inputs=tf.constant(inputs))
    np.testing.assert_array_equal(dense(inputs=tf.constant(X))["ids"], expected)


@pytest.mark.parametrize("index", [[0, 40], [0, -1], [1, 3]], ids=["above", "below", "row"])
def test_feature_ids_out_of_range_are_refused(sparse, index):
    def ask(index):
        return sparse(
            inputs_indices=tf.constant([index], tf.int64),
            inputs_values=tf.constant([1.0]),
            inputs_dense_shape=tf.constant([1, 40], tf.int64),
        )

    with pytest.raises(tf.errors.InvalidArgumentError):
        ask(index)
    assert np.isfinite(ask([0, 39])["scores"]).all()


@pytest.mark.parametrize("arguments", FORMS, ids=str)
def test_a_nan_stays_with_its_example(arguments, tmp_path):
    tlo.export(dense_model(), tmp_path / "model", K, **arguments)
    serve = loaded(tmp_path / "model")
    x = X.copy()
    x[3, 2] = np.nan
    expected, answer = serve(inputs=tf.constant(X)), serve(inputs=tf.constant(x))
    assert np.isnan(answer["scores"][3]).all()
    others = np.arange(len(X)) != 3
    for name, values in answer.items():
        np.testing.assert_array_equal(values.numpy()[others], expected[name].numpy()[others])
