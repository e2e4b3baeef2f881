# SPDX-License-Identifier: Apache-2.0
"""Initial W and b from Keras's initializers, arrays and functions, in one block or many."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.rows import row_blocks

to_numpy = keras.ops.convert_to_numpy
C, D = 97, 6
RNG = np.random.default_rng(0)
KERNEL, BIAS = RNG.normal(size=(C, D)).astype("float32"), RNG.normal(size=C).astype("float32")


@pytest.fixture(autouse=True)
def blocks_of_ten_rows(monkeypatch):
    monkeypatch.setattr(row_blocks, "_BLOCK_ELEMENTS", 10 * D)


def by_place(shape, dtype):
    """A function of the user's, whose values depend on the shape."""
    return np.arange(np.prod(shape), dtype=np.float64).reshape(shape) / shape[0]


def _embedding(rows, **kwargs):
    return tlo.layers.RowEmbedding(rows, D, embeddings_initializer=kwargs["kernel_initializer"])


HEADS = {
    "dense": tlo.heads.DenseHead,
    "tf_sampled_softmax": lambda c, **kw: tlo.heads.TFSampledSoftmaxHead(c, num_sampled=9, **kw),
    "tf_nce": lambda c, **kw: tlo.heads.TFNCEHead(c, num_sampled=9, **kw),
    "sampled": lambda c, **kw: tlo.heads.SampledHead(
        c, tlo.samplers.Uniform(9), tlo.optimizers.RowSGD(0.1), **kw
    ),
    "exact_softmax": lambda c, **kw: tlo.heads.ExactSoftmaxHead(
        c, tlo.optimizers.RowSGD(0.1), **kw
    ),
    "factored": lambda c, **kw: tlo.heads.FactoredHead(c, 0.1, use_bias=True, **kw),
    "tied_sampled": lambda c, bias_initializer="zeros", **kw: tlo.heads.TiedSampledHead(
        _embedding(c, **kw), tlo.samplers.Uniform(9), bias_initializer=bias_initializer
    ),
    "row_embedding": lambda c, bias_initializer=None, **kw: _embedding(c, **kw),
    "sparse_dense": lambda c, **kw: tlo.layers.SparseDense(D, **kw),
    # In the tree of a sorted list, the table of nodes has C - 1 rows.
    "hierarchical": lambda c, **kw: tlo.heads.HierarchicalSoftmaxHead(
        c + 1, tlo.optimizers.RowSGD(0.1), tree="huffman", **kw
    ),
}


def weights_of(name, rows=C, **kwargs):
    """Returns W `[rows, D]` and, if there is one like it, b `[rows]`."""
    layer = HEADS[name](rows, **kwargs)
    layer.build((None, rows if name == "sparse_dense" else D))
    if name == "hierarchical":
        kernel, bias = layer.tables["node"]
        return to_numpy(kernel), to_numpy(bias)
    if name == "row_embedding":
        return to_numpy(layer.embeddings), None
    if name == "sparse_dense":
        return to_numpy(layer.kernel), None
    return layer.materialize()


@cases_of("name", HEADS)
@pytest.mark.parametrize("given", ["constant", "array", "tensor", "nested_list"])
def test_pretrained_weights_are_those_given(name, given):
    makes = {
        "constant": keras.initializers.Constant,
        "array": lambda x: x,
        "tensor": tf.constant,
        "nested_list": lambda x: keras.initializers.Constant(x.tolist()),
    }
    make = makes[given]
    bias = {} if name == "sparse_dense" else {"bias_initializer": make(BIAS)}
    kernel, bias = weights_of(name, kernel_initializer=make(KERNEL), **bias)
    np.testing.assert_array_equal(kernel, KERNEL)
    if bias is not None:
        np.testing.assert_array_equal(bias, BIAS)


@cases_of("name", HEADS)
@pytest.mark.parametrize("initializer", ["orthogonal", "identity", "row", "by_place"])
def test_values_that_depend_on_the_shape_are_those_of_all_classes(name, initializer):
    row = keras.initializers.Constant(KERNEL[0])
    initializers = {
        "orthogonal": keras.initializers.Orthogonal(seed=1),
        "identity": keras.initializers.Identity(2.0),
        "row": row,
        "by_place": by_place,
    }
    wanted = {
        "identity": 2 * np.eye(C, D),
        "row": np.tile(KERNEL[0], [C, 1]),
        "by_place": np.arange(C * D).reshape(C, D) / C,
    }
    bias = {} if name == "sparse_dense" else {"bias_initializer": by_place}
    kernel, bias = weights_of(name, kernel_initializer=initializers[initializer], **bias)
    if initializer == "orthogonal":
        np.testing.assert_allclose(kernel.T @ kernel, np.eye(D), atol=1e-5)
    else:
        np.testing.assert_allclose(kernel, wanted[initializer], rtol=1e-6)
    if bias is not None:
        np.testing.assert_allclose(bias, np.arange(C) / C, rtol=1e-6)


@cases_of("name", HEADS)
@pytest.mark.parametrize(
    ("initializer", "variance"),
    [
        ("glorot_uniform", 2 / (4000 + D)),
        ("he_normal", 2 / 4000),
        ("lecun_uniform", 1 / 4000),
        (keras.initializers.VarianceScaling(3.0, "fan_out", "untruncated_normal"), 3 / D),
    ],
)
def test_variance_scaling_goes_by_all_classes(name, initializer, variance):
    kernel, _ = weights_of(name, 4000, kernel_initializer=initializer)
    values = np.float64(kernel)
    # Within 5 standard errors of a variance of normal numbers, the widest of these.
    np.testing.assert_allclose(np.var(values), variance, rtol=5 * (2 / values.size) ** 0.5)
    assert len(np.unique(values)) > 0.99 * values.size


@cases_of("name", ["sampled", "factored", "hierarchical"])
def test_a_seed_gives_each_block_values_of_its_own(name):
    first, second = (
        weights_of(name, kernel_initializer=keras.initializers.RandomNormal(seed=seed))[0]
        for seed in (0, 1)
    )
    both = np.concatenate([first, second])
    assert len(np.unique(both)) == both.size
    again = weights_of(name, kernel_initializer=keras.initializers.RandomNormal(seed=1))[0]
    np.testing.assert_array_equal(again, second)


def test_a_seed_generator_gives_the_same_weights_again():
    def weights():
        seed = keras.random.SeedGenerator(7)
        initializer = keras.initializers.GlorotUniform(seed)
        return weights_of("sampled", kernel_initializer=initializer)[0]

    kernel = weights()
    assert len(np.unique(kernel)) == kernel.size
    np.testing.assert_array_equal(weights(), kernel)


@cases_of("name", [name for name in HEADS if name not in ("row_embedding", "sparse_dense")])
def test_an_array_of_another_shape_is_refused_by_name(name):
    if name != "tied_sampled":
        with pytest.raises(ValueError, match=r"kernel_initializer must .* \(97, 6\).* \(6, 97\)"):
            weights_of(name, kernel_initializer=KERNEL.T)
        with pytest.raises(ValueError, match=r"kernel_initializer must .* \(97, 6\).* \(97, 5\)"):
            weights_of(name, kernel_initializer=lambda shape, dtype: KERNEL[:, :5])
    with pytest.raises(ValueError, match=r"bias_initializer must .* \(97,\).* \(5,\)"):
        weights_of(name, kernel_initializer=KERNEL, bias_initializer=BIAS[:5])


@cases_of("first", [0, 3])
@pytest.mark.parametrize(
    "initializer",
    [KERNEL, by_place, keras.initializers.RandomNormal(seed=3)],
    ids=["array", "function", "random"],
)
def test_a_worker_begins_with_its_rows_of_the_whole(initializer, first):
    start = tlo.heads.DenseHead(C, kernel_initializer=initializer).kernel_initializer
    whole = row_blocks.initialize_by_blocks(start, (C, D), "float32")
    part = row_blocks.initialize_by_blocks(start, (C, D), "float32", shard=ClassShard(first, 4, C))
    np.testing.assert_array_equal(part, whole[first::4])
    if initializer is KERNEL:
        np.testing.assert_array_equal(whole, KERNEL)


@cases_of("name", ["sampled", "factored", "hierarchical", "sparse_dense", "row_embedding"])
def test_a_file_keeps_an_array_in_few_bytes(name, tmp_path):
    zeros = np.zeros([C, D], "float32")
    zeros[5] = 3
    layer = HEADS[name](C, kernel_initializer=zeros)
    inputs = keras.Input([C if name == "sparse_dense" else D])
    model = keras.Model(inputs, layer(inputs))
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    argument = "embeddings_initializer" if name == "row_embedding" else "kernel_initializer"
    initializer = getattr(loaded.layers[-1], argument)
    np.testing.assert_array_equal(initializer([C, D]), zeros)
    assert len(str(layer.get_config()[argument])) < 1000
