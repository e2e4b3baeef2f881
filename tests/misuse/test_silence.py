# SPDX-License-Identifier: Apache-2.0
"""Cases that once failed silently: they are now correct, or a warning says what to do."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS, first_of_a_class
from misuse.case import CLASSES, EXAMPLES, WIDTH, Case, steps_of
from misuse.misuse_table import factored, row_updating, sampled, self_updating, tree
from variants import cases_of, thorough

import tfx_largeout as tlo
from tfx_largeout.heads.base import HeadOutput
from tfx_largeout.heads.keras_losses_and_metrics import losses_of
from tfx_largeout.labels import normalize_labels


def rows(concerns):
    return cases_of("row", [row for row in HEADS if concerns(row)])


def counts_steps(row):
    """The heads of the package that update themselves, each class once: it is their code."""
    return first_of_a_class(row) and (row_updating(row) or factored(row))


@pytest.fixture
def case(row, tmp_path):
    return Case(row, tmp_path)


class Rates(keras.callbacks.Callback):
    """Notes the rate of the head in each step."""

    def __init__(self, head):
        super().__init__()
        self.head, self.seen = head, []

    def on_train_batch_end(self, batch, logs=None):
        owner = getattr(self.head, "optimizer", self.head)
        self.seen.append(float(self.head.followed(owner.learning_rate)))


def rates(model, case, rate=0.1, epochs=4, **arguments):
    """Trains with SGD at a rate and returns the head's rates, relative to the first."""
    optimizer = keras.optimizers.SGD(rate)
    noted = Rates(model.layers[-1])
    callbacks = [noted, *arguments.pop("callbacks", [])]
    case.compile(model, optimizer=arguments.pop("optimizer", optimizer))
    model.fit(case.x, case.y, epochs=epochs, callbacks=callbacks, verbose=0, **arguments)
    return np.array(noted.seen)


# The learning rate


@rows(self_updating)
def test_evaluation_with_a_loss_of_keras_goes_on_working(case):
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    case.compile(case.model, loss=loss)
    logits = case.model.predict(case.x, verbose=0)
    expected = float(tf.reduce_mean(loss(case.y, logits)))
    assert case.model.evaluate(case.x, case.y, verbose=0) == pytest.approx(expected, rel=1e-5)


@rows(counts_steps)
def test_the_head_follows_a_scheduler_of_learning_rates(case):
    model = case.make_model()
    own = float(getattr(model.layers[-1], "optimizer", model.layers[-1]).learning_rate)
    halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 * 0.5**epoch)
    np.testing.assert_allclose(
        rates(model, case, callbacks=[halving]), own * 0.5 ** np.arange(4), rtol=1e-6
    )


@rows(counts_steps)
def test_a_lower_rate_of_the_model_makes_shorter_steps(case):
    def change(rate):
        keras.utils.set_random_seed(1)
        model = case.compile(case.make_model(), optimizer=keras.optimizers.SGD(0.1))
        before = None
        for rate_now in (0.1, rate):
            model.optimizer.learning_rate = rate_now
            before = case.row.weights(model.layers[-1])[0].astype("float64")
            model.fit(case.x, case.y, verbose=0)
        return np.linalg.norm(case.row.weights(model.layers[-1])[0] - before)

    # bfloat16 is far away; optimizers divide by earlier gradients, so not by exactly 100
    assert change(0.001) == pytest.approx(change(0.1) / 100, rel=0.02)


@rows(counts_steps)
def test_the_head_follows_reduce_lr_on_plateau(case):
    plateau = keras.callbacks.ReduceLROnPlateau(
        "loss", factor=0.1, patience=1, min_delta=1e9, verbose=0
    )
    seen = rates(case.make_model(), case, callbacks=[plateau])
    assert seen[-1] == pytest.approx(0.01 * seen[0], rel=1e-5)


@rows(counts_steps)
def test_the_head_follows_a_schedule_of_the_model(case):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    model = case.make_model()
    case.compile(model, optimizer=keras.optimizers.SGD(schedule))
    own = float(getattr(model.layers[-1], "optimizer", model.layers[-1]).learning_rate)
    seen = rates(model, case, optimizer=keras.optimizers.SGD(schedule))
    # noted at the end of a batch, when the model has counted the step
    np.testing.assert_allclose(seen, own * 0.5 ** np.arange(1, 5), rtol=1e-5)


@rows(counts_steps)
def test_a_warm_up_is_followed_with_a_reference_and_told_without(case):
    warm_up = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 * (epoch + 1) / 4)
    with pytest.warns(RuntimeWarning, match="give it model_rate="):
        left_out = rates(case.make_model(), case, callbacks=[warm_up])
    np.testing.assert_allclose(left_out, left_out[0], rtol=1e-6)
    followed = rates(case.make_model(model_rate=0.1), case, callbacks=[warm_up])
    np.testing.assert_allclose(followed, left_out[0] * np.arange(1, 5) / 4, rtol=1e-6)


@rows(counts_steps)
def test_while_the_rate_of_the_model_is_0_the_head_stands_still(case):
    model = case.make_model()
    rates(model, case)
    model.optimizer.learning_rate = 0.0
    before = case.row.weights(model.layers[-1])[0]
    model.fit(case.x, case.y, verbose=0)
    np.testing.assert_array_equal(case.row.weights(model.layers[-1])[0], before)


@rows(counts_steps)
def test_a_head_may_keep_its_own_rate(case):
    halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate / 2)
    seen = rates(case.make_model(model_rate=None), case, callbacks=[halving])
    np.testing.assert_array_equal(seen, seen[0])


@rows(counts_steps)
def test_a_loaded_model_goes_on_at_the_rate_it_had(case):
    halving = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.1 * 0.5**epoch)
    model = case.make_model()
    last = rates(model, case, callbacks=[halving])[-1]
    model.save(case.folder / "model.keras")
    loaded = keras.saving.load_model(case.folder / "model.keras")
    noted = Rates(loaded.layers[-1])
    loaded.fit(case.x, case.y, callbacks=[noted], verbose=0)
    assert noted.seen == [pytest.approx(last, rel=1e-6)]


@pytest.mark.thorough
@rows(counts_steps)
def test_another_optimizer_of_the_model_sets_another_reference(case):
    model = case.make_model()
    first = rates(model, case)
    second = rates(model, case, optimizer=keras.optimizers.Adam(0.001))
    np.testing.assert_array_equal(second, first)


@pytest.mark.thorough
@rows(counts_steps)
def test_after_loading_another_optimizer_sets_another_reference_too(case):
    model = case.make_model()
    first = rates(model, case)
    model.save(case.folder / "model.keras")
    loaded = keras.saving.load_model(case.folder / "model.keras", compile=False)
    second = rates(loaded, case, optimizer=keras.optimizers.Adam(0.001))
    np.testing.assert_array_equal(second, first)


@rows(counts_steps)
def test_a_head_that_is_called_alone_follows_nothing_but_the_fit_around_it(case):
    head = case.make_head()
    x, loss = tf.constant(case.x), case.row.make_loss()
    with tf.GradientTape() as tape:
        tape.watch(x)
        value = loss(case.y, head(x, training=True))
    tape.gradient(value, x)
    owner = getattr(head, "optimizer", head)
    owner.learning_rate = 0.01
    assert float(head.followed(owner.learning_rate)) == pytest.approx(0.01)
    assert float(head.highest_model_rate) == 0

    class Own(keras.Model):
        def __init__(self):
            super().__init__()
            self.head = head

        def call(self, inputs):
            return self.head(inputs)

        def train_step(self, data):
            with tf.GradientTape() as tape:
                value = loss(data[1], self.head(data[0], training=True))
            weights = self.trainable_variables
            self.optimizer.apply_gradients(zip(tape.gradient(value, weights), weights, strict=True))
            return {"loss": value}

    model = Own()
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(case.x, case.y, verbose=0)
    assert float(head.highest_model_rate) == pytest.approx(0.1)


# Updates


@rows(lambda row: sampled(row) and row.name != "sampled_in_batch")  # which draws nothing
def test_a_frozen_head_goes_on_drawing(case):
    model = case.make_model()
    model.layers[-1].trainable = False
    case.compile(model)
    head, drawn = model.layers[-1], []

    class Draws(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            labels = HeadOutput(head, tf.zeros([1, WIDTH]), False).labels([0])
            drawn.append(head.candidates(tf.ones([1, WIDTH]), labels).ids.numpy().tobytes())

    model.fit(case.x, case.y, epochs=6, callbacks=[Draws()], verbose=0)
    assert len(set(drawn)) > 1
    assert steps_of(head) == 6


@rows(counts_steps)
@pytest.mark.parametrize("eagerly", [False, *thorough(True)], ids=["graph", "eager"])
def test_without_update_around_fit(case, eagerly):
    model = case.compile(case.make_model(), run_eagerly=eagerly)
    head, taken = model.layers[-1], []
    for looking in (True, False, True, False):
        before = case.row.weights(head)[0]
        if looking:
            with head.without_update():
                model.fit(case.x, case.y, verbose=0)
        else:
            model.fit(case.x, case.y, verbose=0)
        taken.append(steps_of(head))
        assert np.array_equal(before, case.row.weights(head)[0]) == looking
    assert taken == [0, 1, 1, 2]


@rows(counts_steps)
def test_without_update_within_a_function_and_around_it(case):
    head, model = case.head, case.model
    start = steps_of(head)

    @tf.function
    def gradient(look):
        def take():
            with tf.GradientTape() as tape:
                value = case.row.make_loss()(case.y, model(case.x, training=True))
            gradient = tape.gradient(value, model.get_layer("trunk").kernel)
            head.take_step()
            return gradient

        if look:
            with head.without_update():
                return take()
        return take()

    looked = gradient(True)
    assert steps_of(head) == start
    with head.without_update():
        around = gradient(False)
    assert steps_of(head) == start
    np.testing.assert_array_equal(looked, around)
    np.testing.assert_array_equal(gradient(False), around)
    assert steps_of(head) == start + 1


@rows(counts_steps)
def test_without_update_is_refused_where_another_function_would_keep_it(case):
    head, model = case.head, case.model
    start = steps_of(head)

    @tf.function
    def inner():
        with tf.GradientTape() as tape:
            value = case.row.make_loss()(case.y, model(case.x, training=True))
        gradient = tape.gradient(value, model.get_layer("trunk").kernel)
        head.take_step()
        return gradient

    @tf.function
    def outer():
        with head.without_update():
            return inner()

    with pytest.raises(RuntimeError, match="must be entered in the function that calls the head"):
        outer()
    assert steps_of(head) == start
    inner()
    assert steps_of(head) == start + 1


@rows(counts_steps)
def test_without_update_within_a_loop_of_a_function(case):
    head, model = case.head, case.model
    start = steps_of(head)

    @tf.function
    def look():
        total = tf.zeros_like(model.get_layer("trunk").kernel)
        with head.without_update():
            for _ in tf.range(3):
                with tf.GradientTape() as tape:
                    value = case.row.make_loss()(case.y, model(case.x, training=True))
                total += tape.gradient(value, model.get_layer("trunk").kernel)
        return total

    assert np.any(look().numpy() != 0)
    assert steps_of(head) == start


class Look(keras.callbacks.Callback):
    """Computes a gradient of the training loss after each step."""

    def __init__(self, case, head, silently):
        super().__init__()
        self.case, self.head, self.silently = case, head, silently

    def take(self):
        case = self.case
        with tf.GradientTape() as tape:
            value = self.model.compute_loss(case.x, case.y, self.model(case.x, training=True))
        tape.gradient(value, self.model.trainable_variables)

    def on_train_batch_end(self, batch, logs=None):
        if self.silently:
            with self.head.without_update():
                self.take()
        else:
            self.take()


@rows(counts_steps)
def test_who_looks_in_training_changes_nothing_and_is_told_once(case):
    head, model = case.head, case.model
    start = steps_of(head)
    with pytest.warns(RuntimeWarning, match=r"no optimizer has taken.*without_update") as told:
        case.fit(epochs=4, graph=True, callbacks=[Look(case, head, silently=False)])
    assert len([w for w in told if "no optimizer" in str(w.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        case.fit(epochs=4, graph=True, callbacks=[Look(case, head, silently=True)])
    assert steps_of(head) == start + 8
    assert model.optimizer.iterations == 9


# Metrics, monitors


@rows(first_of_a_class)
@pytest.mark.parametrize("eagerly", [False, *thorough(True)], ids=["graph", "eager"])
def test_training_logs_have_no_metric_that_training_does_not_measure(case, eagerly):
    metrics = [tlo.metrics.PrecisionAtK(1), tlo.metrics.Perplexity()]
    model = case.compile(case.make_model(), metrics=metrics, run_eagerly=eagerly)
    data = (case.x, case.y)
    history = model.fit(*data, validation_data=data, epochs=2, verbose=0).history
    assert set(history) == {"loss", "val_loss", "val_precision_at_1", "val_perplexity"}
    values = model.evaluate(*data, verbose=0, return_dict=True)
    assert values["precision_at_1"] == pytest.approx(history["val_precision_at_1"][-1])


@rows(sampled)
def test_keras_says_what_to_monitor_instead(case):
    model = case.compile(case.make_model(), metrics=[tlo.metrics.PrecisionAtK(1)])
    data = (case.x, case.y)
    with pytest.warns(UserWarning, match="is not available. Available metrics are.*val_precision"):
        model.fit(
            *data,
            validation_data=data,
            epochs=2,
            callbacks=[keras.callbacks.EarlyStopping("precision_at_1", mode="max")],
            verbose=0,
        )


@rows(sampled)
def test_a_metric_that_is_asked_to_is_in_the_training_logs(case):
    metrics = [tlo.metrics.PrecisionAtK(1, during_training=True)]
    model = case.compile(case.make_model(), metrics=metrics)
    assert np.isfinite(model.fit(case.x, case.y, verbose=0).history["precision_at_1"]).all()


# Dtypes and shapes


@cases_of("name", losses_of(tlo.heads.SampledHead.gives))
def test_every_loss_of_candidates_trains_in_float64(name):
    keras.config.set_dtype_policy("float64")
    head = tlo.heads.SampledHead(
        CLASSES, tlo.samplers.Uniform(5), tlo.optimizers.RowAdam(0.05), seed=1
    )
    model = keras.Sequential([keras.Input((WIDTH,)), head])
    model.compile("sgd", getattr(tlo.losses, name)())
    rng = np.random.default_rng(2)
    x, y = rng.normal(size=(40, WIDTH)), rng.integers(0, 3, 40)
    start = model.evaluate(x, y, verbose=0)
    model.fit(np.tile(x, (30, 1)), np.tile(y, 30), batch_size=10, verbose=0)
    assert model.evaluate(x, y, verbose=0) < start
    assert head.kernel.dtype == "float64"


@rows(first_of_a_class)
def test_sample_weights_may_change_their_rank(case):
    weights = np.random.default_rng(1).uniform(0.5, 2, EXAMPLES)
    model = case.model
    model.run_eagerly = False
    values = [
        model.evaluate(case.x, case.y, sample_weight=w, verbose=0)
        for w in (weights, weights[:, np.newaxis], weights)
    ]
    np.testing.assert_allclose(values, values[0], rtol=1e-6)
    for w in (weights, weights[:, np.newaxis]):
        model.fit(case.x, case.y, sample_weight=w, verbose=0)


@rows(first_of_a_class)
def test_class_weight_with_one_label_an_example_is_right(case):
    class_weight = {int(c): 1.0 + i for i, c in enumerate(np.unique(case.y))}
    weights = np.array([class_weight[int(c)] for c in case.y])
    results = []
    for arguments in ({"class_weight": class_weight}, {"sample_weight": weights}):
        keras.utils.set_random_seed(1)
        model = case.compile(case.make_model())
        history = model.fit(case.x, case.y, verbose=0, shuffle=False, **arguments).history
        results.append(history["loss"])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-6)


@rows(tree)
def test_the_average_of_weights_of_one_tree_is_taken(case):
    weights = case.model.get_weights()
    case.model.set_weights([np.mean([weight, weight], axis=0) for weight in weights])
    assert np.isfinite(case.model.evaluate(case.x, case.y, verbose=0))


@pytest.mark.parametrize("labels", [[[0, 1, -1], [1, -1, -1]], [[1, -1, -1], [1, -1, -1]]])
def test_few_classes_as_padded_ids_are_no_indicators(labels):
    ids = normalize_labels(np.array(labels), 3).ids
    assert ids.numpy().tolist() == labels


# Names


@pytest.mark.parametrize(
    "head", [row.make_head for row in HEADS if self_updating(row)], ids=lambda f: ""
)
def test_the_losses_that_errors_name_are_those_of_the_family(head):
    head = head(CLASSES)
    if type(head).__module__.startswith("tfx_largeout."):
        family = {
            name
            for name, loss in vars(tlo.losses).items()
            if isinstance(loss, type)
            and issubclass(loss, tlo.losses.HeadLoss)
            and getattr(loss, "trains_on", None) in head.gives
            and loss.from_statistics is not tlo.losses.HeadLoss.from_statistics
        }
        of_package = {name for name in losses_of(head.gives) if hasattr(tlo.losses, name)}
        assert of_package == family


# Losses of probabilities


@pytest.mark.parametrize(
    "loss",
    [
        "sparse_categorical_crossentropy",
        keras.losses.sparse_categorical_crossentropy,
        keras.losses.SparseCategoricalCrossentropy(),
        keras.losses.CategoricalCrossentropy(label_smoothing=0.1),
        ["sparse_categorical_crossentropy"],
        keras.losses.SparseCategoricalCrossentropy,
    ],
    ids=["name", "function", "sparse", "one_hot", "list", "class"],
)
def test_a_keras_loss_of_probabilities_is_refused(loss):
    model = keras.Sequential([keras.Input((WIDTH,)), tlo.heads.DenseHead(CLASSES)])
    model.compile("sgd", loss)
    before = model.get_weights()
    with pytest.raises(ValueError, match=r"must be one of logits, .*from_logits=True, .*Softmax"):
        model.fit(np.ones((4, WIDTH)), np.zeros(4, int), verbose=0)
    for own, old in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(own, old)


def test_losses_of_logits_and_of_what_follows_a_head_train():
    ends = [keras.layers.Softmax()]
    for loss, tail in (
        (keras.losses.SparseCategoricalCrossentropy(from_logits=True), []),
        ("sparse_categorical_crossentropy", ends),
    ):
        model = keras.Sequential([keras.Input((WIDTH,)), tlo.heads.DenseHead(CLASSES), *tail])
        model.compile("sgd", loss)
        model.fit(np.ones((4, WIDTH)), np.zeros(4, int), verbose=0)


def test_models_of_which_less_is_known_train():
    class Joined(keras.layers.Layer):
        def call(self, inputs):
            return inputs[0] + inputs[1]

    class Own(keras.Model):
        def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
            return super().compute_loss(x, y, keras.ops.softmax(y_pred), sample_weight, training)

    x, y = np.ones((4, WIDTH), "float32"), np.zeros(4, int)
    model = keras.Sequential([Joined(), tlo.heads.DenseHead(CLASSES)])  # has no graph
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy())
    model.fit([x, x], y, verbose=0)
    inputs = keras.Input((WIDTH,))
    model = Own(inputs, tlo.heads.DenseHead(CLASSES)(inputs))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, verbose=0)
    model = keras.Model(inputs, tlo.heads.DenseHead(CLASSES)(inputs))
    model.compile("sgd", "sparse_categorical_crossentropy")
    with tf.GradientTape() as tape:  # a look at gradients, not the step that would go wrong
        variable = tf.Variable(x)
        total = tf.reduce_sum(model(variable))
    assert tape.gradient(total, variable) is not None


def test_a_head_of_candidates_names_its_own_losses():
    embedding = keras.layers.Embedding(CLASSES, WIDTH)
    head = tlo.heads.TiedSampledHead(embedding, tlo.samplers.Uniform(5))
    model = keras.Sequential([keras.Input((WIDTH,)), head])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match=r"Use a loss of tlo\.losses: .*SampledSoftmax"):
        model.fit(np.ones((4, WIDTH)), np.zeros(4, int), verbose=0)


def test_a_head_takes_no_activation():
    with pytest.raises(TypeError, match=r"takes no activation; got .*softmax"):
        tlo.heads.DenseHead(CLASSES, activation="softmax")


# Told, as the outcome is not as in Keras


@rows(lambda row: first_of_a_class(row) and self_updating(row))
@pytest.mark.parametrize("option", ["global_clipnorm", *thorough("clipnorm", "clipvalue")])
def test_clipping_and_decay_of_the_model_do_not_reach_a_head_and_are_told(case, option):
    optimizer = keras.optimizers.SGD(0.1, **{option: 2.0, "weight_decay": 0.25})
    with pytest.warns(RuntimeWarning) as found:
        case.fit_with(optimizer=optimizer)
    assert options_told(found) == [f"{option}=2", "weight_decay=0.25"]


def options_told(found):
    texts = [str(one.message) for one in found]
    texts = [text for text in texts if "does not apply to the weights of classes" in text]
    return [text.partition(" of the model's optimizer does not")[0] for text in texts]


@rows(first_of_a_class)
def test_a_loss_as_a_metric_is_told_to_be_of_the_changed_weights(case):
    model = case.make_model()
    case.compile(model, metrics=[case.row.make_loss()], run_eagerly=True)
    with pytest.warns(RuntimeWarning, match="is a loss: in training it is computed after") as told:
        model.fit(case.x, case.y, epochs=2, verbose=0)
    assert len([each for each in told if "is a loss" in str(each.message)]) == 1
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss, of_metric = model.evaluate(case.x, case.y, verbose=0)
    assert of_metric == pytest.approx(loss, rel=1e-6)


@pytest.mark.parametrize(
    ("of_model", "own", "told"),
    [
        (
            lambda: keras.optimizers.AdamW(0.1, clipnorm=2.0),
            {},
            ["clipnorm=2", "weight_decay=0.004"],
        ),
        (
            lambda: tlo.optimizers.RowAdam(0.1, weight_decay=0.1, row_clip_norm=2),
            {},
            ["row_clip_norm=2", "weight_decay=0.1"],
        ),
        (lambda: keras.optimizers.AdamW(0.1, clipnorm=2.0), {"weight_decay": 0.1}, ["clipnorm=2"]),
        (lambda: keras.optimizers.AdamW(0.1), {"weight_decay": 0.1, "row_clip_norm": 1.0}, []),
        (lambda: keras.optimizers.SGD(0.1, weight_decay=tf.Variable(0.5)), {}, ["weight_decay"]),
        (lambda: keras.optimizers.SGD(0.1, weight_decay=0), {}, []),
    ],
)
@pytest.mark.parametrize("loop", [False, True])
def test_options_of_the_models_optimizer_are_told_where_the_head_has_none(
    of_model, own, told, loop
):
    head = tlo.heads.ExactSoftmaxHead(CLASSES, tlo.optimizers.RowSGD(0.1, **own))
    model, optimizer = keras.Sequential([keras.Input((WIDTH,)), head]), of_model()
    loss, x, y = tlo.losses.SoftmaxCrossentropy(), tf.ones((4, WIDTH)), tf.zeros(4, tf.int32)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        for _ in range(2):
            if not loop:
                model.compile(optimizer, loss)
                model.fit(x, y, verbose=0)
                continue
            with tf.GradientTape() as tape:
                value = loss(y, model(x, training=True))
            optimizer.apply(tape.gradient(value, model.trainable_weights), model.trainable_weights)
    assert options_told(found) == told
