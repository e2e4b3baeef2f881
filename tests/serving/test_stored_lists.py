# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf
from serving.models import WIDTH, K, X, clustered_model, exported

import tfx_largeout as tlo
from tfx_largeout.serving.stored_indexes import store_lists


@pytest.mark.parametrize("what", ["bias", "row"])
def test_recall_where_one_row_is_much_longer_than_others(what, tmp_path):
    model = clustered_model()
    head = model.layers[-1]
    if what == "bias":
        head.bias.assign(np.where(np.arange(600) == 7, -1e6, head.bias))
    else:
        head.kernel.assign(head.kernel * np.where(np.arange(600) == 7, 1e6, 1)[:, np.newaxis])
    tlo.export(model, tmp_path / "ivf", K, index="ivf", num_lists=30)
    x = np.random.default_rng(3).normal(size=(300, WIDTH)).astype("float32")
    assert tlo.serving.recall(model, tmp_path / "ivf", x, 8) > 0.85


def test_no_ids_of_all_that_is_looked_at_are_in_memory():
    head = clustered_model(6000).layers[-1]
    file = store_lists(head.kernel.value, head.bias.value, "float32", 10, 0)
    probed = 4 * file.length

    @tf.function(input_signature=[tf.TensorSpec([3, WIDTH])])
    def best(queries):
        return file.best(queries, K, True, tf.constant(4))

    sizes = {
        (output.dtype, output.shape.num_elements() or 0)
        for operation in best.get_concrete_function().graph.get_operations()
        for output in operation.outputs
        if output.shape.rank
    }
    assert (tf.float32, 3 * probed) in sizes  # the logits
    assert max(size for dtype, size in sizes if dtype.is_integer) < 3 * probed


@pytest.mark.parametrize("index", [None, "ivf"])
def test_probabilities_of_what_is_scored_again_are_at_most_one(index, tmp_path):
    model = clustered_model()
    head = model.layers[-1]
    head.kernel.assign(head.kernel * 30)  # int8 is off by more than 1; p of one class is 1
    arguments = {} if index is None else {"index": index, "num_lists": 30, "num_probed": 30}
    result = exported(
        model,
        tmp_path / "rescored",
        rows="int8",
        rescore=True,
        activation="softmax",
        **arguments,
    )
    logits = model.predict(X, verbose=0)
    assert result["scores"].sum(axis=1).max() <= 1 + 1e-5
    expected = tf.math.top_k(tf.nn.softmax(logits), K).values
    np.testing.assert_allclose(result["scores"], expected, atol=2e-3)
    np.testing.assert_allclose(
        result["log_partition"], tf.reduce_logsumexp(logits, axis=1), rtol=1e-4
    )
