# SPDX-License-Identifier: Apache-2.0
"""A head instead of a Dense layer, and a Dense layer instead of a head."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from conformance.heads_table import HEADS, first_of_a_class, with_bias
from variants import cases_of

import tfx_largeout as tlo

CLASSES, WIDTH, FEATURES, EXAMPLES = 30, 5, 7, 16
HIERARCHICAL = [row for row in HEADS if row.name.startswith("hierarchical")]
WITH_KERNEL = [row for row in HEADS if not (row in HIERARCHICAL or row.is_tied) and with_bias(row)]
EACH_WITH_KERNEL = [
    pytest.param(row, id=row.name, marks=() if first_of_a_class(row) else pytest.mark.thorough)
    for row in WITH_KERNEL
]


def data():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return x, rng.integers(0, CLASSES, EXAMPLES)


def trunk():
    return keras.layers.Dense(WIDTH, activation="tanh", name="trunk")


def last(**arguments):
    arguments = {"bias_initializer": "random_normal", "name": "last", **arguments}
    return keras.layers.Dense(CLASSES, **arguments)


def sequential(*layers):
    return keras.Sequential([keras.Input([FEATURES]), trunk(), *(layers or [last()])])


def functional(*layers):
    inputs = keras.Input([FEATURES])
    outputs = trunk()(inputs)
    for layer in layers or [last()]:
        outputs = layer(outputs)
    return keras.Model(inputs, outputs)


def head_for(row, **arguments):
    return row.make_head(CLASSES, **{"use_bias": True, **arguments})


def dense_head(**arguments):
    return tlo.heads.DenseHead(CLASSES, **arguments)


def exact_loss_of(model, x, labels):
    return tlo.metrics.ExactLoss()(labels, model(x)).numpy()


def outputs_of(model, x):
    return keras.ops.convert_to_numpy(model(x))


def kernel_and_bias(model, name="last"):
    return model.get_layer(name).get_weights()


# A head instead of a Dense layer


ENDINGS = {
    "logits": lambda: [last()],
    "softmax": lambda: [last(activation="softmax")],
    "softmax_layer": lambda: [last(), keras.layers.Softmax()],
    "activation": lambda: [last(), keras.layers.Activation("softmax", dtype="float32")],
    "linear": lambda: [last(), keras.layers.Activation("linear", dtype="float32")],
    "nested": lambda: [keras.Sequential([last()]), keras.layers.Softmax()],
    "deeper": lambda: [keras.Sequential([keras.layers.Dense(3), keras.Sequential([last()])])],
}


@pytest.mark.parametrize("make_model", [sequential, functional])
@pytest.mark.parametrize("ending", ENDINGS)
def test_the_exact_loss_stays_what_it_was(ending, make_model):
    x, labels = data()
    model = make_model(*ENDINGS[ending]())
    probabilities = outputs_of(model, x)
    swapped = tlo.replace_output(model, dense_head())
    assert type(swapped) is type(model) and swapped.name == model.name
    assert swapped.get_layer("trunk") is model.get_layer("trunk")
    logits = outputs_of(swapped, x)
    if "softmax" in ending or ending in ("activation", "nested"):
        logits = keras.ops.convert_to_numpy(keras.ops.softmax(logits))
        before = -np.log(probabilities[np.arange(EXAMPLES), labels]).mean()
    else:
        before = tlo.metrics.ExactLoss()(labels, probabilities).numpy()
    np.testing.assert_allclose(logits, probabilities, rtol=1e-5, atol=1e-7)
    np.testing.assert_allclose(exact_loss_of(swapped, x, labels), before, rtol=1e-6)
    np.testing.assert_array_equal(outputs_of(model, x), probabilities)


@pytest.mark.parametrize("row", EACH_WITH_KERNEL)
def test_a_head_takes_the_weights_over_and_gives_them_back(row):
    x, labels = data()
    model = sequential()
    head = head_for(row)
    swapped = tlo.replace_output(model, head)
    np.testing.assert_allclose(
        exact_loss_of(swapped, x, labels),
        tlo.metrics.ExactLoss()(labels, model(x)).numpy(),
        rtol=1e-6,
    )
    for own, dense in zip(head.to_dense().get_weights(), kernel_and_bias(model), strict=True):
        np.testing.assert_array_equal(own, dense)
    back = tlo.to_keras(swapped)
    np.testing.assert_array_equal(outputs_of(back, x), outputs_of(model, x))


@pytest.mark.parametrize("row", EACH_WITH_KERNEL)
def test_a_trained_head_becomes_a_dense_layer(row):
    x, labels = data()
    model = tlo.replace_output(functional(), head_for(row))
    model.compile(row.make_optimizer(), row.make_loss(), run_eagerly=True)
    model.fit(x, labels, batch_size=8, verbose=0)
    head = model.layers[-1]
    before = head.materialize()
    plain = tlo.to_keras(model)
    assert type(plain.layers[-1]) is keras.layers.Dense and plain.layers[-1].name == head.name
    assert not plain.compiled and model.compiled
    np.testing.assert_allclose(outputs_of(plain, x), outputs_of(model, x), rtol=1e-4, atol=1e-5)
    again = tlo.replace_output(plain, head_for(row)).layers[-1]
    for own, old in zip(again.materialize(), before, strict=True):
        np.testing.assert_array_equal(own, old)
    assert np.abs(before[0].T - again.to_dense().get_weights()[0]).max() == 0


def test_a_swapped_model_goes_on_training():
    x, labels = data()
    model = sequential()
    model.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(True))
    swapped = tlo.replace_output(model, dense_head())
    swapped.compile(keras.optimizers.SGD(0.5), tlo.losses.SoftmaxCrossentropy())
    same = keras.models.clone_model(model)
    same.set_weights(model.get_weights())
    same.compile(keras.optimizers.SGD(0.5), keras.losses.SparseCategoricalCrossentropy(True))
    swapped.fit(x, labels, shuffle=False, epochs=3, verbose=0)
    same.fit(x, labels, shuffle=False, epochs=3, verbose=0)
    np.testing.assert_allclose(outputs_of(swapped, x), outputs_of(same, x), rtol=1e-4, atol=1e-5)


def test_a_dense_layer_without_bias_gives_a_bias_of_zeros():
    x, _ = data()
    model = sequential(last(use_bias=False))
    swapped = tlo.replace_output(model, dense_head(bias_initializer="ones"))
    np.testing.assert_array_equal(swapped.layers[-1].bias, np.zeros(CLASSES))
    np.testing.assert_array_equal(outputs_of(swapped, x), outputs_of(model, x))
    without = tlo.replace_output(model, dense_head(use_bias=False))
    np.testing.assert_array_equal(outputs_of(without, x), outputs_of(model, x))


def test_lora_is_added_up():
    x, _ = data()
    model = sequential()
    model.layers[-1].enable_lora(2)
    rng = np.random.default_rng(1)
    for weight in (model.layers[-1].lora_kernel_a, model.layers[-1].lora_kernel_b):
        weight.assign(rng.normal(size=weight.shape))
    swapped = tlo.replace_output(model, dense_head())
    np.testing.assert_allclose(outputs_of(swapped, x), outputs_of(model, x), rtol=1e-4, atol=1e-5)


def test_several_inputs_of_several_kinds_and_sequences():
    tokens, extra = keras.Input([None], dtype="int32", name="t"), keras.Input([3], name="e")
    wide = keras.layers.Embedding(9, WIDTH, mask_zero=True)(tokens)
    hidden = wide + keras.layers.Dense(WIDTH)(extra)[:, None]
    model = keras.Model({"t": tokens, "e": extra}, last()(hidden))
    swapped = tlo.replace_output(model, dense_head())
    batch = {"t": np.array([[1, 2, 0], [3, 0, 0]]), "e": np.ones((2, 3), "float32")}
    expected = outputs_of(model, batch)
    np.testing.assert_allclose(outputs_of(swapped, batch), expected, rtol=1e-5, atol=1e-6)


def test_a_bfloat16_policy():
    x, _ = data()
    keras.config.set_dtype_policy("mixed_bfloat16")
    model = sequential(last(dtype="bfloat16"))
    swapped = tlo.replace_output(model, dense_head(dtype="bfloat16"))
    np.testing.assert_array_equal(swapped.layers[-1].to_dense().kernel, model.layers[-1].kernel)
    np.testing.assert_array_equal(tlo.to_keras(swapped)(x), model(x))


def test_an_index_is_built_from_the_new_weights():
    row = next(row for row in HEADS if row.name == "sampled_index")
    x, labels = data()
    model = tlo.replace_output(sequential(), head_for(row))
    model.compile("sgd", row.make_loss(), run_eagerly=True)
    model.fit(x, labels, verbose=0)
    head = model.layers[-1]
    assert int(head.index.clock) > 0
    head.set_dense_weights(*map(np.negative, head.materialize()))
    assert int(head.index.clock) == 0
    head.index.build_once(head.kernel, head.bias)
    assert float(head.index.health(head.kernel, head.bias)["stale"]) == 0


# Errors


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.last = last()

    def call(self, x):
        return self.last(x)


class Holder(keras.layers.Layer):
    def __init__(self):
        super().__init__()
        self.head = dense_head()

    def call(self, x):
        return self.head(x)


class OwnCall(keras.Model):
    def __init__(self, inputs, outputs):
        super().__init__(inputs, outputs)

    def call(self, x):
        return 2 * super().call(x)


def two_outputs():
    inputs = keras.Input([FEATURES])
    hidden = trunk()(inputs)
    return keras.Model(inputs, [last()(hidden), last(name="other")(hidden)])


def sum_of_two():
    inputs = keras.Input([FEATURES])
    hidden = trunk()(inputs)
    return keras.Model(inputs, last()(hidden) + last(name="other")(hidden))


def tied():
    tokens = keras.Input([None], dtype="int32")
    table = keras.layers.ReversibleEmbedding(CLASSES, WIDTH, name="table")
    return keras.Model(tokens, table(keras.layers.Dense(WIDTH)(table(tokens)), reverse=True))


def tied_by_hand():
    model = sequential(keras.layers.Dense(WIDTH), last(use_bias=False))
    other = keras.layers.Identity(name="other")
    other._trainable_variables.append(model.layers[-1].kernel)
    inputs = keras.Input([FEATURES])
    return keras.Model(inputs, model(other(inputs)))


def used_twice():
    inputs, square = keras.Input([CLASSES]), keras.layers.Dense(CLASSES, name="square")
    return keras.Model(inputs, square(square(inputs)))


def softmax_used_twice():
    inputs, softmax = keras.Input([FEATURES]), keras.layers.Softmax(name="both")
    return keras.Model(inputs, softmax(last()(softmax(inputs))))


def built_head():
    head = dense_head()
    head.build((None, WIDTH))
    return head


REFUSED_MODELS = {
    "none": (lambda: None, TypeError, r"model must be a Functional .*; got NoneType None"),
    "subclassed": (Subclassed, TypeError, r"got Subclassed .*head\.set_dense_weights\(np\.trans"),
    "own call": (
        lambda: OwnCall(*(lambda m: (m.input, m.output))(functional())),
        TypeError,
        r"model must be a Functional or Sequential model.*; got OwnCall",
    ),
    "not built": (
        lambda: keras.Sequential([trunk(), last()]),
        ValueError,
        r"model must be built; got 'sequential.*keras\.Input",
    ),
    "two outputs": (two_outputs, ValueError, r"model must have one output; got 2 outputs of Func"),
    "a sum": (sum_of_two, ValueError, r"must end in a keras\.layers\.Dense.*ends in Add"),
    "tied": (tied, ValueError, r"separate weights.*which ends in ReversibleEmbedding 'table'"),
    "tied by hand": (
        tied_by_hand,
        ValueError,
        r"must not share weights; got Dense 'last', which shares some with Identity 'other'",
    ),
    "used twice": (used_twice, ValueError, r"once; got 2 uses of Dense 'square'"),
    "softmax twice": (softmax_used_twice, ValueError, r"once; got 2 uses of Softmax 'both'"),
    "two softmaxes": (
        lambda: sequential(last(activation="softmax"), keras.layers.Softmax()),
        ValueError,
        r"no activation, or one softmax; got \['softmax', 'softmax'\] of Dense 'last'",
    ),
    "sigmoid": (
        lambda: sequential(last(activation="sigmoid")),
        ValueError,
        r"no activation, or one softmax; got \['sigmoid'\] of Dense 'last'",
    ),
    "dropout": (
        lambda: sequential(last(), keras.layers.Dropout(0.5, name="end")),
        ValueError,
        r"must end in a keras\.layers\.Dense.*which ends in Dropout 'end'",
    ),
    "a head": (
        lambda: sequential(dense_head(name="head")),
        ValueError,
        r"must end in a keras\.layers\.Dense.*which ends in DenseHead 'head'",
    ),
    "softmax over examples": (
        lambda: sequential(last(), keras.layers.Softmax(axis=0, name="end")),
        ValueError,
        r"which ends in Softmax 'end'",
    ),
    "only activations": (
        lambda: keras.Sequential([keras.Input([CLASSES]), keras.layers.Softmax()]),
        ValueError,
        r"must end in a keras\.layers\.Dense",
    ),
    "regularizer": (
        lambda: sequential(last(kernel_regularizer="l2")),
        ValueError,
        r"no kernel_regularizer.*; got kernel_regularizer=<.*L2.*of Dense 'last'",
    ),
    "constraint": (
        lambda: sequential(last(bias_constraint="non_neg")),
        ValueError,
        r"must have no bias_constraint.*; got bias_constraint=<.*NonNeg",
    ),
}


@pytest.mark.parametrize("case", REFUSED_MODELS)
def test_models_that_are_refused(case):
    make, kind, message = REFUSED_MODELS[case]
    model, head = make(), dense_head()
    with pytest.raises(kind, match=message):
        tlo.replace_output(model, head)
    assert not head.built


def test_quantized_weights_are_refused():
    model = sequential()
    model.layers[-1].quantize("int8")
    with pytest.raises(ValueError, match=r"no quantization_mode.*; got quantization_mode='int8'"):
        tlo.replace_output(model, dense_head())


REFUSED_HEADS = {
    "no head": (last, TypeError, r"head must be a head; got <Dense"),
    "no kernel": (
        lambda: HIERARCHICAL[0].make_head(CLASSES),
        TypeError,
        r"head must be one whose logits are W h \+ b.*; got HierarchicalSoftmaxHead",
    ),
    "built": (built_head, ValueError, r"head must be new.*; got DenseHead .*, which is built"),
    "classes": (
        lambda: tlo.heads.DenseHead(CLASSES + 1),
        ValueError,
        r"as many classes as Dense 'last' has units, 30; got num_classes=31",
    ),
    "bias": (
        lambda: tlo.heads.FactoredHead(CLASSES, 0.1),
        ValueError,
        r"head must have a bias, use_bias=True, as Dense 'last' has one; got use_bias=False",
    ),
}


@pytest.mark.parametrize("case", REFUSED_HEADS)
def test_heads_that_are_refused(case):
    make, kind, message = REFUSED_HEADS[case]
    model = sequential()
    with pytest.raises(kind, match=message):
        tlo.replace_output(model, make())
    assert model.layers[-1].name == "last"


@cases_of("row", WITH_KERNEL)
def test_weights_that_are_refused_change_nothing(row):
    head = head_for(row)
    with pytest.raises(ValueError, match="must be built before its weights are read or set"):
        head.to_dense()
    with pytest.raises(ValueError, match="must be built before its weights are read or set"):
        head.set_dense_weights(np.zeros((CLASSES, WIDTH)), np.zeros(CLASSES))
    head.build((None, WIDTH))
    before = head.materialize()
    with pytest.raises(ValueError, match=r"kernel must have shape \(30, 5\); got \(5, 30\)"):
        head.set_dense_weights(np.zeros((WIDTH, CLASSES)), np.zeros(CLASSES))
    with pytest.raises(ValueError, match="bias must be given with use_bias, and only then"):
        head.set_dense_weights(np.zeros((CLASSES, WIDTH)))
    with pytest.raises(ValueError, match=r"bias must have shape \(30,\); got \(3,\)"):
        head.set_dense_weights(np.zeros((CLASSES, WIDTH)), np.zeros(3))
    for own, old in zip(head.materialize(), before, strict=True):
        np.testing.assert_array_equal(own, old)


# A model of plain Keras


def sparse_model(head):
    inputs = keras.Input([FEATURES], sparse=True)
    hidden = tlo.layers.SparseDense(WIDTH, activation="tanh", name="sparse")(inputs)
    return keras.Model(inputs, head(keras.layers.BatchNormalization()(hidden)))


def sparse_data(x):
    return tf.sparse.from_dense(np.where(x > 0, x, 0))


def test_sparse_inputs_and_several_heads():
    x, _ = data()
    inputs = keras.Input([FEATURES], sparse=True)
    hidden = tlo.layers.SparseDense(WIDTH, name="sparse")(inputs)
    inner = keras.Sequential([keras.Input([WIDTH]), dense_head(name="a")], name="inner")
    outputs = {"a": inner(hidden), "b": tlo.heads.DenseHead(4, use_bias=False, name="b")(hidden)}
    model = keras.Model(inputs, outputs)
    plain = tlo.to_keras(model)
    expected, got = model(sparse_data(x)), plain(sparse_data(x))
    for name in expected:
        np.testing.assert_allclose(got[name], expected[name], rtol=1e-5, atol=1e-6)
    assert {type(layer).__module__.split(".")[0] for layer in plain._flatten_layers()} == {"keras"}
    assert type(model.get_layer("sparse")) is tlo.layers.SparseDense  # as it was


LOAD = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "tfx_largeout":
            raise ImportError("not here")
sys.meta_path.insert(0, Refuse())
import keras, numpy as np, tensorflow as tf
try:
    import tfx_largeout
except ImportError:
    pass
else:
    raise AssertionError("the package must not be there")
model = keras.saving.load_model(sys.argv[1])
x = np.load(sys.argv[2])
np.save(sys.argv[3], model(tf.sparse.from_dense(np.where(x > 0, x, 0))))
"""


@pytest.mark.thorough
def test_the_file_loads_without_this_package(tmp_path):
    x, labels = data()
    model = sparse_model(head_for(WITH_KERNEL[0]))
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy(), metrics=[tlo.metrics.PrecisionAtK(1)])
    model.fit(sparse_data(x), labels, verbose=0)
    tlo.to_keras(model).save(tmp_path / "model.keras")
    np.save(tmp_path / "x.npy", x)
    files = [str(tmp_path / name) for name in ("model.keras", "x.npy", "y.npy")]
    child = run_child(tmp_path, "-c", LOAD, *files)
    assert child.returncode == 0, child.stderr[-2000:]
    np.testing.assert_allclose(np.load(files[2]), model(sparse_data(x)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("row", HIERARCHICAL, ids=lambda row: row.name)
def test_log_probabilities_of_a_tree_are_no_dense_layer(row):
    model = sequential(row.make_head(CLASSES, name="tree"))
    for refused in (lambda: tlo.to_keras(model), model.layers[-1].to_dense):
        with pytest.raises(TypeError, match=r"W h \+ b.*; got HierarchicalSoftmaxHead 'tree'"):
            refused()


def test_models_without_an_equal_are_refused():
    head = dense_head()
    with pytest.raises(TypeError, match=r"must be a Functional .*; got Subclassed"):
        tlo.to_keras(Subclassed())
    with pytest.raises(ValueError, match="model must be built; got"):
        tlo.to_keras(keras.Sequential([head]))
    with pytest.raises(TypeError, match="have an equal there; got TopK 'best'"):
        tlo.to_keras(sequential(tlo.TopK(head, 2, name="best")))
    with pytest.raises(TypeError, match="have an equal there; got DenseHead"):
        tlo.to_keras(sequential(Holder()))
