# SPDX-License-Identifier: Apache-2.0
"""A trained model with other classes: rows, slots and arguments against NumPy, and training on."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS, first_of_a_class, with_bias

import tfx_largeout as tlo

CLASSES, WIDTH, FEATURES, EXAMPLES = 30, 5, 7, 16
WITH_ROWS = [row for row in HEADS if not row.name.startswith(("hierarchical", "tied"))]
EACH = [
    pytest.param(row, id=row.name, marks=() if first_of_a_class(row) else pytest.mark.thorough)
    for row in WITH_ROWS
]
_ROUNDING = {"rtol": 1e-5, "atol": 1e-6}
ALL = np.arange(CLASSES)
MIXED = np.array([7, 3, 29, 0, 11, *range(12, 28), 1])  # some go, and the order is another
CHANGES = {
    "grown": (CLASSES + 13, None),
    "shrunk": (24, np.arange(24)),
    "mixed": (CLASSES + 3, MIXED),
    "permuted": (CLASSES, np.roll(ALL, 4)),
}


def data(classes=CLASSES):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(EXAMPLES, FEATURES)).astype("float32")
    return x, rng.integers(0, classes, EXAMPLES)


def trained(head, loss, optimizer="adam", steps=3, **compiled):
    """A model that has taken some steps."""
    keras.utils.set_random_seed(1)
    x, labels = data()
    layers = [keras.layers.Dense(WIDTH, activation="tanh", name="trunk"), keras.layers.Dropout(0.1)]
    model = keras.Sequential([keras.Input([FEATURES]), *layers, head])
    model.compile(optimizer, loss, run_eagerly=True, **compiled)
    model.fit(x, labels, batch_size=EXAMPLES, epochs=steps, verbose=0, shuffle=False)
    return model


def sampled(sampler=None, **arguments):
    arguments = {"seed": 3, "optimizer": tlo.optimizers.RowAdam(0.05), **arguments}
    return tlo.heads.SampledHead(CLASSES, sampler or tlo.samplers.Uniform(10), **arguments)


def arrays(variables):
    return [keras.ops.convert_to_numpy(v) for v in variables]


def state(model):
    optimizers = [model.optimizer, getattr(model.layers[-1], "optimizer", None)]
    return arrays(model.weights + [v for o in optimizers if o is not None for v in o.variables])


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("row", EACH)
def test_old_classes_have_the_same_logits(row, change):
    """Up to rounding: a product of another number of columns may be rounded otherwise."""
    new_classes, keep = CHANGES[change]
    x, _ = data()
    model = trained(row.make_head(CLASSES, **with_bias(row)), row.make_loss(), row.make_optimizer())
    before = model.predict(x, verbose=0)
    exact = tlo.top_k_model(model, CLASSES).predict(x, verbose=0)
    old_state = state(model)
    resized = tlo.resize_classes(model, new_classes, keep)
    keep = ALL if keep is None else keep
    assert resized.layers[-1].num_classes == new_classes and resized.compiled
    logits = resized.predict(x, verbose=0)
    assert logits.shape == (EXAMPLES, new_classes)
    for array, old in zip(state(model), old_state, strict=True):
        np.testing.assert_array_equal(array, old)
    np.testing.assert_allclose(logits[:, : len(keep)], before[:, keep], **_ROUNDING)
    scores, ids = tlo.top_k_model(resized, new_classes).predict(x, verbose=0)
    of_class, of_old = np.empty_like(scores), np.empty_like(exact[0])
    np.put_along_axis(of_class, ids, scores, axis=1)
    np.put_along_axis(of_old, exact[1], exact[0], axis=1)
    np.testing.assert_allclose(of_class[:, : len(keep)], of_old[:, keep], **_ROUNDING)


# Rows and slots


def rows_of(array, keep, last):
    return np.concatenate([np.asarray(array)[keep], last])


OPTIMIZERS = {
    "adam": lambda: keras.optimizers.Adam(1e-2),
    "ema": lambda: keras.optimizers.SGD(1e-2, momentum=0.9, use_ema=True),
    "amsgrad": lambda: keras.optimizers.Adam(1e-2, amsgrad=True),
    "fused": lambda: tlo.optimizers.FusedAdam(1e-2),
    "rows": lambda: tlo.optimizers.RowAdam(1e-2),
    "data_parallel": lambda: tlo.distribute.DataParallel(keras.optimizers.Adam(1e-2)),
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(1e-2)),
    "lion": lambda: keras.optimizers.Lion(1e-2, gradient_accumulation_steps=2),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_rows_of_a_trainable_kernel_and_its_slots_follow(name):
    head = tlo.heads.DenseHead(CLASSES, name="head")
    model = trained(head, tlo.losses.SoftmaxCrossentropy(), OPTIMIZERS[name]())
    rng = np.random.default_rng(1)
    rows, bias = rng.normal(size=(4, WIDTH)).astype("f4"), rng.normal(size=4).astype("f4")
    keep = MIXED[:9]
    new = tlo.resize_classes(model, 13, keep, new_rows=rows, new_bias=bias)
    for own, old, last in zip(new.layers[-1].weights, head.weights, (rows, bias), strict=True):
        np.testing.assert_array_equal(own, rows_of(old, keep, last))
    pairs = list(zip(new.optimizer.variables, model.optimizer.variables, strict=True))
    assert len(pairs) > 4
    weights = set(map(id, new.weights))  # which `DataParallel` has among its variables
    for own, old in pairs:
        if id(own) in weights:
            continue
        expected = np.asarray(old)
        if old.shape[:1] == (CLASSES,):
            is_age = own.dtype == "uint32"
            last = np.zeros((4, *old.shape[1:]), "uint32" if is_age else "f4")
            if own.name.endswith("average"):
                last = rows if len(old.shape) == 2 else bias
            expected = rows_of(old, keep, last)
        np.testing.assert_array_equal(own, expected)
    assert int(new.optimizer.iterations) == int(model.optimizer.iterations) > 0


def test_rows_of_a_head_that_updates_itself_and_their_ages_follow():
    model = trained(sampled(), tlo.losses.ComplementarySum())
    head, keep = model.layers[-1], MIXED
    new = tlo.resize_classes(model, len(keep) + 2, keep)
    own = new.layers[-1]
    for slot, old in zip(own.optimizer.variables, head.optimizer.variables, strict=True):
        has_rows = old.shape[:1] == (CLASSES,)
        last = np.zeros((2, *old.shape[1:]), old.dtype)
        expected = rows_of(old, keep, last) if has_rows else np.asarray(old)
        np.testing.assert_array_equal(slot, expected)
    assert (np.asarray(head.optimizer.variables[4]) > 0).any()
    assert int(own.optimizer.iterations) == 3
    fresh = np.asarray(own.kernel)[len(keep) :]  # from the initializer
    assert np.isfinite(fresh).all() and (np.abs(fresh).max(axis=1) > 0).all()


@keras.saving.register_keras_serializable(package="test_resize_classes")
def first_classes(true_classes, num_true, num_sampled, unique, range_max):
    """Draws the same candidates for any number of classes."""
    ids = tf.range(num_sampled, dtype=tf.int64)
    return ids, tf.ones(tf.shape(true_classes)), tf.ones([num_sampled])


OPTIMIZERS_OF_ROWS = {
    "adam": lambda: tlo.optimizers.RowAdam(0.05),
    "adagrad": lambda: tlo.optimizers.RowAdagrad(0.05),
    "momentum": lambda: tlo.optimizers.RowSGD(0.05, momentum=0.9, weight_decay=0.1),
}


@pytest.mark.parametrize("name", OPTIMIZERS_OF_ROWS)
def test_the_next_step_is_that_of_the_old_model(name):
    sampler = tlo.samplers.TFSampler(first_classes, 6)
    head = sampled(sampler, optimizer=OPTIMIZERS_OF_ROWS[name](), explicit_classes=[2, 9])
    model = trained(head, tlo.losses.NegativeSampling())
    keep = np.array([*range(10), *range(12, CLASSES)])
    new = tlo.resize_classes(model, CLASSES + 5, keep)
    x, _ = data()
    labels = np.random.default_rng(3).choice(keep, EXAMPLES)
    new_ids = np.searchsorted(keep, labels)
    losses = [
        each.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False).history["loss"]
        for each, y in ((model, labels), (new, new_ids))
    ]
    assert losses[0] == losses[1]
    assert new.layers[-1].explicit_classes == (2, 9)
    pairs = zip(new.layers[-1].optimizer.variables, head.optimizer.variables, strict=True)
    pairs = [*pairs, *zip(new.weights, model.weights, strict=True)]
    pairs += zip(new.optimizer.variables, model.optimizer.variables, strict=True)
    for own, old in pairs:
        old, own = np.asarray(old), np.asarray(own)
        if old.shape[:1] == (CLASSES,):
            old, own = old[keep], own[: len(keep)]
        np.testing.assert_array_equal(own, old)


def test_a_factored_head_goes_on_as_a_dense_layer_does():
    head = tlo.heads.FactoredHead(CLASSES, tlo.optimizers.RowSGD(0.1, weight_decay=0.01), True)
    model = trained(head, tlo.losses.SquaredError(), steps=7)
    rows = np.random.default_rng(1).normal(size=(4, WIDTH)).astype("f4")
    keep = MIXED[:9]
    new = tlo.resize_classes(model, 13, keep, new_rows=rows, new_bias=np.arange(4))
    own = new.layers[-1]
    assert max(own.drift()) < 1e-5 and max(head.drift()) < 1e-5
    old_kernel, old_bias = head.materialize()
    kernel, bias = own.materialize()
    np.testing.assert_allclose(kernel, rows_of(old_kernel, keep, rows), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(bias, rows_of(old_bias, keep, np.arange(4)), rtol=1e-5, atol=1e-6)
    x, labels = np.random.default_rng(2).normal(size=(8, WIDTH)).astype("f4"), np.arange(8)
    alone = keras.Sequential([keras.Input([WIDTH]), own])
    alone.compile(keras.optimizers.SGD(0.1), tlo.losses.SquaredError())
    own.rate_of_model._head.highest_model_rate.assign(0)
    alone.fit(x, labels, batch_size=8, verbose=0)
    inputs = np.column_stack([x, np.ones(8)]).astype("f8")
    weights = np.column_stack([kernel, bias]).astype("f8")
    gradient = 2 / 8 * (inputs @ weights.T - np.eye(13)[labels]).T @ inputs
    expected = (1 - 0.1 * 0.01) * weights - 0.1 * gradient
    half = (1 - 0.1 * 0.01) * weights - 0.1 * gradient / 2
    after = np.column_stack(own.materialize())
    nearer = min((expected, half), key=lambda e: np.abs(after - e).max())
    np.testing.assert_allclose(after, nearer, rtol=1e-4, atol=1e-5)


# Arguments with one value per class


def test_counts_ids_and_class_weights_follow():
    counts = np.arange(1, CLASSES + 1)
    head = sampled(
        tlo.samplers.Unigram(counts, 10, first_id=2),
        explicit_classes=[3, 5, 29],
        bias_initializer=tlo.initializers.LogFrequency(counts),
    )
    loss = tlo.losses.ComplementarySum(class_weights=counts / 10, ignore_class=-7)
    metric = tlo.metrics.PSPrecisionAtK(3, counts, 500, ignore_class=11, allow=[0, 2, 27, 29])
    model = trained(head, loss, metrics=[metric, tlo.metrics.PrecisionAtK(1)])
    keep = np.array([1, 0, 29, 11, 3, *range(12, 28)])
    new = tlo.resize_classes(
        model, len(keep) + 2, keep, new_counts=[40, 50], new_class_weights=[0.5, 2]
    )
    own, expected = new.layers[-1], rows_of(counts, keep, [40, 50])
    np.testing.assert_array_equal(own.sampler.counts, expected)
    assert own.sampler.first_id == 2 and own.explicit_classes == (4, 2)
    np.testing.assert_array_equal(own.bias_initializer.counts, expected)
    np.testing.assert_allclose(
        np.asarray(own.bias)[-2:], np.log(np.array([40, 50]) / expected.sum()), rtol=1e-6
    )
    np.testing.assert_array_equal(new.loss.class_weights, rows_of(counts / 10, keep, [0.5, 2]))
    assert new.loss.ignore_class == -7
    x, labels = data(len(keep))
    results = new.evaluate(x, labels, verbose=0, return_dict=True)
    (psp,) = [m for m in new.metrics[1].metrics if isinstance(m, tlo.metrics.PSPrecisionAtK)]
    np.testing.assert_array_equal(psp.label_counts, expected)
    assert psp.ignore_class == 3 and 0 <= results["ps_precision_at_3"] <= 1
    np.testing.assert_array_equal(psp.findable.allow, [1, 2, 20])  # 2 is not kept
    new.fit(x, labels, verbose=0)


def test_counts_of_new_classes_are_zero_by_default_and_smoothed():
    counts = np.arange(1, CLASSES + 1)
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 2)
    head = sampled(tlo.samplers.LSHEmbedding(8, tlo.samplers.Bernoulli(counts, 10)), index=index)
    model = trained(head, tlo.losses.ComplementarySum())
    own = tlo.resize_classes(model, CLASSES + 2).layers[-1]
    np.testing.assert_array_equal(own.sampler.background.counts, [*counts, 0, 0])


def test_initializers_that_are_arrays_follow():
    kernel, bias = np.random.default_rng(0).normal(size=(CLASSES, WIDTH)), np.arange(CLASSES)
    head = tlo.heads.DenseHead(CLASSES, kernel_initializer=kernel, bias_initializer=bias / 9)
    model = trained(head, tlo.losses.SoftmaxCrossentropy(), steps=0)
    with pytest.raises(ValueError, match="new_rows must be given for 1 new classes"):
        tlo.resize_classes(model, CLASSES + 1)
    own = tlo.resize_classes(model, 3, [4, 2], new_rows=np.ones([1, WIDTH]), new_bias=[0.5]).layers[
        -1
    ]
    values = keras.ops.convert_to_numpy(own.kernel_initializer.value)
    np.testing.assert_allclose(values, rows_of(kernel, [4, 2], np.ones([1, WIDTH])), rtol=1e-6)


def test_the_sampler_of_tensorflow_follows():
    options = {"unigrams": [1.0] * CLASSES, "distortion": 0.75}
    head = tlo.heads.TFSampledSoftmaxHead(
        CLASSES, 5, sampler="fixed_unigram", sampler_options=options
    )
    model = trained(head, tlo.losses.TFCandidateSamplingLoss())
    with pytest.raises(ValueError, match="new_counts must be given for the unigrams"):
        tlo.resize_classes(model, CLASSES + 1)
    new = tlo.resize_classes(model, 21, range(20), new_counts=[3])
    assert new.layers[-1].sampler_options["unigrams"] == [1.0] * 20 + [3.0]
    x, labels = data(21)
    new.fit(x, labels, verbose=0)


# Indexes


def test_an_index_is_built_anew():
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 8, similarity="inner_product")
    head = sampled(tlo.samplers.LSHEmbedding(8, tlo.samplers.Uniform(5)), index=index)
    model = trained(head, tlo.losses.ComplementarySum())
    new = tlo.resize_classes(model, CLASSES + 3, np.roll(ALL, 3))
    own, x = new.layers[-1], data()[0]
    exact = tlo.top_k_model(new, 3).predict(x, verbose=0)[1]
    found = tlo.top_k_model(new, 3, index=own.index).predict(x, verbose=0)[1]
    assert (exact == found).mean() > 0.8
    new.fit(*data(CLASSES + 3), verbose=0)


def test_the_stream_of_labels_goes_on():
    model = trained(sampled(tlo.samplers.InBatch()), tlo.losses.ComplementarySum())
    new = tlo.resize_classes(model, len(MIXED) + 2, MIXED)
    index, own = model.layers[-1].index, new.layers[-1].index
    for name in ("intervals", "last_steps", "numbers"):
        expected = rows_of(getattr(index, name), MIXED, np.zeros(2))
        np.testing.assert_array_equal(getattr(own, name), expected)
    assert int(own.clock) == int(index.clock) == 3 and np.asarray(own.numbers).max() == 3


# Whole models


def test_one_of_several_heads(tmp_path):
    inputs = keras.Input([FEATURES])
    hidden = keras.layers.Dense(WIDTH, name="trunk")(inputs)
    a = tlo.heads.DenseHead(CLASSES, name="a")(hidden)
    b = keras.Sequential([keras.Input([WIDTH]), tlo.heads.DenseHead(9, name="b")], name="nest")
    model = keras.Model(inputs, {"x": a, "y": b(hidden)})
    losses = {
        "x": tlo.losses.SoftmaxCrossentropy(class_weights=np.ones(CLASSES), ignore_class=4),
        "y": tlo.losses.SoftmaxCrossentropy(class_weights=np.ones(9), ignore_class=4),
    }
    model.compile("adam", losses, metrics={"y": [tlo.metrics.PrecisionAtK(1)]})
    x, labels = data()
    model.fit(x, {"x": labels, "y": labels % 9}, verbose=0)
    with pytest.raises(ValueError, match=r"one of the model's heads, \['a', 'b'\], .*got None"):
        tlo.resize_classes(model, 20)
    new = tlo.resize_classes(model, 5, [8, 4, 0], head="b")
    assert new.loss["x"].ignore_class == 4 and new.loss["y"].ignore_class == 1
    assert len(new.loss["y"].class_weights) == 5 and len(new.loss["x"].class_weights) == CLASSES
    before, after = (each.predict(x, verbose=0) for each in (model, new))
    np.testing.assert_array_equal(after["x"], before["x"])
    kernel, old_kernel = (each.get_layer("nest").get_layer("b").kernel for each in (new, model))
    np.testing.assert_array_equal(np.array(kernel)[:3], np.array(old_kernel)[[8, 4, 0]])
    np.testing.assert_allclose(after["y"][:, :3], before["y"][:, [8, 4, 0]], **_ROUNDING)
    new.fit(x, {"x": labels, "y": labels % 5}, verbose=0)
    new.save(tmp_path / "new.keras")
    loaded = keras.saving.load_model(tmp_path / "new.keras")
    np.testing.assert_array_equal(loaded.predict(x, verbose=0)["y"], new.predict(x, verbose=0)["y"])


def test_rows_of_a_tied_embedding_follow_and_the_tie_stays(tmp_path):
    inputs = keras.Input([4], dtype="int64")
    embedding = tlo.layers.RowEmbedding(CLASSES, WIDTH, mask_zero=True)
    hidden = keras.layers.GlobalAveragePooling1D()(embedding(inputs))
    head = tlo.heads.TiedSampledHead(embedding, tlo.samplers.Uniform(8), seed=1)
    model = keras.Model(inputs, head(hidden))
    model.compile(tlo.optimizers.RowAdam(0.1), tlo.losses.SampledSoftmax(), run_eagerly=True)
    words = np.random.default_rng(0).integers(1, CLASSES, [EXAMPLES, 4])
    model.fit(words, words[:, 0], verbose=0)
    keep = np.array([0, *range(CLASSES - 1, 0, -1)])
    new = tlo.resize_classes(model, CLASSES + 2, keep)
    of_old = np.argsort(keep)
    np.testing.assert_array_equal(
        new.predict(of_old[words], verbose=0)[:, :CLASSES], model.predict(words, verbose=0)[:, keep]
    )
    own = new.layers[-1]
    assert own.embedding is new.layers[1] and own.kernel is own.embedding.embeddings
    for slot, old in zip(new.optimizer.variables, model.optimizer.variables, strict=True):
        if old.shape[:1] == (CLASSES,):
            np.testing.assert_array_equal(np.asarray(slot)[:CLASSES], np.asarray(old)[keep])
    with pytest.raises(ValueError, match="keep must begin with class 0, which 'row_emb"):
        tlo.resize_classes(model, CLASSES - 1, range(1, CLASSES))
    new.fit(of_old[words], of_old[words[:, 0]], verbose=0)
    new.save(tmp_path / "new.keras")
    loaded = keras.saving.load_model(tmp_path / "new.keras")
    assert loaded.layers[-1].embedding is loaded.layers[1]


def test_a_model_that_was_not_compiled_or_not_trained():
    inputs = keras.Input([FEATURES])
    model = keras.Model(inputs, sampled()(keras.layers.Dense(WIDTH)(inputs)))
    new = tlo.resize_classes(model, 12, range(12))
    assert not new.compiled and isinstance(new, keras.Model)
    model.compile("adam", tlo.losses.ComplementarySum())
    assert tlo.resize_classes(model, 40).compiled


@pytest.mark.parametrize("row", EACH)
def test_files_and_checkpoints_of_what_was_resized(row, tmp_path):
    model = trained(row.make_head(CLASSES, **with_bias(row)), row.make_loss(), row.make_optimizer())
    new = tlo.resize_classes(model, CLASSES + 3, MIXED)
    x, labels = data(CLASSES + 3)
    new.save(tmp_path / "new.keras")
    loaded = keras.saving.load_model(tmp_path / "new.keras")
    checkpoint = tlo.callbacks.Checkpoint(tmp_path / "run")
    new.fit(x, labels, batch_size=8, epochs=1, verbose=0, callbacks=[checkpoint])
    again = tlo.resize_classes(model, CLASSES + 3, MIXED)
    again.fit(
        x,
        labels,
        batch_size=8,
        epochs=1,
        verbose=0,
        callbacks=[tlo.callbacks.Checkpoint(tmp_path / "run")],
    )
    np.testing.assert_array_equal(again.predict(x, verbose=0), new.predict(x, verbose=0))
    loaded.fit(x, labels, batch_size=8, epochs=1, verbose=0)
    assert loaded.layers[-1].num_classes == CLASSES + 3


def test_weights_of_bfloat16():
    head = tlo.heads.DenseHead(CLASSES, dtype="bfloat16")
    model = trained(head, tlo.losses.SoftmaxCrossentropy())
    own = tlo.resize_classes(model, 4, [3, 1], new_rows=np.ones([2, WIDTH])).layers[-1]
    values = keras.ops.convert_to_numpy(own.kernel).astype("f4")
    old = keras.ops.convert_to_numpy(head.kernel).astype("f4")
    np.testing.assert_array_equal(values, rows_of(old, [3, 1], np.ones([2, WIDTH])))


# Errors


class OwnModel(keras.Model):
    def __init__(self):
        super().__init__()
        self.head = tlo.heads.DenseHead(5)

    def call(self, inputs):
        return self.head(inputs)


def dense_model():
    layers = [keras.Input([FEATURES]), tlo.heads.DenseHead(CLASSES, name="head")]
    return keras.Sequential(layers)


REFUSED = {
    "fewer": (dict(new_classes=20), ValueError, "new_classes must be at least .* 30; got 20"),
    "none": (dict(new_classes=1, keep=[0]), ValueError, "new_classes must be an integer of at"),
    "twice": (dict(new_classes=9, keep=[3, 4, 3]), ValueError, "each class once; got 3 2 times"),
    "outside": (dict(new_classes=9, keep=[3, 30]), ValueError, r"in \[0, 30\); got 30"),
    "negative": (dict(new_classes=9, keep=[-1]), ValueError, r"in \[0, 30\); got -1"),
    "floats": (dict(new_classes=9, keep=[0.5]), ValueError, "ids of classes, integers"),
    "shape": (
        dict(new_classes=32, new_rows=np.ones([3, FEATURES])),
        ValueError,
        r"new_rows must have shape \(2, 7\); got \(3, 7\)",
    ),
    "nan": (
        dict(new_classes=31, new_rows=np.full([1, FEATURES], np.nan)),
        ValueError,
        "new_rows must be finite in float32; got nan",
    ),
    "bias": (dict(new_classes=31, new_bias=[1, 2]), ValueError, r"new_bias must have shape \(1,"),
    "counts": (dict(new_classes=31, new_counts=[1, 2]), ValueError, "new_counts must have one nu"),
    "negative_counts": (dict(new_classes=31, new_counts=[-1]), ValueError, "new_counts must be f"),
    "weights": (
        dict(new_classes=31, new_class_weights=[np.nan]),
        ValueError,
        "new_class_weights must be finite and at least 0",
    ),
    "head": (dict(new_classes=31, head="other"), ValueError, r"heads, \['head'\], .* got 'other'"),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("kind", ["dense", "exact"])
def test_new_rows_of_cosines_have_norm_1(kind):
    head = (
        tlo.heads.DenseHead(9, cosine_scale=4.0)
        if kind == "dense"
        else tlo.heads.ExactSoftmaxHead(9, tlo.optimizers.RowSGD(0.1), cosine_scale=4.0)
    )
    model = keras.Sequential([keras.Input([3]), head])
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy())
    rows = np.array([[3, 0, 4], [0, 0, 0]], "float32")
    new = tlo.resize_classes(model, 11, new_rows=rows)
    expected = np.concatenate([head.kernel, [[0.6, 0, 0.8], [0, 0, 0]]])
    np.testing.assert_allclose(new.layers[-1].kernel, expected, rtol=1e-6)
    h = np.array([[1.0, 2, 2]], "float32")
    logits = 4 * (h / 3) @ expected.T
    np.testing.assert_allclose(new.predict(h, verbose=0), logits, rtol=1e-5, atol=1e-6)
    loss = np.log(np.exp(logits).sum()) - logits[0, 9]
    np.testing.assert_allclose(new.evaluate(h, np.array([9]), verbose=0), loss, rtol=1e-5)


def test_rows_that_a_factored_embedding_looks_up_follow():
    head = tlo.heads.FactoredHead(CLASSES, 0.1)
    inputs = keras.Input([3], dtype="int32")
    hidden = keras.layers.GRU(WIDTH)(tlo.layers.FactoredEmbedding(head, WIDTH)(inputs))
    model = keras.Model(inputs, head(hidden))
    model.compile("sgd", tlo.losses.TaylorSoftmax())
    places = np.random.default_rng(0).integers(0, len(MIXED), (EXAMPLES, 3))
    model.fit(MIXED[places], MIXED[places[:, 0]], verbose=0)
    before = model.predict(MIXED[places], verbose=0)
    new = tlo.resize_classes(model, CLASSES, MIXED)
    logits = new.predict(places, verbose=0)
    np.testing.assert_allclose(logits[:, : len(MIXED)], before[:, MIXED], rtol=1e-5, atol=1e-6)
    new.fit(places, places[:, 0], verbose=0)


def with_names(names):
    inputs = keras.Input([3])
    head = tlo.heads.DenseHead(4, name="head")
    return keras.Model(inputs, [head(inputs), *tlo.TopK(head, 2, names=names)(inputs)])


def test_names_of_classes_follow():
    model = with_names(["a", "b", "c", "d"])
    for new_classes, keep, more, names in (
        (3, [3, 0, 1], {}, ["d", "a", "b"]),
        (4, [3, 0], {"new_names": ["e", "f"]}, ["d", "a", "e", "f"]),
    ):
        new = tlo.resize_classes(model, new_classes, keep, **more)
        *_, ids, found = new.predict(np.ones([2, 3], "float32"), verbose=0)
        np.testing.assert_array_equal(np.asarray(found).astype(str), np.array(names)[ids])
    assert model.layers[-1].names == ["a", "b", "c", "d"]
    with pytest.raises(ValueError, match=r"new_names must be 1 strings, .* got 0"):
        tlo.resize_classes(model, 5)
    with pytest.raises(ValueError, match=r"new_names must be 1 strings, .* got 2"):
        tlo.resize_classes(model, 5, new_names=["e", "f"])
    with pytest.raises(TypeError, match="names must be a list of strings, one per class; got 3"):
        tlo.resize_classes(model, 5, new_names=3)
    with pytest.raises(ValueError, match="names must differ; got 'a' for classes 0 and 4"):
        tlo.resize_classes(model, 5, new_names=["a"])


@pytest.mark.all_cases
@pytest.mark.parametrize("what", REFUSED)
def test_misuse(what):
    arguments, error, message = REFUSED[what]
    with pytest.raises(error, match=message):
        tlo.resize_classes(dense_model(), **arguments)


def compiled(loss=None, optimizer="adam", **arguments):
    model = dense_model()
    model.compile(optimizer, loss or tlo.losses.SoftmaxCrossentropy(**arguments))
    return model


def test_models_that_are_refused():
    own = OwnModel()
    own(np.zeros([1, 3], "f4"))
    inputs = keras.Input([3])
    hierarchical = tlo.heads.HierarchicalSoftmaxHead(9, tlo.optimizers.RowSGD(0.1))
    searched = tlo.TopK(tlo.heads.DenseHead(9), 2, allow=[3, 4])(inputs)
    cases = [
        (own, TypeError, "model must be a Functional or Sequential model"),
        (keras.Model(inputs, own(inputs)), TypeError, "which another layer makes in its code"),
        (tlo.top_k_model(dense_model(), 2), TypeError, "hand over that one"),
        (keras.Sequential([tlo.heads.DenseHead(9)]), ValueError, "model must be built"),
        (keras.Sequential([inputs, keras.layers.Dense(9)]), ValueError, "model must have a head"),
        (
            keras.Sequential([inputs, hierarchical]),
            TypeError,
            "HierarchicalSoftmaxHead .* changes the probabilities of others",
        ),
        (
            keras.Sequential([dense_model(), keras.layers.Dense(3)]),
            ValueError,
            "axis -1 of input shape to have value 30, but received .*50",
        ),
        (keras.Model(inputs, searched), ValueError, "no TopK with a separate index, allow or"),
        (compiled(ignore_class=40), ValueError, "got 40, which would be a new class"),
        (
            compiled(optimizer=keras.optimizers.Adafactor()),
            ValueError,
            "must name slots after their weights.*Adafactor",
        ),
    ]
    for model, error, message in cases:
        with pytest.raises(error, match=message):
            tlo.resize_classes(model, 50)
    with pytest.raises(ValueError, match="got 4, which is not kept"):
        tlo.resize_classes(compiled(ignore_class=4), 3, [0, 1])
    model = dense_model()
    model.compile("sgd", metrics=[tlo.metrics.RecallAtK(1, allow=[4, 5])])
    with pytest.raises(ValueError, match=r"allow .* must have a class that stays; got \[4 5\]"):
        tlo.resize_classes(model, 3, [0, 1])
    unigram = sampled(tlo.samplers.Unigram(np.ones(CLASSES), 5, smoothing=0, first_id=2))
    model = trained(unigram, tlo.losses.ComplementarySum())
    with pytest.raises(ValueError, match=r"new_counts must be above 0 .* got none"):
        tlo.resize_classes(model, 40)
    with pytest.raises(ValueError, match="keep must begin with those classes below first_id=2"):
        tlo.resize_classes(model, 12, [9, 1, *range(10, 20)])
    with pytest.raises(ValueError, match="num_sampled must be at most num_classes=4"):
        tlo.resize_classes(model, 4, range(4))
    plain = keras.Sequential([inputs, tlo.heads.DenseHead(9, use_bias=False)])
    with pytest.raises(ValueError, match="new_bias must be None for a head without bias"):
        tlo.resize_classes(plain, 10, new_bias=[0])
    model = trained(
        sampled(),
        tlo.losses.ComplementarySum(),
        keras.optimizers.SGD(0.1, gradient_accumulation_steps=2),
    )
    with pytest.raises(ValueError, match=r"batches that 'sampled_head.*' has accumulated"):
        tlo.resize_classes(model, 31)
