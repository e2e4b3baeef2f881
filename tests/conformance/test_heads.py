# SPDX-License-Identifier: Apache-2.0
"""One suite that every head of the table passes."""

from __future__ import annotations

import contextlib
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from conformance.heads_table import HEADS, class_of, first_of_a_class, kind_of
from oracles import class_filter
from oracles import softmax as oracle
from variants import cases_of, each_once, product, thorough

import tfx_largeout as tlo

CLASSES, WIDTH, EXAMPLES, BATCH = 50, 8, 128, 32

# A quick run tries each class of heads in each test, and its rows by turns: see variants.py.
pytestmark = pytest.mark.each_of("row", class_of)

every_head = cases_of("row", HEADS)
# Where the other rows of a class only repeat its code.
every_class = cases_of("row", list(filter(first_of_a_class, HEADS)))


# Data and models


def examples(seed=0, count=EXAMPLES):
    """Points near one of CLASSES centres; the label is the centre."""
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(99).normal(size=(CLASSES, WIDTH))
    labels = rng.integers(0, CLASSES, count)
    x = centres[labels] + 0.1 * rng.normal(size=(count, WIDTH))
    return x.astype("float32"), labels


def trunk(**arguments):
    return keras.layers.Dense(WIDTH, activation="tanh", name="trunk", **arguments)


def functional(row, **arguments):
    inputs = keras.Input((WIDTH,))
    return keras.Model(inputs, row.make_head(CLASSES, **arguments)(trunk()(inputs)))


def sequential(row, **arguments):
    return keras.Sequential([keras.Input((WIDTH,)), trunk(), row.make_head(CLASSES, **arguments)])


def nested(row, **arguments):
    inputs = keras.Input((WIDTH,))
    return keras.Model(inputs, sequential(row, **arguments)(inputs))


class Subclassed(keras.Model):
    def __init__(self, head):
        super().__init__()
        self.trunk = trunk()
        self.head = head

    def call(self, inputs):
        return self.head(self.trunk(inputs))


def subclassed(row, **arguments):
    return Subclassed(row.make_head(CLASSES, **arguments))


KINDS = [functional, sequential, nested, subclassed]


def compiled(model, row, **arguments):
    model.compile(row.make_optimizer(), loss=row.make_loss(), **arguments)
    return model


def head_of(model):
    """The head of a model, however deep it sits."""
    return next(layer for layer in model._flatten_layers() if isinstance(layer, tlo.heads.Head))


def hidden_of(model, x):
    layer = next(layer for layer in model._flatten_layers() if layer.name == "trunk")
    return layer(x).numpy()


def kernel_of(row, head):
    return row.weights(head)[0]


def exact_loss(row, model, x, labels):
    """The oracle's loss of a model, a mean over the examples."""
    lists = [np.atleast_1d(own) for own in labels]
    return row.oracle(hidden_of(model, x), *row.weights(head_of(model)), lists).mean()


def all_logits(row, model, x):
    """The oracle's logits, [N, C]."""
    return row.logits(hidden_of(model, x), *row.weights(head_of(model)))


def state_of(model):
    """All variables except variables of metrics."""
    kept = (v for v in model.variables if "loss" not in v.path and "mean" not in v.path)
    return [keras.ops.convert_to_numpy(v) for v in kept]


def fit(model, x, labels, times=6):
    """Trains on the examples so often, in one epoch: each epoch would make its own iterators."""
    model.fit(np.tile(x, (times, 1)), np.tile(labels, times), batch_size=BATCH, verbose=0)


def train_and_check(model, row, x, labels):
    """Trains; the exact loss falls, as `evaluate`, which changes nothing, and the oracle see it."""
    model(x[:2])
    start = exact_loss(row, model, x, labels)
    fit(model, x, labels)
    end = exact_loss(row, model, x, labels)
    assert end < 0.95 * start
    before = state_of(model)
    np.testing.assert_allclose(
        model.evaluate(x, labels, batch_size=BATCH, verbose=0), end, rtol=1e-5
    )
    for left, right in zip(before, state_of(model), strict=True):
        np.testing.assert_array_equal(left, right)


# In short


@every_class
def test_trains_ranks_and_is_saved(row, tmp_path):
    """Cases that further tests try one by one; in a quick run heads of every class take turns."""
    x, labels = examples()
    model = compiled(functional(row), row)
    train_and_check(model, row, x, labels)
    _, ids = tlo.top_k_model(model, 5)(x)
    np.testing.assert_array_equal(ids, oracle.top_k(all_logits(row, model, x), 5))
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(loaded(x), model(x))


# Training


@pytest.mark.each_of("make_model", lambda make_model: make_model)
@pytest.mark.parametrize(("row", "make_model"), each_once(HEADS, KINDS))
def test_trains_in_every_kind_of_model(row, make_model):
    train_and_check(compiled(make_model(row), row), row, *examples())


@pytest.mark.each_of("row", kind_of)
@every_class
def test_trains_eagerly(row):
    train_and_check(compiled(functional(row), row, run_eagerly=True), row, *examples())


@pytest.mark.each_of("row", kind_of)
@every_class
def test_steps_per_execution_makes_every_update(row):
    x, labels = examples()
    model = compiled(functional(row), row, steps_per_execution=4)
    train_and_check(model, row, x, labels)
    assert int(model.optimizer.iterations) == 6 * EXAMPLES // BATCH


@pytest.mark.parametrize(
    ("row", "policy"), product(HEADS, ["bfloat16", "mixed_bfloat16", "mixed_float16"])
)
def test_trains_in_16_bits(row, policy):
    x, labels = examples()
    keras.config.set_dtype_policy(policy)
    model = compiled(functional(row), row)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        start = model.evaluate(x, labels, verbose=0)
        assert not [w for w in seen if w.category is RuntimeWarning]  # to use them is well
        fit(model, x, labels)
        assert model.evaluate(x, labels, verbose=0) < 0.95 * start
    own = row.weights_dtype[0 if policy == "bfloat16" else 1]
    head = head_of(model)
    assert kernel_of(row, head).dtype.name == own
    owner = f"{type(head).__name__} {head.name!r} trains weights in bfloat16"
    said = [str(w.message) for w in seen if owner in str(w.message)]
    assert len(said) == (own == "bfloat16")
    assert all("mixed_bfloat16" in s for s in said)


@pytest.mark.each_of("row", kind_of)
@every_class
def test_trains_on_a_frozen_trunk_and_leaves_it_alone(row):
    model = functional(row)
    model.get_layer("trunk").trainable = False
    before = model.get_layer("trunk").kernel.numpy()
    train_and_check(compiled(model, row), row, *examples())
    np.testing.assert_array_equal(model.get_layer("trunk").kernel.numpy(), before)


@pytest.mark.thorough
@every_class
def test_an_unbuilt_sequential_model_trains(row):
    x, labels = examples()
    model = compiled(keras.Sequential([trunk(), row.make_head(CLASSES)]), row)
    first = model.fit(x, labels, batch_size=BATCH, verbose=0).history["loss"][0]
    last = model.fit(x, labels, batch_size=BATCH, epochs=8, verbose=0).history["loss"][-1]
    assert last < first


@pytest.mark.each_of("row", kind_of)
@every_class
def test_a_frozen_head_is_not_updated_but_its_trunk_is(row):
    x, labels = examples()
    model = functional(row)
    head_of(model).trainable = False
    compiled(model, row)
    kernel, trunk_kernel = kernel_of(row, head_of(model)), model.get_layer("trunk").kernel.numpy()
    model.fit(x, labels, batch_size=BATCH, verbose=0)
    np.testing.assert_array_equal(kernel_of(row, head_of(model)), kernel)
    assert np.any(model.get_layer("trunk").kernel.numpy() != trunk_kernel)


@pytest.mark.thorough
@every_class
def test_two_heads_on_one_trunk(row):
    x, labels = examples()
    inputs = keras.Input((WIDTH,))
    hidden = trunk()(inputs)
    heads = [row.make_head(CLASSES, name=name) for name in ("left", "right")]
    model = keras.Model(inputs, [head(hidden) for head in heads])
    model.compile(row.make_optimizer(), loss=[row.make_loss(), row.make_loss()])
    before = [kernel_of(row, head) for head in heads]
    start = model.evaluate(x, [labels, labels[::-1]], verbose=0)[0]
    model.fit(x, [labels, labels[::-1]], batch_size=8, verbose=0)
    assert model.evaluate(x, [labels, labels[::-1]], verbose=0)[0] < start
    for head, old in zip(heads, before, strict=True):
        assert np.any(kernel_of(row, head) != old)


@pytest.mark.thorough
@every_class
def test_keras_callbacks_and_outputs_by_name(row, tmp_path):
    x, labels = examples()
    inputs = keras.Input((WIDTH,))
    hidden = trunk()(inputs)
    outputs = {
        "classes": row.make_head(CLASSES, name="classes")(hidden),
        "norm": keras.layers.Dense(1, name="norm")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        row.make_optimizer(),
        loss={"classes": row.make_loss(), "norm": "mse"},
        loss_weights={"classes": 1.0, "norm": 0.1},
        metrics={"classes": [tlo.metrics.PrecisionAtK(1)]},
    )
    y = {"classes": labels, "norm": np.ones((EXAMPLES, 1))}
    best = tmp_path / "best.keras"
    history = model.fit(
        x,
        y,
        validation_data=(x, y),
        epochs=4,
        verbose=0,
        callbacks=[
            keras.callbacks.TensorBoard(tmp_path / "runs", histogram_freq=1),
            keras.callbacks.EarlyStopping("val_classes_precision_at_1", mode="max", patience=4),
            keras.callbacks.ModelCheckpoint(
                best, "val_classes_loss", mode="min", save_best_only=True
            ),
            keras.callbacks.ReduceLROnPlateau("val_loss", patience=1),
        ],
    ).history
    assert "classes_precision_at_1" not in history  # evaluated on validation only
    assert history["val_classes_loss"][-1] < history["val_classes_loss"][0]
    assert keras.saving.load_model(best).evaluate(x, y, verbose=0, return_dict=True)[
        "classes_loss"
    ] == pytest.approx(min(history["val_classes_loss"]), rel=1e-5)
    assert list((tmp_path / "runs").rglob("events.out.*"))


@pytest.mark.thorough
@every_class
def test_a_custom_loop_trains(row):
    x, labels = examples()
    model, loss, optimizer = functional(row), row.make_loss(), row.make_optimizer()

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            value = loss(labels, model(x, training=True))
        gradients = tape.gradient(value, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)

    start = exact_loss(row, model, x, labels)
    optimizer.build(model.trainable_variables)
    for _ in range(20):
        step()
    assert exact_loss(row, model, x, labels) < 0.95 * start


# Evaluation and prediction


@every_head
def test_evaluates_with_label_smoothing(row):
    x, labels = examples()
    model = functional(row)
    value = tlo.losses.SoftmaxCrossentropy(label_smoothing=0.2)(labels, model(x))
    logits = all_logits(row, model, x)
    expected = -(oracle.targets(labels[:, np.newaxis], CLASSES, 0.2) * oracle.log_softmax(logits))
    np.testing.assert_allclose(value, expected.sum(axis=1).mean(), rtol=1e-5)


@every_head
def test_predict_gives_the_logits(row):
    x, _ = examples()
    model = functional(row)
    expected = all_logits(row, model, x)
    np.testing.assert_allclose(model.predict(x, verbose=0), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.each_of("make_model", lambda make_model: make_model)
@pytest.mark.parametrize(("row", "make_model"), each_once(HEADS, KINDS))
def test_top_k_model_gives_the_best_classes(row, make_model):
    x, _ = examples()
    model = make_model(row)
    scores, ids = tlo.top_k_model(model, 5).predict(x, verbose=0)
    logits = model.predict(x, verbose=0)
    np.testing.assert_array_equal(ids, oracle.top_k(all_logits(row, model, x), 5))
    np.testing.assert_allclose(
        scores, np.take_along_axis(logits, ids, axis=-1), rtol=1e-4, atol=1e-5
    )


@every_head
def test_top_k_layer_gives_probabilities(row):
    x, _ = examples()
    model = functional(row)
    hidden = hidden_of(model, x)
    scores, ids = tlo.TopK(head_of(model), 3, activation="softmax")(hidden)
    probabilities = keras.ops.softmax(model.predict(x, verbose=0)).numpy()
    np.testing.assert_allclose(
        scores, np.take_along_axis(probabilities, ids.numpy(), axis=-1), rtol=1e-4
    )


@every_head
def test_top_k_without_excluded_classes(row):
    x, _ = examples()
    model = functional(row)
    seen = np.random.default_rng(3).integers(-1, CLASSES, [len(x), 20])
    allow, category = np.arange(2, CLASSES, 2), np.arange(len(x)) % 3
    categories = np.arange(CLASSES) % 3
    top = tlo.top_k_model(model, 5, exclude=True, allow=allow, categories=categories)
    scores, ids = top.predict([x, seen, category], verbose=0)
    groups = np.where(np.isin(np.arange(CLASSES), allow), categories, -1)
    logits = all_logits(row, model, x)
    may = class_filter.findable(CLASSES, seen, groups, category)
    want_scores, want_ids = class_filter.best(logits, may, 5)
    np.testing.assert_array_equal(ids, want_ids)
    np.testing.assert_allclose(scores, want_scores, rtol=1e-4, atol=1e-5)


# Labels, weights, masks


def label_forms(labels):
    columns = labels[:, np.newaxis]
    padded = np.concatenate([np.full_like(columns, -1), columns, np.full_like(columns, -1)], axis=1)
    return {
        "[B] int64": labels.astype("int64"),
        "[B] int32": labels.astype("int32"),
        "[B, 1]": columns,
        "[B, K]": padded,
        "ragged": tf.RaggedTensor.from_tensor(columns),
        "sparse": tf.sparse.from_dense(columns + 1).with_values(tf.constant(labels)),
    }


@pytest.mark.thorough
@pytest.mark.parametrize(("row", "form"), each_once(HEADS, list(label_forms(np.arange(1)))))
def test_every_form_of_labels_trains_and_means_the_same(row, form):
    x, labels = examples()
    shaped = label_forms(labels)[form]
    data = tf.data.Dataset.from_tensor_slices((x, shaped)).batch(BATCH)
    model = compiled(functional(row), row)
    np.testing.assert_allclose(
        model.evaluate(data, verbose=0), exact_loss(row, model, x, labels), rtol=1e-5
    )
    start = exact_loss(row, model, x, labels)
    model.fit(data.repeat(6), verbose=0)
    assert exact_loss(row, model, x, labels) < 0.95 * start


@every_head
def test_several_labels_an_example(row):
    x, labels = examples()
    lists = [[a, (a + 1) % CLASSES][: 1 + i % 2] for i, a in enumerate(labels)]
    ragged = tf.ragged.constant(lists, dtype=tf.int64)
    data = tf.data.Dataset.from_tensor_slices((x, ragged))
    model = compiled(functional(row), row)
    start = exact_loss(row, model, x, lists)
    np.testing.assert_allclose(row.make_loss()(ragged, model(x)), start, rtol=1e-5)
    model.fit(data.batch(BATCH).repeat(6), verbose=0)
    assert exact_loss(row, model, x, lists) < 0.97 * start


@pytest.mark.each_of("row", lambda row: row.weights)
@every_head
def test_ids_above_two_to_the_24_survive(row):
    classes = 2**24 + 4
    width = {"of_width": 1} if row.is_tied else {}
    head = row.make_head(classes, kernel_initializer="zeros", **width)
    head.build((None, 1))
    row.set_row(head, 2**24 + 1, 3.0)
    model = keras.Sequential([keras.Input((1,)), head])
    compiled(model, row)
    weights = row.weights(head)
    for label in (2**24, 2**24 + 1):  # both are 2^24 in float32
        value = model.evaluate(np.ones((1, 1), "float32"), np.array([label]), verbose=0)
        expected = row.oracle(np.ones((1, 1)), *weights, [[label]])[0]
        np.testing.assert_allclose(value, expected, rtol=1e-5)


@every_head
def test_sample_weights_weigh_the_loss(row):
    x, labels = examples()
    weights = np.random.default_rng(1).uniform(0, 2, EXAMPLES)
    model = functional(row)
    losses = row.oracle(hidden_of(model, x), *row.weights(head_of(model)), labels[:, np.newaxis])
    value = row.make_loss()(labels, model(x), weights)
    np.testing.assert_allclose(value, (weights * losses).mean(), rtol=1e-5)


@pytest.mark.each_of("row", kind_of)
@every_head
def test_examples_of_weight_zero_teach_nothing(row):
    x, labels = examples()
    model = compiled(functional(row), row)
    before = kernel_of(row, head_of(model))
    model.fit(x, labels, sample_weight=np.zeros(EXAMPLES), verbose=0)
    np.testing.assert_array_equal(kernel_of(row, head_of(model)), before)


def sequence_model(row):
    inputs = keras.Input((None,), dtype="int64")
    hidden = keras.layers.Embedding(CLASSES, WIDTH, mask_zero=True)(inputs)
    return keras.Model(inputs, row.make_head(CLASSES)(hidden))


@every_head
def test_several_labels_a_position_and_a_masked_one(row):
    tokens = np.array([[3, 4, 5], [6, 7, 0]])
    labels = np.stack([tokens + 1, np.where(tokens > 4, tokens + 2, -1)], axis=-1)
    model = compiled(sequence_model(row), row)
    valid, embedding = tokens > 0, model.layers[1].embeddings.numpy()
    lists = [[c for c in own if c >= 0] for own in labels[valid]]
    expected = row.oracle(embedding[tokens[valid]], *row.weights(head_of(model)), lists).mean()
    np.testing.assert_allclose(model.evaluate(tokens, labels, verbose=0), expected, rtol=1e-5)


# Saving


@pytest.mark.thorough
@every_head
def test_keras_file_round_trip_and_further_training(row, tmp_path):
    x, labels = examples()
    model = compiled(functional(row), row)
    model.fit(x, labels, batch_size=BATCH, verbose=0)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    assert type(loaded.loss) is type(row.make_loss())
    assert head_of(loaded).get_config() == head_of(model).get_config()
    np.testing.assert_array_equal(loaded.predict(x, verbose=0), model.predict(x, verbose=0))
    train_and_check(loaded, row, x, labels)


@every_class
def test_saved_model_round_trip(row, tmp_path):
    x, _ = examples()
    model = functional(row)
    tf.saved_model.save(model, str(tmp_path / "saved"))
    loaded = tf.saved_model.load(str(tmp_path / "saved"))
    np.testing.assert_allclose(
        loaded.signatures["serving_default"](tf.constant(x))["output_0"],
        model.predict(x, verbose=0),
        rtol=1e-5,
        atol=1e-6,
    )


@every_head
def test_checkpoint_round_trip(row, tmp_path):
    x, labels = examples(count=BATCH)
    model, other = (compiled(functional(row), row, run_eagerly=True) for _ in range(2))
    model.fit(x, labels, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    other.fit(x[:1], labels[:1], epochs=2, verbose=0)
    tf.train.Checkpoint(model=other).restore(path)
    np.testing.assert_array_equal(other(x), model(x))
    assert int(other.optimizer.iterations) == int(model.optimizer.iterations)


@every_class
def test_clone_model(row):
    x, _ = examples()
    model = functional(row)
    clone = keras.models.clone_model(model)
    assert head_of(clone).get_config() == head_of(model).get_config()
    assert not {*map(id, clone.variables)} & {*map(id, model.variables)}
    clone.set_weights(model.get_weights())
    np.testing.assert_array_equal(clone(x), model(x))


@pytest.mark.each_of("row", kind_of)
@every_class
def test_a_healthy_model_passes_the_check_of_numerics(row):
    model = compiled(functional(row), row)
    tf.debugging.enable_check_numerics()
    try:
        model.fit(*examples(), verbose=0)
    finally:
        tf.debugging.disable_check_numerics()


# Replicas and XLA


@every_class
def test_more_than_one_replica_is_refused(row, monkeypatch):
    head = row.make_head(CLASSES)
    x = np.ones((2, WIDTH), "float32")
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        assert head(x).shape == (2, CLASSES)  # one replica is fine
    strategy = tf.distribute.get_strategy()
    monkeypatch.setattr(type(strategy), "num_replicas_in_sync", 2)
    message = r"one replica; got num_replicas_in_sync=2\. .*use tlo.distribute"
    with pytest.raises(RuntimeError, match=message):
        head(x)
    with pytest.raises(RuntimeError, match=message):
        functional(row)
    with pytest.raises(RuntimeError, match=message):
        row.make_head(CLASSES).build((None, WIDTH))


STRATEGIES = {
    "none": contextlib.nullcontext,
    "mirrored": lambda: tf.distribute.MirroredStrategy(["/cpu:0"]).scope(),
    "one_device": lambda: tf.distribute.OneDeviceStrategy("/cpu:0").scope(),
    "multi_worker": lambda: tf.distribute.MultiWorkerMirroredStrategy().scope(),
}


def batches_on_the_host(*arrays):
    """Keras's data of arrays under a strategy, without an iterator over devices.

    TensorFlow frees such an iterator while it fetches, which can kill the process:
    docs/results/reliability.md.
    """
    batches = tf.data.Dataset.from_tensor_slices(arrays).batch(BATCH)
    options = tf.distribute.InputOptions(experimental_fetch_to_device=False)
    return tf.distribute.get_strategy().experimental_distribute_dataset(batches, options)


@pytest.mark.each_of("row", kind_of)
@pytest.mark.parametrize("strategy", ["mirrored", *thorough("one_device", "multi_worker")])
@pytest.mark.parametrize("make_model", [functional, *thorough(subclassed)])
@every_class
def test_one_replica_of_a_strategy_trains_as_none_does(row, make_model, strategy):
    x, labels = examples()
    ends = []
    for name in ("none", strategy):
        keras.utils.set_random_seed(5)
        with STRATEGIES[name]():
            model = compiled(make_model(row), row, metrics=[tlo.metrics.PrecisionAtK(1)])
            batches, few = batches_on_the_host(x, labels), batches_on_the_host(x[:5])
        history = model.fit(batches, epochs=3, verbose=0)
        ends.append(
            (
                history.history["loss"],
                model.evaluate(batches, verbose=0),
                model.predict(few, verbose=0),
            )
        )
    for left, right in zip(*ends, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6)
    assert history.history["loss"][-1] < history.history["loss"][0] or row.name == "tf_nce"


@pytest.mark.each_of("row", lambda row: "any")
@every_class
def test_keras_warns_of_jit_compile_and_trains_without_it(row):
    with pytest.warns(UserWarning, match="doesn't support `jit_compile=True`"):
        model = compiled(functional(row), row, jit_compile=True)
    train_and_check(model, row, *examples())
