# SPDX-License-Identifier: Apache-2.0
"""Heads that share their W with an input embedding, and RowEmbedding."""

from __future__ import annotations

import contextlib
import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from loading import assert_goes_on_when_loaded
from variants import thorough

import tfx_largeout as tlo
from tfx_largeout.heads import TiedExactSoftmaxHead, TiedSampledHead
from tfx_largeout.layers import RowEmbedding

WORDS, WIDTH, EXAMPLES, LENGTH = 40, 6, 12, 5


def data(words=WORDS):
    """With many equal rows: x repeats words, and most labels are words of x."""
    rng = np.random.default_rng(3)
    return rng.integers(0, words, [EXAMPLES, LENGTH]), rng.integers(0, words, EXAMPLES)


def table():
    return RowEmbedding(WORDS, WIDTH, embeddings_initializer=normal(5), name="table")


def normal(seed):
    return keras.initializers.RandomNormal(stddev=0.5, seed=seed)


def trunk(words):
    hidden = keras.layers.GlobalAveragePooling1D()(words)
    return keras.layers.Dense(WIDTH, "tanh", kernel_initializer=normal(6))(hidden)


def tied(sampler, embedding=None, **arguments):
    embedding = embedding or table()
    inputs = keras.Input([LENGTH], dtype="int32")
    head = TiedSampledHead(embedding, sampler, **{"seed": 1, "name": "head", **arguments})
    return keras.Model(inputs, head(trunk(embedding(inputs))))


def dense():
    """The same model with the full softmax: the gradient of the table is dense."""
    inputs = keras.Input([LENGTH], dtype="int32")
    embedding = keras.layers.ReversibleEmbedding(
        WORDS, WIDTH, embeddings_initializer=normal(5), name="table"
    )
    return keras.Model(inputs, embedding(trunk(embedding(inputs)), reverse=True))


def head_of(model):
    return model.get_layer("head")


def values_of(model):
    return model.get_layer("table").get_weights()[0]


def test_mixed_float16_learns_as_float32_does():
    losses = []
    for policy in ("float32", "mixed_float16"):
        keras.config.set_dtype_policy(policy)
        x, y = data()
        model = tied(tlo.samplers.Uniform(WORDS))
        model.compile(keras.optimizers.SGD(0.5), tlo.losses.SampledSoftmax())
        losses.append(model.fit(x, y, EXAMPLES // 2, 6, 0, shuffle=False).history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.01)


@pytest.mark.parametrize("ignored", [-1, *thorough(-100)])
def test_padding_and_weights_of_classes_count_as_in_keras(ignored):
    x, y = data()
    y[::3] = ignored
    weights = np.linspace(0.2, 2, WORDS)
    own, full = tied(tlo.samplers.Uniform(WORDS), use_bias=False), dense()
    loss = tlo.losses.SampledSoftmax(ignore_class=ignored, class_weights=weights)
    own.compile(tlo.optimizers.RowSGD(0.5), loss)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=ignored)
    full.compile(keras.optimizers.SGD(0.5), loss)
    found = [
        own.fit(x, y, EXAMPLES // 2, 4, 0, shuffle=False),
        full.fit(x, y, EXAMPLES // 2, 4, 0, shuffle=False, sample_weight=weights[y % WORDS]),
    ]
    np.testing.assert_allclose(*(each.history["loss"] for each in found), rtol=1e-5)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)


def tied_exact(embedding=None, **arguments):
    embedding = embedding or table()
    inputs = keras.Input([LENGTH], dtype="int32")
    arguments = {"seed": 1, "name": "head", "use_bias": False, **arguments}
    return keras.Model(
        inputs, TiedExactSoftmaxHead(embedding, **arguments)(trunk(embedding(inputs)))
    )


HEADS = {
    "sampled": (lambda: tied(tlo.samplers.Uniform(WORDS), use_bias=False), "SampledSoftmax"),
    "selected": (lambda: tied_exact(num_selected=WORDS), "SoftmaxCrossentropy"),
    "all": (lambda: tied_exact(backward="all"), "SoftmaxCrossentropy"),
}
EXACT_STEPS = {
    "row_sgd": (lambda: tlo.optimizers.RowSGD(0.5), lambda: keras.optimizers.SGD(0.5)),
    "row_adagrad": (lambda: tlo.optimizers.RowAdagrad(0.1), lambda: keras.optimizers.Adagrad(0.1)),
    "row_adam": (lambda: tlo.optimizers.RowAdam(0.01), lambda: keras.optimizers.Adam(0.01)),
    "fused_adam": (lambda: tlo.optimizers.FusedAdam(0.01), lambda: keras.optimizers.Adam(0.01)),
    **{
        name: (make, make)
        for name, make in {
            "adam": lambda: keras.optimizers.Adam(0.01),
            "adagrad": lambda: keras.optimizers.Adagrad(0.1),
            "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
            "global_clipnorm": lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
            "clipnorm": lambda: keras.optimizers.Adam(0.01, clipnorm=0.1),
            "clipvalue": lambda: keras.optimizers.SGD(0.5, clipvalue=0.01),
            "accumulated": lambda: keras.optimizers.Adam(0.01, gradient_accumulation_steps=2),
            "averaged": lambda: keras.optimizers.Adam(0.01, use_ema=True),
            "scaled": lambda: keras.optimizers.LossScaleOptimizer(
                keras.optimizers.Adam(0.01), initial_scale=1024.0
            ),
        }.items()
    },
    "row_global_clipnorm": (
        lambda: tlo.optimizers.RowSGD(0.5, global_clipnorm=0.1),
        lambda: keras.optimizers.SGD(0.5, global_clipnorm=0.1),
    ),
}


@pytest.mark.each_of("head", lambda head: head)
@pytest.mark.parametrize("name", EXACT_STEPS)
@pytest.mark.parametrize("head", HEADS)
def test_steps_are_those_of_keras_with_the_table_twice(head, name):
    """Embedding, and a product with the same table transposed, under the full softmax."""
    x, y = data()
    (make_head, loss), (make_own, make_full) = HEADS[head], EXACT_STEPS[name]
    own, full = make_head(), dense()
    own.compile(make_own(), getattr(tlo.losses, loss)())
    full.compile(make_full(), keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with no_warning():
        losses = [
            model.fit(x, y, EXAMPLES // 2, 4, 0, shuffle=False).history["loss"]
            for model in (own, full)
        ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("optimizer", [keras.optimizers.Adam, tlo.optimizers.RowAdam])
def test_a_loop_without_compile_warns_of_what_takes_a_row_for_several(optimizer):
    x, y = data()
    model, loss = tied(tlo.samplers.Uniform(9)), tlo.losses.SampledSoftmax()
    optimizer = optimizer(0.01)
    with tf.GradientTape() as tape:
        value = loss(y, model(x, training=True))
    weights = model.trainable_variables
    is_right = isinstance(optimizer, tlo.optimizers.RowAdam)
    with no_warning() if is_right else pytest.warns(RuntimeWarning, match="Got Adam"):
        optimizer.apply(tape.gradient(value, [w.value for w in weights]), weights)


@contextlib.contextmanager
def no_warning():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield


@pytest.mark.parametrize("per_example", [False, True], ids=["shared", "own"])
def test_a_step_touches_the_rows_of_inputs_labels_and_candidates_alone(per_example):
    x, y = data()
    model = tied(tlo.samplers.Uniform(4, per_example=per_example), explicit_classes=[7])
    model.compile(tlo.optimizers.RowAdam(0.01), tlo.losses.SampledSoftmax(), run_eagerly=True)
    head, before = head_of(model), values_of(model)
    labels = tlo.labels.normalize_labels(y[:3], WORDS)
    drawn = head.candidates(tf.zeros([3, WIDTH]), labels).ids.numpy()
    assert 7 in drawn
    model.fit(x[:3], y[:3], verbose=0)
    moved = np.flatnonzero((values_of(model) != before).any(axis=1))
    assert set(moved) == {*x[:3].ravel(), *y[:3], *drawn.ravel()}
    assert int(head.step_number) == 1


class LearnedLogPartition(tlo.losses.NoiseContrastive):
    def __init__(self):
        super().__init__(log_partition="learned")


LOSSES = [
    tlo.losses.ActiveSetSoftmax,
    tlo.losses.BlackOut,
    tlo.losses.ComplementarySum,
    tlo.losses.GeneralizedBCE,
    tlo.losses.ImportanceSampling,
    LearnedLogPartition,
    tlo.losses.NegativeSampling,
    tlo.losses.NoiseContrastive,
    tlo.losses.Ranking,
    tlo.losses.SampledLogistic,
    tlo.losses.SampledSoftmax,
]


@pytest.mark.parametrize("loss", LOSSES)
def test_each_loss_gets_the_statistics_of_a_sampled_head(loss):
    x, _ = data()
    labels = np.concatenate([x[:, :2], np.full([EXAMPLES, 1], -1)], axis=1)
    sampler = lambda: tlo.samplers.LogUniform(9)  # noqa: E731
    model = tied(sampler(), initial_log_partition=2.0, bias_initializer=normal(8))
    other = tlo.heads.SampledHead(
        WORDS, sampler(), tlo.optimizers.RowSGD(1.0), seed=1, initial_log_partition=2.0
    )
    hidden = tf.constant(np.random.default_rng(1).normal(size=[EXAMPLES, WIDTH]), tf.float32)
    other.build(hidden.shape)
    other.set_dense_weights(*head_of(model).materialize())
    head, found = head_of(model), []
    for each, log_partition in ((head, head.gradient_anchor), (other, other.gradient_anchor)):
        with tf.GradientTape() as tape:
            tape.watch(hidden)
            value = loss()(labels, each(hidden, training=True))
        found.append([value, *tape.gradient(value, [hidden, log_partition.value])])
    for own, expected in zip(*found, strict=True):
        np.testing.assert_allclose(own, expected, rtol=1e-4, atol=1e-6)
    assert (float(found[0][2]) != 0) == (loss is LearnedLogPartition)


COUNTS = np.arange(1, WORDS + 1)
SAMPLERS = {
    "bernoulli": lambda: tlo.samplers.Bernoulli(COUNTS, 9),
    "unigram": lambda: tlo.samplers.Unigram(COUNTS, 9, per_example=True),
    "exact_softmax": lambda: tlo.samplers.ExactSoftmaxSampler(9),
    "exact_top_k": lambda: tlo.samplers.ExactTopK(9),
    "tf": lambda: tlo.samplers.TFSampler("log_uniform", 9),
}


@pytest.mark.parametrize("name", SAMPLERS)
def test_samplers_see_the_table(name):
    """The first step of a `SampledHead` with the same weights and rows."""
    _, y = data()
    own = tied(SAMPLERS[name](), explicit_classes=[7])
    embedding = own.get_layer("table")
    hidden = tf.constant(np.random.default_rng(1).normal(size=[EXAMPLES, WIDTH]), tf.float32)
    rows = tlo.optimizers.RowSGD(1.0)
    other = tlo.heads.SampledHead(WORDS, SAMPLERS[name](), rows, seed=1, explicit_classes=[7])
    other.build(hidden.shape)
    other.set_dense_weights(*head_of(own).materialize())
    loss = tlo.losses.ComplementarySum()
    tf.random.set_seed(3)
    with tf.GradientTape() as tape:
        value = loss(y, head_of(own)(hidden, training=True))
    gradient = tape.gradient(value, embedding.trainable_variables[0].value)
    tf.random.set_seed(3)
    with tf.GradientTape() as tape:
        expected = loss(y, other(hidden, training=True))
    before = other.kernel.numpy()
    tape.gradient(expected, other.gradient_anchor.value)
    other.take_step()
    assert float(value) == pytest.approx(float(expected), rel=1e-5)
    gradient = tf.convert_to_tensor(gradient).numpy()
    np.testing.assert_allclose(gradient, before - other.kernel.numpy(), rtol=1e-3, atol=1e-6)


def test_sequences_a_mask_and_a_bfloat16_policy():
    keras.config.set_dtype_policy("mixed_bfloat16")
    embedding = RowEmbedding(WORDS, WIDTH, mask_zero=True, name="table")
    inputs = keras.Input([None], dtype="int32")
    hidden = keras.layers.Dense(WIDTH, "tanh")(embedding(inputs))
    head = TiedSampledHead(embedding, tlo.samplers.Unigram(np.arange(1, WORDS + 1), 9))
    model = keras.Model(inputs, head(hidden))
    model.compile(tlo.optimizers.RowAdam(0.05), tlo.losses.SampledSoftmax(), run_eagerly=True)
    x, _ = data()
    x[:, -1] = 0
    x[:, 0] = 1 + x[:, 0] % (WORDS - 1)
    losses = model.fit(x, np.roll(x, -1, axis=1), epochs=15, verbose=0).history["loss"]
    assert losses[-1] < losses[0] - 0.1 and head.kernel.dtype == "float32"
    exact = model.evaluate(x, np.roll(x, -1, axis=1), verbose=0)
    assert np.isfinite(exact)


def test_a_file_keeps_the_tie(tmp_path):
    x, y = data()
    model = tied(tlo.samplers.Uniform(9))
    model.compile(tlo.optimizers.RowAdam(0.01), tlo.losses.SampledSoftmax(), run_eagerly=True)
    model.fit(x, y, verbose=0)
    loaded = assert_goes_on_when_loaded(model, x, y, tmp_path)
    assert head_of(loaded).embedding is loaded.get_layer("table")
    assert len(loaded.weights) == 6


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::RuntimeWarning")
def test_a_table_in_a_model_within_warns_and_weights_keep_the_tie(tmp_path):
    x, y = data()

    def nested():
        inputs, embedding = keras.Input([LENGTH], dtype="int32"), table()
        inner = keras.Model(inputs, trunk(embedding(inputs)))
        head = TiedSampledHead(embedding, tlo.samplers.Uniform(9), name="head")
        model = keras.Model(inputs, head(inner(inputs)))
        model.compile(tlo.optimizers.RowAdam(0.01), tlo.losses.SampledSoftmax(), run_eagerly=True)
        return model

    model, other = nested(), nested()
    with pytest.warns(RuntimeWarning, match="embedding of head should be a layer of the same"):
        model.fit(x, y, verbose=0)
    model.save_weights(tmp_path / "of.weights.h5")
    other.load_weights(tmp_path / "of.weights.h5")
    np.testing.assert_array_equal(other.predict(x, verbose=0), model.predict(x, verbose=0))


def test_a_clone_that_is_trained_warns_that_its_layers_are_not_tied():
    (x, y), model = data(), tied(tlo.samplers.Uniform(9))
    clone = keras.models.clone_model(model)
    clone.compile(tlo.optimizers.RowSGD(0.1), tlo.losses.ComplementarySum(), run_eagerly=True)
    with warnings.catch_warnings(action="error", category=RuntimeWarning):
        clone.predict(x, verbose=0)
    with pytest.warns(
        RuntimeWarning, match=r"the same model.*got one that was never called.*copy\.deepcopy"
    ):
        clone.fit(x, y, verbose=0)


@pytest.mark.thorough
def test_a_probe_looks_and_counts_no_draw():
    x, y = data()
    ends = []
    for callbacks in ([], [tlo.callbacks.Probe(x, y, every=1, max_share=1000)]):
        model = tied(tlo.samplers.Uniform(9))
        model.compile(tlo.optimizers.RowSGD(0.5), tlo.losses.ComplementarySum())
        history = model.fit(x, y, 4, 2, 0, callbacks=callbacks, shuffle=False).history
        assert int(head_of(model).step_number) == 6
        ends.append(values_of(model))
    np.testing.assert_array_equal(*ends)
    assert 0 < history["probe_cosine"][-1] < 1


def test_a_head_that_is_not_trainable_leaves_the_table_to_the_lookups():
    x, y = data()
    model = tied(tlo.samplers.Uniform(WORDS), trainable=False)
    model.compile(tlo.optimizers.RowSGD(0.1), tlo.losses.SampledSoftmax(), run_eagerly=True)
    before = values_of(model)
    model.fit(x[:2], y[:2], verbose=0)
    moved = np.flatnonzero((values_of(model) != before).any(axis=1))
    assert set(moved) == set(x[:2].ravel())


def test_to_keras_unties():
    x, _ = data()
    model = tied(tlo.samplers.Uniform(3))
    plain = tlo.to_keras(model)
    assert type(plain.get_layer("table")) is keras.layers.Embedding
    np.testing.assert_allclose(plain(x), model(x), rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"a separate W; got TiedSampledHead .* 'table'"):
        tlo.replace_output(plain, TiedSampledHead(table(), tlo.samplers.Uniform(3)))


# TiedExactSoftmaxHead


@pytest.mark.parametrize("arguments", [{"num_selected": WORDS}, {"backward": "all"}], ids=str)
@pytest.mark.parametrize("options", [{"label_smoothing": 0.2}, {"ignore_class": -1}], ids=str)
def test_other_losses_of_the_exact_head_are_those_of_keras(arguments, options):
    x, y = data()
    own, full = tied_exact(**arguments), dense()
    own.compile(tlo.optimizers.RowSGD(0.5), tlo.losses.SoftmaxCrossentropy(**options))
    if "label_smoothing" in options:
        loss, targets = keras.losses.CategoricalCrossentropy, keras.ops.one_hot(y, WORDS).numpy()
    else:
        y[::3] = -1
        loss, targets = keras.losses.SparseCategoricalCrossentropy, y
    full.compile(keras.optimizers.SGD(0.5), loss(from_logits=True, **options))
    losses = [
        model.fit(x, labels, EXAMPLES // 2, 4, 0, shuffle=False).history["loss"]
        for model, labels in ((own, y), (full, targets))
    ]
    np.testing.assert_allclose(*losses, rtol=1e-5)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_selected_rows_have_the_gradient_in_expectation(smoothing):
    _, y = data()
    loss = tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing)
    hidden = tf.constant(np.random.default_rng(1).normal(size=[EXAMPLES, WIDTH]), tf.float32)

    embedding = table()

    def gradients(draws, **arguments):
        head = TiedExactSoftmaxHead(embedding, bias_initializer=normal(8), seed=1, **arguments)

        @functools.partial(tf.function, autograph=False)
        def gradient():
            with tf.GradientTape() as tape:
                value = tf.reduce_sum(loss(y, head(hidden, training=True)))
            of_table, of_bias = tape.gradient(value, [head.kernel.value, head.bias.value])
            return tf.convert_to_tensor(of_table), tf.convert_to_tensor(of_bias)

        head.build(hidden.shape)
        for draw in range(draws):
            with head.without_update(draw):
                yield np.concatenate([np.ravel(part) for part in gradient()])

    (exact,) = gradients(1, backward="all")
    found = np.stack([*gradients(200, num_selected=4)])
    error = found.std(axis=0) / np.sqrt(len(found))
    assert (np.abs(found.mean(axis=0) - exact) < 4.5 * error + 1e-6).all()
    assert found.std(axis=0).max() > 0.01


def test_a_frozen_embedding_and_two_heads_on_one_table():
    x, y = data()
    model = tied_exact(backward="all", use_bias=True)
    model.get_layer("table").trainable = False
    model.compile("adam", tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)
    before, bias = values_of(model), head_of(model).bias.numpy()
    model.fit(x, y, verbose=0)
    np.testing.assert_array_equal(values_of(model), before)
    assert np.any(head_of(model).bias.numpy() != bias)

    def two(make):
        embedding, inputs = make(), keras.Input([LENGTH], dtype="int32")
        hidden = trunk(embedding(inputs))
        if isinstance(embedding, RowEmbedding):
            outputs = [
                TiedExactSoftmaxHead(embedding, num_selected=WORDS, use_bias=False)(hidden),
                TiedSampledHead(embedding, tlo.samplers.Uniform(WORDS), use_bias=False)(-hidden),
            ]
        else:
            outputs = [embedding(hidden, reverse=True), embedding(-hidden, reverse=True)]
        return keras.Model(inputs, outputs)

    own, full = two(table), two(reversible)
    own.compile(
        tlo.optimizers.RowAdagrad(0.1),
        [tlo.losses.SoftmaxCrossentropy(), tlo.losses.SampledSoftmax()],
    )
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    full.compile(keras.optimizers.Adagrad(0.1), [entropy, entropy])
    for model in (own, full):
        model.fit(x, [y, y[::-1].copy()], EXAMPLES // 2, 4, 0, shuffle=False)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("cap", [0.7, 3])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_the_exact_head_trains_capped_logits(cap, smoothing):
    x, y = data()
    own = tied_exact(reversible(logit_soft_cap=cap), backward="all")
    inputs = keras.Input([LENGTH], dtype="int32")
    embedding = reversible(logit_soft_cap=cap)
    full = keras.Model(inputs, embedding(trunk(embedding(inputs)), reverse=True))
    own.compile("adam", tlo.losses.SoftmaxCrossentropy(label_smoothing=smoothing))
    entropy = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=smoothing)
    full.compile("adam", entropy)
    targets = keras.ops.one_hot(y, WORDS).numpy()
    for model, labels in ((own, y), (full, targets)):
        model.fit(x, labels, EXAMPLES // 2, 4, 0, shuffle=False)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)
    assert own.evaluate(x, y, verbose=0) == pytest.approx(
        full.evaluate(x, targets, verbose=0), rel=1e-5
    )
    for arguments in ({}, {"backward": "all", "products": "bfloat16"}):
        with pytest.raises(ValueError, match=r'backward must be "all".*logit_soft_cap='):
            TiedExactSoftmaxHead(reversible(logit_soft_cap=cap), **arguments)


# An index over the table


INDEXES = {
    "midx": lambda: (
        tlo.samplers.MIDX(5),
        tlo.indexes.InvertedMultiIndex(3, first_period=3, codebook_rounds=2),
    ),
    "lsh": lambda: (
        tlo.samplers.LSHEmbedding(6, tlo.samplers.Uniform(5)),
        tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 3, first_period=1, growth=1),
    ),
    "in_batch": lambda: (tlo.samplers.InBatch(queue=1), None),
    "wta": lambda: (
        tlo.samplers.WTATopK(4, 6),
        tlo.indexes.HashIndex(tlo.indexes.DWTAHash(3), 1, 3),
    ),
}


@pytest.mark.parametrize("name", ["lsh", *thorough(*(name for name in INDEXES if name != "lsh"))])
def test_an_index_follows_the_steps_of_the_optimizer(name):
    """It is that which is built from the rows at the end, and draws as in a `SampledHead`."""
    x, y = data()
    sampler, index = INDEXES[name]()
    model = tied(sampler, index=index)
    model.compile(tlo.optimizers.RowAdagrad(0.5), tlo.losses.SampledSoftmax())
    model.fit(x, y, 4, 6, 0, shuffle=False)
    head = head_of(model)
    assert np.isfinite(model.evaluate(x, y, verbose=0))
    assert head.kept_variables[0].shape.rank == 1 and tf.size(head.kept_variables[0]) == 0
    if name == "lsh":  # rows that nothing but a lookup moves are left out
        assert float(head.index.health(head.kernel, head.bias)["stale"]) <= 0.1
        head.index.rebuild(head.kernel, head.bias)
        assert float(head.index.health(head.kernel, head.bias)["stale"]) == 0


@pytest.mark.parametrize("name", ["midx", "lsh"])
@pytest.mark.cpu
def test_a_run_with_an_index_is_resumed_bit_for_bit(name, tmp_path):
    x, y = data()

    def run(epochs, checkpoint=None, seed=3):
        keras.utils.set_random_seed(seed)
        sampler, index = INDEXES[name]()
        model = tied(sampler, index=index)
        optimizer = keras.optimizers.Adam(0.05, gradient_accumulation_steps=2)
        model.compile(optimizer, tlo.losses.SampledSoftmax())
        callbacks = [] if checkpoint is None else [tlo.callbacks.Checkpoint(checkpoint)]
        model.fit(x, y, 4, epochs, 0, callbacks=callbacks, shuffle=False)
        return model.get_weights()

    run(3, tmp_path / "run")  # in the middle of a step: 3 batches an epoch
    for resumed, straight in zip(run(5, tmp_path / "run", seed=4), run(5), strict=True):
        np.testing.assert_array_equal(resumed, straight)


# Errors


def test_wrong_arguments():
    uniform = tlo.samplers.Uniform(3)
    with pytest.raises(TypeError, match=r"embedding must be a keras\.layers\.Embedding; got <Den"):
        TiedSampledHead(keras.layers.Dense(WORDS), uniform)
    with pytest.raises(TypeError, match="sampler must be a Sampler; got 3"):
        TiedSampledHead(table(), 3)
    with pytest.raises(ValueError, match=r"each of explicit_classes must be less than .*got 40"):
        TiedSampledHead(table(), uniform, explicit_classes=[WORDS])
    with pytest.raises(ValueError, match="as wide as the embedding, 6; got width 7"):
        TiedSampledHead(table(), uniform).build((None, WIDTH + 1))
    lora = table()
    lora.build()
    lora.enable_lora(2)
    with pytest.raises(ValueError, match="one table of floats; got one with LoRA"):
        TiedSampledHead(lora, uniform).build((None, WIDTH))


# RowEmbedding


@pytest.mark.parametrize("kind", [RowEmbedding, keras.layers.Embedding])
def test_only_a_row_embedding_never_reads_the_table_as_a_whole(kind):
    """A whole read beside an update in place makes TensorFlow copy the table in each step."""
    embedding = kind(WORDS, WIDTH)
    model = tied(tlo.samplers.Uniform(3), embedding)
    model.compile(tlo.optimizers.RowAdam(0.01), tlo.losses.SampledSoftmax(), run_eagerly=True)
    x, y = data()
    model.fit(x, y, verbose=0)
    step = tf.function(lambda x, y: model.train_step((x, y)), autograph=False)
    graph = step.get_concrete_function(tf.constant(x), tf.constant(y)).graph
    handle = embedding.embeddings.value.handle
    (resource,) = (inside for outside, inside in graph.captures if outside is handle)
    readers = {operation.type for operation in resource.consumers()}
    assert "ResourceGather" in readers
    assert ("ReadVariableOp" in readers) == (kind is not RowEmbedding)


def reversible(**arguments):
    arguments = {"embeddings_initializer": normal(5), "name": "table", **arguments}
    return keras.layers.ReversibleEmbedding(WORDS, WIDTH, **arguments)


def with_full_softmax(**options):
    """A tied head of all words, and the same model with the full softmax."""
    own = tied(tlo.samplers.Uniform(WORDS), reversible(**options), use_bias=False)
    embedding = reversible(**options)
    inputs = keras.Input([LENGTH], dtype="int32")
    return own, keras.Model(inputs, embedding(trunk(embedding(inputs)), reverse=True))


@pytest.mark.parametrize("options", [{"logit_soft_cap": 0.7}, {"logit_soft_cap": 3}, {}], ids=str)
def test_a_soft_cap_of_the_embedding_is_that_of_training_and_evaluation(options):
    x, y = data()
    own, full = with_full_softmax(**options)
    own.compile(keras.optimizers.SGD(0.5), tlo.losses.SampledSoftmax(), metrics=["accuracy"])
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    full.compile(keras.optimizers.SGD(0.5), entropy, metrics=["accuracy"])
    np.testing.assert_allclose(own(x), full(x), rtol=1e-5, atol=1e-6)
    for run in ("fit", "evaluate"):
        for model in (own, full):
            kwargs = {"shuffle": False, "epochs": 3} if run == "fit" else {}
            result = getattr(model, run)(x, y, batch_size=EXAMPLES // 2, verbose=0, **kwargs)
            model.said = result.history["loss"] if run == "fit" else result
        np.testing.assert_allclose(own.said, full.said, rtol=1e-5)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)


def test_what_reads_a_capped_head_gets_capped_logits():
    cap = 0.4
    embedding = reversible(logit_soft_cap=cap)
    bias = np.linspace(-1, 1, WORDS)
    model = tied(tlo.samplers.Uniform(4), embedding, bias_initializer=lambda s, dtype: bias)
    x, y = data()
    head = head_of(model)
    hidden = keras.Model(model.inputs, model.get_layer("head").input)(x)
    linear = np.float64(hidden) @ np.float64(values_of(model)).T + bias
    logits = cap * np.tanh(linear / cap)
    np.testing.assert_allclose(model(x), logits, rtol=1e-4, atol=1e-6)
    scores, ids = tlo.TopK(head, 3, activation="softmax")(hidden)
    best = np.argsort(-linear, axis=1, kind="stable")[:, :3]
    np.testing.assert_array_equal(ids, best)
    shares = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(scores, np.take_along_axis(shares, best, axis=1), rtol=1e-4)
    np.testing.assert_allclose(head.mean_logit(hidden), logits.mean(axis=1), rtol=1e-3, atol=1e-6)
    model.compile("sgd", tlo.losses.SampledSoftmax(), metrics=[tlo.metrics.ExactLoss()])
    wanted = -np.log(shares[np.arange(EXAMPLES), y]).mean()
    np.testing.assert_allclose(model.evaluate(x, y, verbose=0), [wanted, wanted], rtol=1e-5)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
@pytest.mark.parametrize("dtype", [None, "float32", "bfloat16", "float64"])
def test_logits_have_the_reverse_dtype(policy, dtype):
    embedding = reversible(reverse_dtype=dtype, dtype=policy)
    head = TiedSampledHead(embedding, tlo.samplers.Uniform(4), use_bias=False, dtype=policy)
    hidden = tf.random.stateless_normal([3, WIDTH], [1, 2])
    logits = head(hidden)
    layer = embedding(tf.cast(hidden, embedding.compute_dtype), reverse=True)
    assert logits.dtype == layer.dtype
    np.testing.assert_allclose(
        tf.cast(logits, "float32"), tf.cast(layer, "float32"), rtol=2e-2, atol=2e-2
    )
    wanted = head(keras.KerasTensor([None, WIDTH], policy.replace("mixed_", ""))).dtype
    assert wanted == logits.dtype.name


def test_what_a_tied_head_can_not_be_is_refused_by_name(tmp_path):
    sampler, row = tlo.samplers.Uniform(4), (None, WIDTH)
    with pytest.raises(ValueError, match=r"tie_weights=True.*got tie_weights=False.*SampledHead"):
        TiedSampledHead(reversible(tie_weights=False), sampler)
    with pytest.raises(ValueError, match=r"logit_soft_cap of embedding must be .* above 0; got 0"):
        TiedSampledHead(reversible(logit_soft_cap=0), sampler)
    for embedding in (RowEmbedding(WORDS, WIDTH, lora_rank=2), reversible(lora_rank=2)):
        with pytest.raises(ValueError, match="LoRA or quantized"):
            TiedSampledHead(embedding, sampler).build(row)
    later = TiedSampledHead(table(), sampler)
    later.build(row)
    later.embedding.enable_lora(2)
    with pytest.raises(ValueError, match="LoRA or quantized"):
        later(np.zeros([2, WIDTH], "float32"))
    with pytest.raises(ValueError, match="dtype, float32; got bfloat16"):
        TiedSampledHead(reversible(dtype="bfloat16"), sampler).build(row)
    model = tied(sampler, reversible(logit_soft_cap=2))
    for use in (
        lambda: head_of(model).to_dense(),
        lambda: tlo.to_keras(model),
        lambda: tlo.export(model, tmp_path / "served", k=2),
    ):
        with pytest.raises(TypeError, match="logit_soft_cap=2"):
            use()


@pytest.mark.parametrize(
    "options",
    [
        {"embeddings_constraint": keras.constraints.UnitNorm(axis=1)},
        {"embeddings_regularizer": keras.regularizers.L2(0.1)},
        {"mask_zero": True},
    ],
    ids=["constraint", "regularizer", "mask_zero"],
)
def test_options_of_the_embedding_train_as_in_the_full_softmax(options):
    x, y = data()
    own, full = with_full_softmax(**options)
    own.compile(keras.optimizers.SGD(0.5), tlo.losses.SampledSoftmax())
    entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    full.compile(keras.optimizers.SGD(0.5), entropy)
    for model in (own, full):
        model.fit(x, y, EXAMPLES // 2, 4, 0, shuffle=False)
    np.testing.assert_allclose(values_of(own), values_of(full), rtol=1e-4, atol=1e-5)
