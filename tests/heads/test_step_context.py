# SPDX-License-Identifier: Apache-2.0
"""When a head takes its step: with the optimizer's, at its scale, once, or not at all."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from heads.self_updating_dense import SelfUpdatingDense
from variants import thorough

import tfx_largeout as tlo

CLASSES, WIDTH, BATCH, STEPS = 12, 5, 6, 8
ALL = list(range(CLASSES))


def row(rate=0.5):
    return tlo.optimizers.RowSGD(rate)


def sampled(**kwargs):
    """All classes are candidates, so that a step does not depend on the draw."""
    return tlo.heads.SampledHead(
        CLASSES, tlo.samplers.Uniform(1), row(), explicit_classes=ALL, seed=1, **kwargs
    )


HEADS = {
    "dense": (lambda: SelfUpdatingDense(CLASSES), tlo.losses.SoftmaxCrossentropy),
    "sampled": (sampled, tlo.losses.SampledSoftmax),
    "exact_selected": (
        lambda: tlo.heads.ExactSoftmaxHead(CLASSES, row(), num_selected=CLASSES),
        tlo.losses.SoftmaxCrossentropy,
    ),
    "exact_smoothed": (
        lambda: tlo.heads.ExactSoftmaxHead(CLASSES, row(), backward="all"),
        lambda: tlo.losses.SoftmaxCrossentropy(label_smoothing=0.1),
    ),
    "exact_all": (
        lambda: tlo.heads.ExactSoftmaxHead(CLASSES, row(), backward="all"),
        tlo.losses.SoftmaxCrossentropy,
    ),
    "factored": (lambda: tlo.heads.FactoredHead(CLASSES, 0.5, use_bias=True), tlo.losses.ZLoss),
    "two_level": (
        lambda: tlo.heads.HierarchicalSoftmaxHead(CLASSES, row()),
        tlo.losses.NegativeLogLikelihood,
    ),
    "huffman": (
        lambda: tlo.heads.HierarchicalSoftmaxHead(CLASSES, row(), tree="huffman"),
        tlo.losses.NegativeLogLikelihood,
    ),
}
heads = pytest.mark.parametrize("name", HEADS)


def data(examples=BATCH * STEPS, several=False):
    rng = np.random.default_rng(0)
    y = rng.integers(0, CLASSES, (examples, 2) if several else examples)
    return rng.normal(size=(examples, WIDTH)).astype("float32"), y


def model_of(name, optimizer, dtype="float32", **arguments):
    keras.utils.set_random_seed(3)
    keras.config.set_dtype_policy(dtype)
    make_head, make_loss = HEADS[name]
    trunk = keras.layers.Dense(WIDTH, activation="tanh")
    model = keras.Sequential([keras.Input((WIDTH,)), trunk, make_head()])
    model.compile(optimizer, make_loss(), **arguments)
    return model


def weights_of(model):
    """The trunk's weights and, as arrays, everything from which the head computes logits."""
    logits = model.layers[-1].logits(tf.eye(WIDTH))
    return [w.numpy() for w in model.layers[0].weights] + [np.asarray(logits, "float64")]


def assert_same(model, other, **tolerance):
    for ours, theirs in zip(weights_of(model), weights_of(other), strict=True):
        np.testing.assert_allclose(ours, theirs, **{"rtol": 2e-4, "atol": 2e-6, **tolerance})


def trained(name, optimizer, batch=BATCH, epochs=2, several=False, steps=None, **arguments):
    model = model_of(name, optimizer, **arguments)
    x, y = data(several=several)
    x, y = (x[: steps * batch], y[: steps * batch]) if steps else (x, y)
    model.fit(x, y, batch_size=batch, epochs=epochs, shuffle=False, verbose=0)
    return model


OTHER_RUNS = {"eager": {"run_eagerly": True}, "steps_per_execution": {"steps_per_execution": 2}}
runs = pytest.mark.parametrize(
    "run", [{}, *thorough(*OTHER_RUNS.values())], ids=["graph", *OTHER_RUNS]
)


@heads
def test_a_user_accumulates_over_a_number_of_batches_that_does_not_divide(name):
    """6 of 8 batches make two steps; the next epoch continues with the remaining two."""
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=3)
    parts = trained(name, optimizer, epochs=3, several=name != "two_level")
    own = model_of(name, keras.optimizers.SGD(0.5))
    x, y = data(several=name != "two_level")
    x, y = np.concatenate([x] * 3), np.concatenate([y] * 3)
    own.fit(x, y, batch_size=3 * BATCH, shuffle=False, verbose=0)
    assert_same(parts, own)


@heads
@runs
def test_a_scaled_loss_is_the_same_step(name, run):
    plain = trained(name, keras.optimizers.SGD(0.5))
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=1024.0)
    assert_same(trained(name, scaled, **run), plain)
    fixed = keras.optimizers.SGD(0.5, loss_scale_factor=512.0)
    assert_same(trained(name, fixed, **run), plain)


@heads
@runs
def test_a_step_that_the_scale_overflows_in_is_left_out(name, run):
    """float16 holds at most 65,504: a scale of 2^40 gives gradients that are not finite."""
    inner = keras.optimizers.SGD(0.5)
    scaled = keras.optimizers.LossScaleOptimizer(inner, initial_scale=2.0**40)
    model = model_of(name, scaled, dtype="mixed_float16", **run)
    x, y = data()
    before = weights_of(model)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model.fit(x[:BATCH], y[:BATCH], verbose=0)
        for ours, theirs in zip(weights_of(model), before, strict=True):
            np.testing.assert_array_equal(ours, theirs)
        model.fit(x, y, batch_size=BATCH, epochs=6, verbose=0)
    assert 0 < int(inner.iterations) < 6 * STEPS
    counted = getattr(model.layers[-1], "optimizer", model.layers[-1])
    if name != "dense":
        assert int(counted.iterations) == int(inner.iterations)


@heads
def test_mixed_float16_learns_as_float32_does(name):
    losses = []
    for dtype in ("float32", "mixed_float16"):
        model = model_of(name, keras.optimizers.SGD(0.5), dtype=dtype)
        losses.append(
            model.fit(*data(), batch_size=BATCH, epochs=8, shuffle=False, verbose=0).history["loss"]
        )
    assert isinstance(model.optimizer, keras.optimizers.LossScaleOptimizer)
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.01)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.thorough
@heads
def test_mixed_float16_learns_words_from_definitions_as_float32_does(name):
    """WordNet: the first 2,000 definitions, their most frequent words as classes."""
    (train,) = tlo.datasets.load_wordnet("hyper", ["train"])
    texts, few = train.take(np.arange(2000)), CLASSES - 1
    first = texts.label_ids[texts.label_splits[:-1]]
    frequent = np.argsort(-np.bincount(first), kind="stable")[:few]
    y = np.where(first[:, np.newaxis] == frequent, np.arange(few), few).min(axis=1)
    x = tf.sparse.to_dense(next(iter(texts.dataset(2000)))[0]).numpy()
    x = x[:, np.argsort(-x.sum(axis=0))[:400]]
    losses = []
    for dtype in ("float32", "mixed_float16"):
        keras.utils.set_random_seed(3)
        keras.config.set_dtype_policy(dtype)
        make_head, make_loss = HEADS[name]
        layers = [keras.layers.Dense(32, "tanh"), keras.layers.Dense(WIDTH, "tanh"), make_head()]
        model = keras.Sequential([keras.Input(x.shape[1:]), *layers])
        model.compile(keras.optimizers.Adam(0.01), make_loss())
        history = model.fit(x, y, batch_size=100, epochs=4, shuffle=False, verbose=0).history
        losses.append(history["loss"])
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.02)
    assert losses[1][-1] < losses[1][0]


@heads
@runs
def test_scaled_and_accumulated(name, run):
    few = trained(name, keras.optimizers.SGD(0.5), batch=2 * BATCH)
    inner = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    assert_same(trained(name, keras.optimizers.LossScaleOptimizer(inner), **run), few)


@pytest.mark.each_of("name", lambda name: name == "factored")
@heads
@runs
def test_a_model_that_calls_its_head_twice_takes_one_step(name, run):
    """The sum of two losses of a head is one loss of both batches, one under the other."""
    make_head, make_loss = HEADS[name]
    x, y = data()

    def two_calls():
        keras.utils.set_random_seed(3)
        trunk, head = keras.layers.Dense(WIDTH), make_head()
        inputs = [keras.Input((WIDTH,)), keras.Input((WIDTH,))]
        model = keras.Model(inputs, [head(trunk(each)) for each in inputs])
        model.compile(keras.optimizers.SGD(0.5), [make_loss(), make_loss()], **run)
        halves = np.split(x, 2), np.split(y, 2)
        model.fit(halves[0], halves[1], batch_size=BATCH, shuffle=False, verbose=0)
        return trunk, head

    def one_call():
        keras.utils.set_random_seed(3)
        trunk, head = keras.layers.Dense(WIDTH), make_head()
        model = keras.Sequential([keras.Input((WIDTH,)), trunk, head])
        model.compile(keras.optimizers.SGD(0.5), make_loss(), loss_weights=[2.0])
        order = np.arange(len(x)).reshape(2, -1, BATCH).transpose(1, 0, 2).ravel()
        model.fit(x[order], y[order], batch_size=2 * BATCH, shuffle=False, verbose=0)
        return trunk, head

    (trunk, head), (own_trunk, own_head) = two_calls(), one_call()
    np.testing.assert_allclose(trunk.kernel, own_trunk.kernel, rtol=1e-4, atol=1e-6)
    logits = [h.logits(tf.eye(WIDTH)).numpy() for h in (head, own_head)]
    np.testing.assert_allclose(*logits, rtol=1e-4, atol=1e-6)


@heads
def test_two_heads_in_one_model_each_take_their_steps(name):
    make_head, make_loss = HEADS[name]

    def fit(optimizer, batch):
        keras.utils.set_random_seed(3)
        inputs = keras.Input((WIDTH,))
        hidden = keras.layers.Dense(WIDTH)(inputs)
        heads = [make_head(), SelfUpdatingDense(CLASSES)]
        model = keras.Model(inputs, [head(hidden) for head in heads])
        model.compile(optimizer, [make_loss(), tlo.losses.SoftmaxCrossentropy()])
        x, y = data()
        model.fit(x, [y, y], batch_size=batch, shuffle=False, verbose=0)
        return [head.logits(tf.eye(WIDTH)).numpy() for head in heads]

    inner = keras.optimizers.SGD(0.5, gradient_accumulation_steps=2)
    parts = fit(keras.optimizers.LossScaleOptimizer(inner), BATCH)
    for ours, theirs in zip(parts, fit(keras.optimizers.SGD(0.5), 2 * BATCH), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)


# Custom loops


def own_loop(model, optimizer, in_function=True, batch=BATCH):
    """Trains without `fit`; the gradient and the step are in one function, or both eager."""
    loss = model.loss

    def step(x, y):
        with tf.GradientTape() as tape:
            value = optimizer.scale_loss(loss(y, model(x, training=True)))
        weights = model.trainable_variables
        optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))

    run = tf.function(step) if in_function else step
    optimizer.build(model.trainable_variables)
    x, y = data()
    for i in range(0, len(x), batch):
        run(tf.constant(x[i : i + batch]), tf.constant(y[i : i + batch]))
    return model


@heads
@pytest.mark.parametrize("in_function", [True, False], ids=["graph", "eager"])
def test_a_loop_of_ones_own_steps_as_fit_does(name, in_function):
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        model = model_of(name, keras.optimizers.SGD(0.5))
        own_loop(model, model.optimizer, in_function)
        assert_same(model, trained(name, keras.optimizers.SGD(0.5), epochs=1))
        parts = model_of(name, keras.optimizers.SGD(0.5, gradient_accumulation_steps=2))
        own_loop(parts, parts.optimizer, in_function)
        assert_same(parts, trained(name, keras.optimizers.SGD(0.5), batch=2 * BATCH, epochs=1))
        scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
        model = model_of(name, scaled)
        own_loop(model, model.optimizer, in_function)
        assert_same(model, trained(name, keras.optimizers.SGD(0.5), epochs=1))


@heads
def test_a_train_step_of_ones_own_that_calls_layers_one_by_one(name):
    class Own(keras.Sequential):
        def train_step(self, batch):
            x, y = batch
            with tf.GradientTape() as tape:
                hidden = self.layers[0](x)
                value = self.loss(y, self.layers[1](hidden, training=True))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
            return {"loss": value}

    plain = trained(name, keras.optimizers.SGD(0.5), batch=2 * BATCH)
    own = model_of(name, "sgd")
    own = Own([keras.Input((WIDTH,)), *own.layers])
    own.compile(keras.optimizers.SGD(0.5, gradient_accumulation_steps=2), HEADS[name][1]())
    own.fit(*data(), batch_size=BATCH, epochs=2, shuffle=False, verbose=0)
    assert_same(own, plain)


@heads
def test_a_gradient_that_no_step_follows_changes_nothing_and_is_told_once(name):
    model = model_of(name, keras.optimizers.SGD(0.5))
    x, y = data()
    before = weights_of(model)

    @tf.function
    def look():
        with tf.GradientTape() as tape:
            value = model.loss(y, model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    look()
    with pytest.warns(RuntimeWarning, match="no optimizer has taken its step") as told:
        for _ in range(3):
            look()
    assert len([w for w in told if "no optimizer" in str(w.message)]) == 1
    for ours, theirs in zip(weights_of(model), before, strict=True):
        np.testing.assert_array_equal(ours, theirs)


@heads
def test_a_gradient_from_another_function_than_the_step_is_refused(name):
    model = model_of(name, keras.optimizers.SGD(0.5))
    x, y = data()

    @tf.function
    def gradients():
        with tf.GradientTape() as tape:
            value = model.loss(y, model(x, training=True))
        return tape.gradient(value, model.trainable_variables)

    before = weights_of(model)[-1]
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"in the same tf\.function"):
        model.optimizer.apply_gradients(zip(gradients(), model.trainable_variables, strict=True))
    np.testing.assert_array_equal(weights_of(model)[-1], before)


@heads
@pytest.mark.parametrize("scale", [None, 512.0])
def test_the_loss_may_be_in_a_function_of_its_own(name, scale):
    optimizer = keras.optimizers.SGD(0.5, loss_scale_factor=scale)
    model = model_of(name, optimizer)

    @tf.function
    def value_of(x, y):
        return optimizer.scale_loss(model.loss(y, model(x, training=True)))

    x, y = data()
    weights = model.trainable_variables

    def gradients(i):
        with tf.GradientTape() as tape:
            value = value_of(tf.constant(x[i : i + BATCH]), tf.constant(y[i : i + BATCH]))
        return tape.gradient(value, weights)

    gradients(0)  # no step follows: it is dropped
    with pytest.warns(RuntimeWarning, match="no optimizer has taken its step"):
        for i in range(0, len(x), BATCH):
            optimizer.apply_gradients(zip(gradients(i), weights, strict=True))
    assert_same(model, trained(name, keras.optimizers.SGD(0.5), epochs=1))


@heads
def test_a_loop_without_an_optimizer_takes_the_step_itself(name):
    model = model_of(name, keras.optimizers.SGD(0.5))
    model.layers[0].trainable = False
    x, y = data()
    head = model.layers[-1]
    for i in range(0, len(x), BATCH):
        with tf.GradientTape() as tape:
            value = model.loss(y[i : i + BATCH], model(x[i : i + BATCH], training=True))
        tape.gradient(value, head.gradient_anchor.value)
        head.take_step()
    other = model_of(name, keras.optimizers.SGD(0.5))
    other.layers[0].trainable = False
    other.compile(keras.optimizers.SGD(0.5), HEADS[name][1]())
    other.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
    assert_same(model, other)


def test_float16_activations_without_a_known_scale_are_refused():
    model = model_of("dense", "sgd", dtype="mixed_float16")
    loss = model.loss
    bare = keras.Sequential(model.layers)
    with pytest.raises(ValueError, match="must know the optimizer that scales the loss"):
        loss(data()[1], bare(data()[0], training=True))


def test_an_optimizer_that_averages_weights_is_refused_in_a_loop_too():
    model = model_of("dense", "sgd")
    optimizer = keras.optimizers.SGD(0.1, use_ema=True)
    with pytest.raises(ValueError, match="use_ema=True"):
        own_loop(model, optimizer)


def test_a_scale_that_nothing_tells_is_refused():
    model = model_of("dense", "sgd")
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5))
    with pytest.raises(ValueError, match="must know by what the loss is scaled"):
        own_loop(model, scaled)


# Custom loops


@heads
@pytest.mark.parametrize("in_function", [True, False], ids=["graph", "eager"])
def test_a_head_that_is_frozen_and_thawed_in_turns_trains(name, in_function):
    def fit():
        model = model_of(name, keras.optimizers.SGD(0.5))
        head, trunk = model.layers[-1], model.layers[0]
        model.optimizer.build(model.trainable_variables)

        def step(x, y, trains):
            head.trainable = trains
            with tf.GradientTape() as tape:
                value = model.loss(y, model(x, training=True))
            weights = model.trainable_variables if trains else trunk.trainable_variables
            model.optimizer.apply_gradients(
                zip(tape.gradient(value, weights), weights, strict=True)
            )

        def pair(x, y):
            step(x, y, False)
            step(x, y, True)

        run = tf.function(pair) if in_function else pair
        x, y = data()
        before = weights_of(model)[-1]
        for i in range(3):
            part = slice(i * BATCH, (i + 1) * BATCH)
            run(tf.constant(x[part]), tf.constant(y[part]))
        return np.abs(weights_of(model)[-1] - before).max()

    assert fit() > 0.02


@heads
def test_two_optimizers_of_one_gradient_take_one_step(name):
    """A persistent tape, asked once for the trunk and once for the head."""
    model = model_of(name, keras.optimizers.SGD(0.5))
    trunk, head = model.layers
    parts = [(keras.optimizers.SGD(0.5), layer.trainable_variables) for layer in (trunk, head)]
    x, y = data()
    for i in range(0, len(x), BATCH):
        with tf.GradientTape(persistent=True) as tape:
            value = model.loss(y[i : i + BATCH], model(x[i : i + BATCH], training=True))
        for optimizer, weights in parts:
            optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
    assert_same(model, trained(name, keras.optimizers.SGD(0.5), epochs=1))


def trained_by_tape(losses, step_by, traces=None, calls=1, name="sampled"):
    """Trains by gradients of several functions of the loss: `step_by` takes tape, values, model."""
    model = model_of(name, keras.optimizers.SGD(0.5))
    x, y = data(BATCH)

    def values_of_loss():
        logits = model(x, training=True)
        return tf.add_n([model.loss(y, logits) for _ in range(calls)])

    traced = tf.function(values_of_loss) if traces == "call" else values_of_loss

    def step():
        with tf.GradientTape(persistent=True) as tape:
            value = traced()
            values = [of_value(value) for of_value in losses]
        step_by(tape, values, model)

    for _ in range(3):
        tf.function(step)() if traces == "step" else step()
    return model


def apply_last(tape, values, model):
    gradients = [tape.gradient(value, model.trainable_variables) for value in values]
    model.optimizer.apply(gradients[-1], model.trainable_variables)


def look_at_others(tape, values, model):
    gradient = tape.gradient(values[0], model.trainable_variables)
    with model.layers[-1].without_update():
        tape.gradient(values[1], model.trainable_variables)
    model.optimizer.apply(gradient, model.trainable_variables)


@pytest.mark.parametrize("traces", ["step", None])
def test_of_two_gradients_through_one_call_the_last_counts_with_a_warning(traces):
    with pytest.warns(RuntimeWarning, match="two gradients were taken through one call of"):
        model = trained_by_tape([tf.tanh, tf.sqrt], apply_last, traces)
    with warnings.catch_warnings(action="error"):
        assert_same(model, trained_by_tape([tf.sqrt], apply_last))


@pytest.mark.parametrize("traces", ["step", None])
def test_a_second_gradient_without_update_is_only_looked_at(traces):
    with warnings.catch_warnings(action="error"):
        model = trained_by_tape([tf.sqrt, tf.tanh], look_at_others, traces)
        assert_same(model, trained_by_tape([tf.sqrt], apply_last))


@heads
@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("traces", ["call", "step"])
def test_a_persistent_tape_and_a_function_keep_each_call(name, calls, traces):
    with warnings.catch_warnings(action="error"):
        model = trained_by_tape([tf.sqrt], apply_last, traces, calls, name)
        assert_same(model, trained_by_tape([tf.sqrt], apply_last, None, calls, name))


@heads
def test_an_overflow_behind_a_frozen_trunk_lowers_the_scale(name):
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.5), initial_scale=2.0**127)
    model = model_of(name, scaled)
    model.layers[0].trainable = False
    model.compile(scaled, HEADS[name][1](), loss_weights=[1e4])
    before = weights_of(model)[-1]
    model.fit(*data(BATCH), batch_size=BATCH, verbose=0)
    assert float(scaled.dynamic_scale) == 2.0**126
    np.testing.assert_array_equal(weights_of(model)[-1], before)


def test_an_inner_gradient_of_compute_loss_is_no_step():
    class Adversarial(keras.Sequential):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            with tf.GradientTape() as tape:
                tape.watch(x)
                value = self.loss(y, self(x, training=True))
            x = x + 0.01 * tf.sign(tape.gradient(value, x))
            return self.loss(y, self(x, training=True))

    weights = []
    exact = tlo.heads.ExactSoftmaxHead(CLASSES, tlo.optimizers.RowSGD(0.5), backward="all")
    for head in (SelfUpdatingDense(CLASSES), exact, tlo.heads.DenseHead(CLASSES)):
        keras.utils.set_random_seed(3)
        model = Adversarial([keras.Input((WIDTH,)), keras.layers.Dense(WIDTH), head])
        for weight in model.layers[-1].kernel, model.layers[-1].bias:
            weight.assign(np.random.default_rng(1).normal(size=weight.shape))
        model.compile(keras.optimizers.SGD(0.5), tlo.losses.SoftmaxCrossentropy())
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of the gradient that no step follows
            model.fit(*data(), batch_size=BATCH, shuffle=False, verbose=0)
        weights.append([model.layers[0].kernel.numpy(), model.layers[-1].kernel.numpy()])
    for own, exact, plain in zip(*weights, strict=True):
        np.testing.assert_allclose(own, plain, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(exact, plain, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("run_eagerly", [True, *thorough(False)])  # a graph keeps the other alive
@pytest.mark.parametrize("parts", [2, None])
def test_what_another_optimizer_accumulated_is_forgotten(parts, run_eagerly):
    x, y = data()
    models = []
    for before in (2, 0):
        model = model_of("dense", keras.optimizers.SGD(0.5))
        loss = model.loss
        optimizer = keras.optimizers.SGD(0.0, gradient_accumulation_steps=4)
        model.compile(optimizer, loss, run_eagerly=run_eagerly)
        for _ in range(before):
            model.train_on_batch(x[:BATCH], y[:BATCH])
        optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=parts)
        model.compile(optimizer, loss, run_eagerly=run_eagerly)
        model.fit(x, y, batch_size=BATCH, shuffle=False, verbose=0)
        models.append(model)
    assert_same(*models)


def test_accumulated_gradients_that_a_file_does_not_keep_are_told(tmp_path):
    optimizer = keras.optimizers.SGD(0.5, gradient_accumulation_steps=4)
    model = model_of("exact_all", optimizer, run_eagerly=True)
    x, y = data()
    for i in range(2):
        model.train_on_batch(x[i * BATCH : (i + 1) * BATCH], y[i * BATCH : (i + 1) * BATCH])
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    with pytest.warns(RuntimeWarning, match="by the gradients of 2 batches, fewer than"):
        loaded.fit(x[: 2 * BATCH], y[: 2 * BATCH], batch_size=BATCH, verbose=0)


def trained_by_loop(name, change, scale=1.0, eager=False, steps=3, penalty=0.0):
    """Returns a model after steps with the loss scaled and the gradients changed."""
    model = model_of(name, keras.optimizers.SGD(0.5))
    x, y = data(BATCH)

    def step():
        with tf.GradientTape() as tape:
            value = scale * model.loss(y, model(x, training=True))
            squares = map(tf.nn.l2_loss, map(tf.convert_to_tensor, model.trainable_variables))
            value += penalty * tf.add_n([*squares])
        gradients = change(tape.gradient(value, model.trainable_variables))
        model.optimizer.apply(gradients, model.trainable_variables)

    for _ in range(steps):
        step() if eager else tf.function(step)()
    return model


@heads
@pytest.mark.parametrize(("scale", "factor"), [(1.0, 0.1), (1.0, -1.0), (1024.0, 2.0**-10)])
def test_a_user_multiplies_the_gradients_in_a_custom_loop(name, scale, factor):
    model = trained_by_loop(name, lambda gradients: [factor * g for g in gradients], scale)
    assert_same(model, trained_by_loop(name, list, scale * factor))


@pytest.mark.parametrize("eager", [True, False])
def test_a_user_clips_by_a_global_norm_in_a_custom_loop(eager):
    model = model_of("exact_all", keras.optimizers.SGD(0.5))
    before = weights_of(model)
    clipped = trained_by_loop(
        "exact_all", lambda g: tf.clip_by_global_norm(g, 1e-3)[0], eager=eager
    )
    moved = [own - old for own, old in zip(weights_of(clipped), before, strict=True)]
    norm = np.sqrt(sum(np.sum(part**2) for part in moved[:-1]))
    assert norm == pytest.approx(3 * 0.5 * 1e-3, rel=0.01)  # as the trunk's alone
    plain = trained_by_loop("exact_all", list, eager=eager)
    way = [own - old for own, old in zip(weights_of(plain), before, strict=True)]
    ratio = [np.linalg.norm(a) / np.linalg.norm(b) for a, b in zip(moved, way, strict=True)]
    assert ratio[-1] == pytest.approx(ratio[0], rel=0.2) and ratio[0] < 0.1


@pytest.mark.parametrize("name", ["exact_all", *thorough("factored", "sampled")])
def test_a_penalty_on_all_weights_in_a_custom_loop_leaves_the_step_of_the_head_alone(name):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model = trained_by_loop(name, list, penalty=1e-4)
    assert_same(model, trained_by_loop(name, list), atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        lambda g: g + 1e-3 * tf.ones_like(g),
        tf.sign,
        lambda g: g - tf.reduce_mean(g),
        lambda g: tf.cast(tf.cast(g, tf.float16), tf.float32),
        lambda g: g / (tf.norm(g) + 1e-6),
        lambda g: float("nan") * g,
    ],
    ids=["noise", "sign", "centered", "float16", "normed", "nan"],
)
@pytest.mark.parametrize("eager", [True, False])
def test_a_user_changes_gradients_in_another_way_in_a_custom_loop(change, eager):
    with pytest.warns(RuntimeWarning, match="in a way that .* can't follow"):
        model = trained_by_loop("exact_all", lambda gs: [*map(change, gs)], eager=eager, steps=1)
        model.layers[-1].step_context.forward()  # the next step begins
    plain = trained_by_loop("exact_all", list, eager=eager, steps=1)
    np.testing.assert_allclose(weights_of(model)[-1], weights_of(plain)[-1], rtol=1e-5, atol=1e-7)
