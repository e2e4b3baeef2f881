# SPDX-License-Identifier: Apache-2.0
"""Runs that are interrupted with `Checkpoint` and continue, compared with uninterrupted runs."""

from __future__ import annotations

import contextlib
import json
import random
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout.callbacks import Checkpoint
from tfx_largeout.callbacks.checkpoint_file import CheckpointFile, write_checkpoint
from tfx_largeout.callbacks.checkpoint_folder import CheckpointFolder, Position, Snapshot, StoredRun
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.callbacks.run_state import callback_state, restore_callback
from tfx_largeout.datasets import SparseExamples

pytestmark = pytest.mark.cpu  # resumed runs are the same to the last bit

CLASSES, WIDTH, EXAMPLES, BATCH, EPOCHS = 40, 6, 48, 8, 3
BATCHES = EXAMPLES // BATCH
rng = np.random.default_rng(0)
X = rng.normal(size=(EXAMPLES, WIDTH)).astype("float32")
Y = rng.integers(0, CLASSES, EXAMPLES)


def of_epoch(epoch):
    order = np.random.default_rng(epoch).permutation(EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((X[order], Y[order])).batch(BATCH)


def sampled_head(seed=3, classes=CLASSES, optimizer=None):
    sampler = tlo.samplers.Uniform(10)
    return tlo.heads.SampledHead(
        classes, sampler, optimizer or tlo.optimizers.RowAdam(0.02), seed=seed
    )


def narrow_head():
    optimizer = tlo.optimizers.RowAdam(
        0.02, row_wise=True, moment_dtype="bfloat16", stochastic_rounding=True
    )
    sampler = tlo.samplers.Uniform(10)
    return tlo.heads.SampledHead(CLASSES, sampler, optimizer, seed=3, dtype="bfloat16")


def indexed_head():
    index = tlo.indexes.HashIndex(
        tlo.indexes.SimHash(), num_tables=4, hashes_per_table=3, first_period=3
    )
    sampler = tlo.samplers.LSHEmbedding(8, tlo.samplers.Uniform(4))
    return tlo.heads.SampledHead(
        CLASSES, sampler, tlo.optimizers.RowAdagrad(0.1), seed=1, index=index
    )


HEADS = {
    "keras": (layers.Dense, lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True)),
    "dense": (tlo.heads.DenseHead, tlo.losses.SoftmaxCrossentropy),
    "sampled": (lambda _: sampled_head(), tlo.losses.SampledSoftmax),
    "index": (lambda _: indexed_head(), tlo.losses.ComplementarySum),
    "bfloat16": (lambda _: narrow_head(), tlo.losses.SampledSoftmax),
    "factored": (
        lambda classes: tlo.heads.FactoredHead(classes, 0.02, use_bias=True),
        tlo.losses.SphericalSoftmax,
    ),
    "hierarchical": (
        lambda classes: tlo.heads.HierarchicalSoftmaxHead(classes, tlo.optimizers.RowSGD(0.1)),
        tlo.losses.NegativeLogLikelihood,
    ),
}


def model_with(head, loss, optimizer=None, **options):
    stack = [layers.Dense(5, "relu"), layers.Dropout(0.4), head]
    model = keras.Sequential([keras.Input((WIDTH,)), *stack])
    model.compile(optimizer or keras.optimizers.Adam(0.01), loss, **options)
    return model


def model_of(kind="keras", **options):
    keras.utils.set_random_seed(5)
    make, loss = HEADS[kind]
    return model_with(make(CLASSES), loss(), **options)


class Killed(Exception):
    pass


class Kill(keras.callbacks.Callback):
    """Ends training with an error after `after` steps of this process."""

    def __init__(self, after):
        super().__init__()
        self.left = after

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            raise Killed


def fit(model, checkpoint, called=(), after=None, of=of_epoch, epochs=EPOCHS, **options):
    kill = [] if after is None else [Kill(after)]
    return model.fit(
        checkpoint.data(of),
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[*called, checkpoint, *kill],
        **options,
    ).history


def interrupted(make, checkpoint, after, **options):
    with pytest.raises(Killed):
        fit(make(), checkpoint(), after=after, **options)


def state(model):
    return [read() for _, read in ModelState(model).arrays()]


def assert_same_state(model, other):
    pairs = list(zip(ModelState(model).arrays(), ModelState(other).arrays(), strict=True))
    assert len(pairs) >= 8
    for (name, one), (_, two) in pairs:
        np.testing.assert_array_equal(one(), two(), err_msg=name)


@pytest.mark.parametrize(
    ("kind", "every"),
    [
        *(("keras", "epoch"), ("factored", 4)),
        # Their state is of kinds that others cover, except for an index, which takes long.
        pytest.param("index", 4, marks=pytest.mark.thorough),
        pytest.param("keras", 4, marks=pytest.mark.thorough),
        pytest.param("dense", 4, marks=pytest.mark.thorough),
        pytest.param("sampled", 4, marks=pytest.mark.thorough),
        pytest.param("hierarchical", 4, marks=pytest.mark.thorough),
    ],
)
def test_goes_on_as_if_never_interrupted(kind, every, tmp_path):
    is_plain = kind == "keras"
    evaluation = {"validation_data": (X[:8], Y[:8])} if is_plain else {}

    def make():
        return model_of(kind, metrics=["accuracy"] if is_plain else [])

    whole = make()
    expected = fit(whole, Checkpoint(tmp_path / "whole", every), **evaluation)
    for after in (BATCHES + 3, 5) if is_plain else (BATCHES + 3,):
        interrupted(make, lambda: Checkpoint(tmp_path / "run", every), after, **evaluation)
    model = make()
    keras.utils.set_random_seed(99)  # nothing depends on how the second process begins
    history = fit(model, Checkpoint(tmp_path / "run", every), **evaluation)
    assert_same_state(model, whole)
    assert history == expected
    assert len(history["loss"]) == EPOCHS


def test_gradients_that_are_accumulated_when_a_run_ends_are_not_lost(tmp_path):
    """It is saved after 4 and 8 batches, in the middle of steps by 3."""

    def make():
        keras.utils.set_random_seed(5)
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        return model_with(sampled_head(), tlo.losses.SampledSoftmax(), optimizer)

    whole, model = make(), make()
    fit(whole, Checkpoint(tmp_path / "whole", 4))
    interrupted(make, lambda: Checkpoint(tmp_path / "run", 4), after=BATCHES + 5)
    fit(model, Checkpoint(tmp_path / "run", 4))
    assert_same_state(model, whole)


def test_gradients_that_are_accumulated_do_not_go_to_other_workers(tmp_path, monkeypatch):
    """Each worker has a part of them; between two steps there are none."""

    def make():
        optimizer = keras.optimizers.SGD(0.1, gradient_accumulation_steps=3)
        return model_with(sampled_head(), tlo.losses.SampledSoftmax(), optimizer)

    for every in (3, 4):
        interrupted(make, lambda every=every: Checkpoint(tmp_path / str(every), every), after=5)
    monkeypatch.setattr(StoredRun, "is_of_others", True)
    fit(make(), Checkpoint(tmp_path / "3", 3))
    model = make()
    start = model.get_weights()
    with pytest.raises(
        ValueError, match=r"between two steps of gradient_accumulation_steps.*of 1 "
    ):
        fit(model, Checkpoint(tmp_path / "4", 4))
    for old, new in zip(start, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_a_run_under_it_is_the_run_without_it(tmp_path):
    plain, watched = model_of(), model_of()
    for epoch in range(EPOCHS):
        plain.fit(of_epoch(epoch), initial_epoch=epoch, epochs=epoch + 1, verbose=0, shuffle=False)
    fit(watched, Checkpoint(tmp_path, 4))
    for one, two in zip(plain.get_weights(), watched.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.mark.thorough
def test_sparse_examples(tmp_path):
    splits = np.arange(EXAMPLES + 1)
    examples = SparseExamples(
        feature_splits=splits * 2,
        feature_ids=np.stack([Y % 9, 9 + Y % 7], axis=1).reshape(-1),
        feature_values=np.ones(2 * EXAMPLES),
        label_splits=splits,
        label_ids=Y,
        num_features=16,
        num_labels=CLASSES,
    )

    def make():
        keras.utils.set_random_seed(5)
        stack = [tlo.layers.SparseDense(4), layers.Dropout(0.4), sampled_head()]
        model = keras.Sequential([keras.Input((16,), sparse=True), *stack])
        model.compile(tlo.optimizers.RowAdam(0.01), tlo.losses.SampledSoftmax(), jit_compile=False)
        return model

    def of(epoch):
        return examples.dataset(BATCH, shuffle=True, seed=epoch)

    whole, model = make(), make()
    fit(whole, Checkpoint(tmp_path / "whole", 4), of=of)
    interrupted(make, lambda: Checkpoint(tmp_path / "run", 4), 11, of=of)
    fit(model, Checkpoint(tmp_path / "run", 4), of=of)
    assert_same_state(model, whole)


@pytest.mark.thorough
def test_models_that_are_built_by_their_first_batch(tmp_path):
    def make():
        keras.utils.set_random_seed(5)
        stack = [layers.Dense(5), layers.Dropout(0.4), sampled_head()]
        model = keras.Sequential(stack)
        model.compile("adam", tlo.losses.SampledSoftmax())
        return model

    whole = make()
    fit(whole, Checkpoint(tmp_path / "whole", 4))
    interrupted(make, lambda: Checkpoint(tmp_path / "run", 4), 9)
    model = make()
    fit(model, Checkpoint(tmp_path / "run", 4))
    assert_same_state(model, whole)


@pytest.mark.thorough
def test_several_steps_an_execution(tmp_path):
    def make():
        return model_of(steps_per_execution=2)

    whole = make()
    fit(whole, Checkpoint(tmp_path / "whole", 4))
    interrupted(make, lambda: Checkpoint(tmp_path / "run", 4), 5)
    model = make()
    fit(model, Checkpoint(tmp_path / "run", 4))
    assert_same_state(model, whole)
    with pytest.raises(ValueError, match="steps_per_execution must divide the 4 batches"):
        interrupted(make, lambda: Checkpoint(tmp_path / "other", 4), 3)
        fit(model_of(steps_per_execution=3), Checkpoint(tmp_path / "other", 4))


@pytest.mark.thorough
def test_the_state_of_other_callbacks_is_kept(tmp_path):
    class Warm(keras.callbacks.Callback):
        """A rate that follows from a count of the callback's own."""

        def __init__(self):
            super().__init__()
            self.steps, self.seen = 0, {"rates": [], 3: (np.float32(1), np.arange(3))}

        def on_train_batch_begin(self, batch, logs=None):
            self.steps += 1
            self.seen["rates"].append(self.steps)
            self.model.optimizer.learning_rate = 0.001 * self.steps

    def others():
        stopping = keras.callbacks.EarlyStopping(
            "loss", min_delta=10, patience=3, restore_best_weights=True
        )
        plateau = keras.callbacks.ReduceLROnPlateau("loss", patience=1, min_delta=10)
        return [Warm(), stopping, plateau]

    def run(folder, after=None):
        called = others()
        model, checkpoint = model_of(), Checkpoint(folder, 4, callbacks=called)
        return model, called, fit(model, checkpoint, called, after, epochs=8)

    whole, (warm, stopping, plateau), expected = run(tmp_path / "whole")
    assert len(expected["loss"]) < 8, "it stops early"
    for after in (9, 6):
        with pytest.raises(Killed):
            run(tmp_path / "run", after)
    model, (again, stopping_again, plateau_again), history = run(tmp_path / "run")
    assert_same_state(model, whole)
    assert history == expected
    assert again.seen["rates"] == warm.seen["rates"]
    assert isinstance(again.seen[3][0], np.float32)
    assert stopping_again.best == stopping.best and stopping_again.wait == stopping.wait
    assert plateau_again.min_delta == plateau.min_delta
    assert plateau_again.monitor_op is plateau.monitor_op

    model, _, history = run(tmp_path / "run")  # it was stopped: that was its end
    assert_same_state(model, whole)
    assert history == expected


def test_batches_keep_their_numbers(tmp_path):
    class Numbers(keras.callbacks.Callback):
        def __init__(self):
            super().__init__()
            self.seen = []

        def on_train_batch_end(self, batch, logs=None):
            self.seen.append((batch, logs["loss"]))

    numbers, resumed = Numbers(), Numbers()
    fit(model_of(), Checkpoint(tmp_path / "whole", 4), [numbers], epochs=1)
    interrupted(model_of, lambda: Checkpoint(tmp_path / "run", 4), 5, epochs=1)
    fit(model_of(), Checkpoint(tmp_path / "run", 4), [resumed], epochs=1)
    assert [batch for batch, _ in resumed.seen] == list(range(BATCHES))
    assert resumed.seen[4:] == numbers.seen[4:]
    assert {loss for _, loss in resumed.seen[:4]} == {numbers.seen[3][1]}


def test_an_error_among_the_passed_batches_leaves_no_trace(tmp_path):
    interrupted(model_of, lambda: Checkpoint(tmp_path, 4), 5)
    model = model_of()
    with pytest.raises(Killed):
        fit(model, Checkpoint(tmp_path, 4), after=2)
    steps = int(model.optimizer.iterations)
    model.fit(of_epoch(0), shuffle=False, verbose=0)
    assert int(model.optimizer.iterations) == steps + BATCHES


def test_dtypes_that_numpy_does_not_know(tmp_path):
    def make():
        model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(3, dtype="bfloat16")])
        model.compile("sgd", "mse")
        return model

    first, second = make(), make()
    path = tmp_path / "file.npz"
    write_checkpoint(path, {"model": ModelState(first).facts()}, ModelState(first).arrays())
    file = CheckpointFile(path)
    ModelState(second).check(file.facts["model"])
    ModelState(second).restore(file.facts["model"], file.array)
    np.testing.assert_array_equal(first.get_weights()[0], second.get_weights()[0])
    assert second.layers[0].kernel.dtype == "bfloat16"


def test_global_random_states_come_back(tmp_path):
    draws = []

    class Draw(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            seed = float(keras.random.uniform([]))
            draws.append((random.random(), np.random.random(), seed))

    def of_new_process():
        keras.utils.clear_session()  # Keras 3.12 continues with the old seed
        return model_of()

    fit(of_new_process(), Checkpoint(tmp_path / "whole"), [Draw()])
    expected = draws[2]
    make = lambda: Checkpoint(tmp_path / "run")  # noqa: E731
    interrupted(of_new_process, make, 2 * BATCHES + 1, called=[Draw()])
    draws.clear()
    model = of_new_process()
    keras.utils.set_random_seed(77)
    fit(model, Checkpoint(tmp_path / "run"), [Draw()])
    assert draws == [expected]


@pytest.mark.thorough
def test_seeds_that_the_head_and_its_optimizer_have_drawn_come_back(tmp_path):
    def make(seed):
        keras.utils.set_random_seed(5)
        model = model_with(narrow_head(), tlo.losses.SampledSoftmax())
        head = model.layers[-1]
        head.seed = head.optimizer.seed = seed  # as if drawn
        return model

    first, second, start = make(1), make(2), make(1)
    second.fit(of_epoch(0), verbose=0, shuffle=False)  # its step is traced, with its own seed
    fit(first, Checkpoint(tmp_path / "whole", 4))
    with pytest.raises(Killed):
        fit(start, Checkpoint(tmp_path / "run", 4), after=9)
    fit(second, Checkpoint(tmp_path / "run", 4))
    assert_same_state(first, second)


@pytest.mark.thorough
def test_a_finished_run_is_not_trained_again(tmp_path):
    first, second, longer = model_of(), model_of(), model_of()
    expected = fit(first, Checkpoint(tmp_path / "run"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fit(second, Checkpoint(tmp_path / "run"), after=1) == expected
    assert_same_state(first, second)
    again = fit(longer, Checkpoint(tmp_path / "run"), epochs=EPOCHS + 2)
    whole = model_of()
    assert fit(whole, Checkpoint(tmp_path / "whole"), epochs=EPOCHS + 2) == again
    assert_same_state(whole, longer)
    longer.fit(of_epoch(0), epochs=1, verbose=0, shuffle=False)
    assert len(longer.history.epoch) == 1, "other calls of fit begin with epoch 0 again"


class Stop(keras.callbacks.Callback):
    """Stops training after an epoch."""

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training = epoch == 1


def test_a_run_that_a_callback_behind_it_stopped_is_at_its_end(tmp_path, capsys):
    def run(model):
        checkpoint = Checkpoint(tmp_path / "run")
        data = checkpoint.data(of_epoch)
        callbacks = [checkpoint, Stop()]
        arguments = {"epochs": EPOCHS + 2, "shuffle": False, "verbose": 2}
        return model.fit(data, callbacks=callbacks, **arguments).epoch

    first, second = model_of(), model_of()
    assert run(first) == [0, 1]
    assert "nothing is left" not in capsys.readouterr().out
    assert run(second) == [0, 1]
    assert "over, with 2 epoch(s) done (a callback has stopped it)" in capsys.readouterr().out
    assert_same_state(first, second)


def test_a_run_that_is_started_again_at_its_end_says_so(tmp_path, capsys):
    def run(epochs, verbose=2):
        capsys.readouterr()
        checkpoint = Checkpoint(tmp_path / "run")
        data, options = checkpoint.data(of_epoch), {"shuffle": False, "verbose": verbose}
        model_of().fit(data, epochs=epochs, callbacks=[checkpoint], **options)
        return capsys.readouterr().out

    said = f"nothing is left to train: the run in {tmp_path / 'run'} is over, with 2"
    assert "nothing" not in run(2)
    assert f"{said} epoch(s) done (epochs=2)" in run(2)
    assert f"{said} epoch(s) done (epochs=1)" in run(1)
    assert run(2, verbose=0) == ""
    assert "nothing" not in run(3)


class Logs(keras.callbacks.Callback):
    """Puts an array into the logs, as metrics of several numbers do."""

    def on_epoch_end(self, epoch, logs=None):
        logs["several"] = np.array([epoch, 2.0], np.float32)


def test_arrays_among_the_logs(tmp_path):
    history = fit(model_of(), Checkpoint(tmp_path / "run"), called=[Logs()])
    again = fit(model_of(), Checkpoint(tmp_path / "run"), called=[Logs()])
    assert [list(values) for values in again["several"]] == [[e, 2.0] for e in range(EPOCHS)]
    assert history["loss"] == again["loss"]


def test_models_that_can_not_be_traced_run_eagerly(tmp_path):
    class Eager(keras.Model):
        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(CLASSES)

        def call(self, inputs):
            return self.dense(inputs) * float(tf.reduce_mean(inputs).numpy())

    model = Eager()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, run_eagerly=True)
    model(np.zeros((1, WIDTH), "float32"))
    assert len(fit(model, Checkpoint(tmp_path / "run"))["loss"]) == EPOCHS

    with pytest.warns(UserWarning, match="variables that came up in its first step: .*total"):
        model.compile("sgd", loss, metrics=["accuracy"], run_eagerly=True)
        fit(model, Checkpoint(tmp_path / "metrics", every=4))


class TwoOptimizers(keras.Model):
    """Trains its last layer by an optimizer that is built in the first step."""

    def __init__(self):
        super().__init__()
        self.hidden, self.last = layers.Dense(5, "relu"), layers.Dense(CLASSES)
        self.other = keras.optimizers.Adam(0.05)

    def call(self, inputs):
        return self.last(self.hidden(inputs))

    def train_step(self, data):
        x, y = data
        with tf.GradientTape() as tape:
            y_pred = self(x, training=True)
            loss = self.compute_loss(x, y, y_pred)
        parts = [self.hidden.trainable_variables, self.last.trainable_variables]
        gradients = tape.gradient(loss, parts)
        for optimizer, part, gradient in zip(
            (self.optimizer, self.other), parts, gradients, strict=True
        ):
            optimizer.apply(gradient, part)
        return self.compute_metrics(x, y, y_pred)


def two_optimizers(run_eagerly=True):
    keras.utils.set_random_seed(5)
    model = TwoOptimizers()
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"], run_eagerly=run_eagerly)
    return model


def test_what_an_eager_step_makes_is_kept(tmp_path):
    whole, model = two_optimizers(), two_optimizers()
    expected = fit(whole, Checkpoint(tmp_path / "whole", 4))
    interrupted(two_optimizers, lambda: Checkpoint(tmp_path / "run", 4), BATCHES + 3)
    assert fit(model, Checkpoint(tmp_path / "run", 4)) == expected
    assert_same_state(model, whole)


def test_what_a_step_on_other_data_makes_is_told(tmp_path):
    model = two_optimizers(run_eagerly=False)
    model(X[:1])
    model.optimizer.build(model.hidden.trainable_variables)
    with pytest.warns(UserWarning, match=r"came up in its first step: .*Adam\.momentum"):
        model.fit(of_epoch(0), verbose=0, shuffle=False, callbacks=[Checkpoint(tmp_path / "run")])


def test_optimizers_that_can_not_be_made_in_a_function(tmp_path):
    fit(model_of(optimizer=keras.optimizers.Nadam(0.01)), Checkpoint(tmp_path / "run"), epochs=1)


def test_dictionaries_of_a_callback_whose_keys_are_of_numpy():
    callback, other = keras.callbacks.Callback(), keras.callbacks.Callback()
    callback.counts = {np.int64(3): 1.0, np.int64(5): 2.0}
    restore_callback(other, *callback_state(callback))
    assert other.counts == callback.counts


def test_weights_that_a_callback_keeps_in_bfloat16():
    callback = keras.callbacks.EarlyStopping()
    callback.best_weights = [np.array([1.5, -2.0], tf.bfloat16.as_numpy_dtype)]
    state, arrays = callback_state(callback)
    other = keras.callbacks.EarlyStopping()
    restore_callback(other, json.loads(json.dumps(state)), arrays)
    assert other.best_weights[0].dtype == tf.bfloat16.as_numpy_dtype
    np.testing.assert_array_equal(other.best_weights[0], callback.best_weights[0])


def hessian_free(folder, after=None, trainer=None):
    keras.utils.set_random_seed(5)
    model = keras.Sequential([keras.Input((WIDTH,)), layers.Dense(4, "tanh")])
    model.add(layers.Dense(CLASSES))
    model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    kill = [] if after is None else [Kill(after)]
    free = tlo.hessian_free
    trainer = trainer or tlo.hessian_free.Trainer(
        free.LBFGSPreconditioner(4), cg_sample=free.GeometricSample(10, 1.2), damping=0.1
    )
    history = trainer.fit(
        model, X, Y, epochs=6, callbacks=[Checkpoint(folder), *kill], verbose=0
    ).history
    return model, {name: values for name, values in history.items() if "seconds" not in name}


@pytest.mark.thorough
def test_hessian_free_training(tmp_path):
    whole, expected = hessian_free(tmp_path / "whole")
    for after in (3, 2):
        with pytest.raises(Killed):
            hessian_free(tmp_path / "run", after)
    model, history = hessian_free(tmp_path / "run")
    for one, two in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    assert history == expected
    with pytest.raises(ValueError, match="the state must be of"):
        hessian_free(tmp_path / "run", trainer=tlo.hessian_free.Trainer())
    with pytest.raises(ValueError, match=r"must come from Sequential.fit; got .* Trainer.fit"):
        model.fit(X, Y, callbacks=[Checkpoint(tmp_path / "run")], verbose=0)


def test_so_many_are_kept_and_nothing_else(tmp_path):
    fit(model_of("sampled"), Checkpoint(tmp_path, 4, keep=2))
    assert [path.name for path in sorted(tmp_path.iterdir())] == [
        "epoch-00002-batch-00000004.npz",
        "epoch-00003-batch-00000000.npz",
    ]
    with np.load(tmp_path / "epoch-00003-batch-00000000.npz") as file:
        kernels = [file[name] for name in file.files if "SampledHead.kernel" in name]
    assert kernels[0].shape == (CLASSES, 5)


def test_epochs_of_more_digits_are_newer(tmp_path):
    folder = CheckpointFolder(tmp_path, keep=2)
    for epoch in (99_998, 99_999, 100_000, 100_001):
        folder.write(Position(epoch, 0), Snapshot({"epoch": epoch}, {}, [], [], set()))
    assert folder.newest().facts["epoch"] == 100_001
    assert len(list(tmp_path.iterdir())) == 2


# Errors


def refused(folder, message, model=None, of=of_epoch, error=ValueError, **options):
    """Continuing the run raises an error, and does not change the model."""
    model = model_of("sampled") if model is None else model
    model(X[:1])
    before = model.get_weights()
    with pytest.raises(error, match=message):
        fit(model, Checkpoint(folder, 4, **options), of=of)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)


@pytest.fixture(scope="module")
def begun(tmp_path_factory):
    folder = tmp_path_factory.mktemp("begun")
    interrupted(lambda: model_of("sampled"), lambda: Checkpoint(folder, 4), 5)
    return folder


@pytest.mark.thorough
def test_checkpoints_of_other_models(begun):
    loss = tlo.losses.SampledSoftmax
    refused(
        begun,
        r"SampledHead.kernel float32 \[41, 5\] in the model, SampledHead.kernel float32 \[40, 5\]",
        model_with(sampled_head(classes=41), loss()),
    )
    refused(begun, "variables", model_of("factored"))
    refused(begun, "RowSGD", model_with(sampled_head(optimizer=tlo.optimizers.RowSGD(1)), loss()))
    refused(begun, "SGD", model_with(sampled_head(), loss(), "sgd"))
    refused(
        begun, "LogUniform",
        model_with(
            tlo.heads.SampledHead(
                CLASSES, tlo.samplers.LogUniform(10), tlo.optimizers.RowAdam(0.02), seed=3
            ),
            loss(),
        ),
    )  # fmt: skip


@pytest.mark.thorough
def test_checkpoints_of_another_tree(tmp_path):
    def tree(counts):
        head = tlo.heads.HierarchicalSoftmaxHead(
            CLASSES, tlo.optimizers.RowSGD(0.1), tree="huffman", counts=counts
        )
        return model_with(head, tlo.losses.NegativeLogLikelihood())

    counts = np.arange(1, CLASSES + 1)
    interrupted(lambda: tree(counts), lambda: Checkpoint(tmp_path, 4), 5)
    refused(tmp_path, "one with 1. Number 0 is .* in the model", tree(counts[::-1]))


def test_checkpoints_of_other_data(begun):
    def other(epoch):
        data = tf.data.Dataset.from_tensor_slices((X + 1, Y))
        return data.shuffle(EXAMPLES, seed=epoch).batch(BATCH)

    refused(begun, "data must be the data of the checkpoint", of=other)
    refused(begun, "data must be the data of the checkpoint", of=lambda e: of_epoch(e).take(3))
    refused(begun, "data must be the data of the checkpoint", of=lambda e: of_epoch(e + 1))


@pytest.mark.thorough
def test_another_global_seed_where_batches_depend_on_it(tmp_path):
    def shuffled(epoch):
        data = tf.data.Dataset.from_tensor_slices((X, Y))
        return data.shuffle(EXAMPLES, seed=epoch).batch(BATCH)

    interrupted(model_of, lambda: Checkpoint(tmp_path, 4), 9, of=shuffled)
    model = model_of()
    keras.utils.set_random_seed(99)
    refused(tmp_path, "data must be the data of the checkpoint", model, of=shuffled)


def test_checkpoints_with_other_callbacks(begun):
    message = r"callbacks must be as in the checkpoint, \[\]; got \['EarlyStopping'\]"
    stopping = keras.callbacks.EarlyStopping("loss")
    model = model_of("sampled")
    with pytest.raises(ValueError, match=message):
        fit(model, Checkpoint(begun, 4, callbacks=[stopping]), [stopping])


def test_callbacks_must_stand_before(tmp_path):
    plateau = keras.callbacks.ReduceLROnPlateau("loss")
    checkpoint = Checkpoint(tmp_path, callbacks=[plateau])
    for called in ([checkpoint, plateau], [checkpoint]):
        with pytest.raises(ValueError, match=r"must stand before it .* got ReduceLROnPlateau"):
            model_of().fit(checkpoint.data(of_epoch), callbacks=called, verbose=0)


def test_data_that_are_no_function_of_the_epoch(tmp_path):
    once = tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES, seed=1).batch(BATCH)

    def unseeded(epoch):
        return tf.data.Dataset.from_tensor_slices((X, Y)).shuffle(EXAMPLES).batch(BATCH)

    model = model_of()
    for of in (once, lambda _: once, unseeded):
        refused(tmp_path, "data must be a function of the epoch", model, of=of)
    with pytest.raises(ValueError, match="same kind and number of batches"):
        fit(model, Checkpoint(tmp_path), of=lambda epoch: of_epoch(epoch).take(BATCHES - epoch))


def test_data_of_unknown_length_or_order():
    checkpoint = Checkpoint("unused")
    data = of_epoch(0)
    with pytest.raises(ValueError, match=r"known number of batches.*got unknown"):
        checkpoint.data(lambda _: data.filter(lambda *_: True))
    with pytest.raises(ValueError, match="got infinitely many"):
        checkpoint.data(data.repeat())
    with pytest.raises(ValueError, match="got none"):
        checkpoint.data(data.take(0))
    with pytest.raises(TypeError, match=r"must be a tf.data.Dataset for each epoch; got array"):
        checkpoint.data(X)
    options = tf.data.Options()
    options.deterministic = False
    with pytest.raises(ValueError, match="determined order"):
        checkpoint.data(data.with_options(options))


def test_the_same_batches_in_each_epoch(tmp_path):
    data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(BATCH)
    whole, model = model_of(), model_of()
    fit(whole, Checkpoint(tmp_path / "whole", 4), of=data)
    interrupted(model_of, lambda: Checkpoint(tmp_path / "run", 4), 9, of=data)
    fit(model, Checkpoint(tmp_path / "run", 4), of=data)
    assert_same_state(model, whole)


def test_fit_must_take_the_data_as_they_are(tmp_path):
    def refuse(message, data=None, error=ValueError, **options):
        checkpoint = Checkpoint(tmp_path)
        given = checkpoint.data(of_epoch)
        with pytest.raises(error, match=message):
            model_of().fit(
                data or given, callbacks=[checkpoint], shuffle=False, verbose=0, **options
            )
        assert not list(tmp_path.iterdir())

    refuse("as it is.* got 2 steps in an epoch", steps_per_epoch=2)
    refuse("as it is.* got other data, or class_weight", class_weight={0: 1.0})
    refuse("as it is.* got other data, or class_weight", of_epoch(0))
    with pytest.raises(tf.errors.OpError, match=r"must go to keras.Model.fit"):
        next(iter(Checkpoint(tmp_path).data(of_epoch)))


def test_other_data_can_be_saved_at_epochs_only(tmp_path):
    with pytest.raises(ValueError, match=r"every must be 'epoch' for data .*; got 4"):
        model_of().fit(X, Y, callbacks=[Checkpoint(tmp_path, 4)], verbose=0)
    whole, model = model_of(), model_of()
    whole.fit(X, Y, epochs=3, shuffle=False, verbose=0)
    model.fit(X, Y, epochs=2, shuffle=False, verbose=0, callbacks=[Checkpoint(tmp_path)])
    model = model_of()
    with pytest.warns(UserWarning, match="exactly only if batches are the same in each epoch"):
        model.fit(X, Y, epochs=3, shuffle=False, verbose=0, callbacks=[Checkpoint(tmp_path)])
    for one, two in zip(whole.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
    unbuilt = keras.Sequential([layers.Dense(2)])
    unbuilt.compile("adam", "mse")
    with pytest.raises(ValueError, match="the model must be built before fit"):
        unbuilt.fit(X, Y, callbacks=[Checkpoint(tmp_path / "other")], verbose=0)


@pytest.mark.parametrize("every", [0, 1.5, "step", True, None])
def test_arguments(every, tmp_path):
    with pytest.raises(ValueError, match="every must be"):
        Checkpoint(tmp_path, every)
    with pytest.raises(ValueError, match="keep must be an integer of at least 1; got 0"):
        Checkpoint(tmp_path, keep=0)


# What can't be saved


def test_ops_with_a_random_state_of_their_own(tmp_path):
    head = tlo.heads.TFSampledSoftmaxHead(CLASSES, num_sampled=5)
    model = model_with(head, tlo.losses.TFCandidateSamplingLoss())
    with pytest.warns(UserWarning, match="a state within ops: LogUniformCandidateSampler"):
        fit(model, Checkpoint(tmp_path), epochs=1)


def test_variables_of_no_layer(tmp_path):
    class Counting(keras.Model):
        def __init__(self, **options):
            super().__init__(**options)
            self.dense = layers.Dense(CLASSES)
            self.calls = {"count": tf.Variable(0.0, name="hidden_count")}

        def call(self, inputs):
            self.calls["count"].assign_add(1.0)
            return self.dense(inputs)

    model = Counting()
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    with pytest.warns(UserWarning, match="variables that no layer has: hidden_count"):
        fit(model, Checkpoint(tmp_path), epochs=1)


@cases_of("kind", list(HEADS))
def test_nothing_is_missing_for_our_heads(kind, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        fit(model_of(kind), Checkpoint(tmp_path), epochs=1)


def test_a_checkpoint_of_a_newer_version_is_refused_and_stays(tmp_path, monkeypatch):
    with monkeypatch.context() as newer:
        newer.setattr("tfx_largeout.callbacks.checkpoint_file._FORMAT", 2)
        fit(model_of(), Checkpoint(tmp_path), epochs=1)
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    model = model_of()
    before = model.get_weights()
    with pytest.raises(ValueError, match="must be a checkpoint of format 1; got 2"):
        fit(model, Checkpoint(tmp_path))
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == files
    for one, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_where_a_class_is_does_not_count():
    head = tlo.heads.SampledHead(9, tlo.samplers.Uniform(3), tlo.optimizers.RowAdam(0.1))
    model = keras.Sequential([keras.Input([2]), head])
    model.compile("sgd", tlo.losses.ComplementarySum())
    state = ModelState(model)
    facts = json.loads(json.dumps(state.facts()))
    [[kind, text]] = facts["heads"]
    for key, value, fits in [("module", "another.file", True), ("class_name", "RowSGD", False)]:
        config = json.loads(text)
        config["optimizer"][key] = value
        with contextlib.nullcontext() if fits else pytest.raises(ValueError, match="RowSGD"):
            state.check({**facts, "heads": [[kind, json.dumps(config)]]})
