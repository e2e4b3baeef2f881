# SPDX-License-Identifier: Apache-2.0
"""SampledValidation: values and standard errors against NumPy, samples, stopping and resuming."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import softmax as oracle
from variants import cases_of, thorough

import tfx_largeout as tlo
from tfx_largeout import losses, metrics
from tfx_largeout.callbacks import Checkpoint, SampledValidation
from tfx_largeout.callbacks.row_sample import RowSample

CLASSES, WIDTH, EXAMPLES, HELD_OUT = 40, 6, 64, 50
RNG = np.random.default_rng(0)
X = RNG.normal(size=(EXAMPLES, WIDTH)).astype("float32")
Y = RNG.integers(0, CLASSES, EXAMPLES)
VX = RNG.normal(size=(HELD_OUT, WIDTH)).astype("float32")
VY = RNG.integers(0, CLASSES, HELD_OUT)
VY[::7] = -1
LABELLED = np.flatnonzero(VY >= 0)


def head_of(candidates=8, name=None):
    sampler = tlo.samplers.Uniform(candidates)
    return tlo.heads.SampledHead(CLASSES, sampler, tlo.optimizers.RowAdam(0.01), seed=1, name=name)


def model_with(head=None, loss=None, **options):
    keras.utils.set_random_seed(2)
    layers = [keras.Input((WIDTH,)), keras.layers.Dense(5, "tanh"), head or head_of()]
    model = keras.Sequential(layers)
    given = [metrics.PrecisionAtK(1), metrics.NDCG(3), metrics.Perplexity(), "accuracy"]
    model.compile("sgd", loss or losses.ComplementarySum(), **{"metrics": given, **options})
    return model


def dense(given=(), **options):
    """A model whose steps are traced quickly, for what does not depend on the head."""
    keras.utils.set_random_seed(2)  # the head draws seeds when it is made
    head, loss = tlo.heads.DenseHead(CLASSES), losses.SoftmaxCrossentropy()
    return model_with(head, loss, metrics=list(given), **options)


def fit(model, *callbacks, epochs=2, **options):
    options = {"batch_size": 8, "verbose": 0, "shuffle": False, **options}
    return model.fit(X, Y, epochs=epochs, callbacks=list(callbacks), **options).history


def rows_of(model, x, y):
    """Returns the loss, the hit and the gain of each row, in float64."""
    trunk, head = model.layers
    hidden, kernel, bias = (np.asarray(each, np.float64) for each in (trunk(x), *_weights(head)))
    logits = hidden @ kernel.T + bias
    ranks = (logits > logits[np.arange(len(y)), y][:, None]).sum(axis=1)
    loss = oracle.cross_entropy(hidden, kernel, bias, [[label] for label in y])
    return {
        "loss": loss,
        "precision_at_1": (ranks < 1).astype(float),
        "ndcg_at_3": np.where(ranks < 3, 1 / np.log2(ranks + 2), 0),
        "accuracy": (ranks < 1).astype(float),
    }


def _weights(head):
    return head.kernel.numpy(), head.bias.numpy()


def error_of(values):
    return values.std(ddof=1) / np.sqrt(len(values))


def chosen_rows(rows, seed, counted=LABELLED):
    numbers = np.random.default_rng(seed).random(HELD_OUT)
    return np.sort(counted[np.argsort(numbers[counted])[:rows]])


def test_values_and_errors_are_those_of_numpy():
    model = model_with()
    validation = SampledValidation(VX, VY, rows=20, seed=5, batch_size=16)
    history = fit(model, validation)
    chosen = chosen_rows(20, seed=5)
    rows = rows_of(model, VX[chosen], VY[chosen])
    for name, values in rows.items():
        assert history[f"val_{name}"][-1] == pytest.approx(values.mean(), rel=1e-5), name
        assert history[f"val_{name}_se"][-1] == pytest.approx(error_of(values), rel=1e-5), name
    perplexity = np.exp(rows["loss"].mean())
    assert history["val_perplexity"][-1] == pytest.approx(perplexity, rel=1e-5)
    expected = perplexity * error_of(rows["loss"])
    assert history["val_perplexity_se"][-1] == pytest.approx(expected, rel=1e-4)
    assert len(history["val_loss"]) == len(history["loss"]) == 2
    validation.on_train_begin()  # of another `fit`
    assert validation.history == [] and validation.step == 0


def as_dataset():
    return (tf.data.Dataset.from_tensor_slices((VX, VY)).batch(7),)


class Batches(keras.utils.PyDataset):
    def __len__(self):
        return 5

    def __getitem__(self, number):
        part = slice(10 * number, 10 * number + 10)
        return VX[part], VY[part]


def as_ragged():
    labels = [[] if label < 0 else [label] for label in VY]
    return VX, tf.RaggedTensor.from_row_lengths(VY[VY >= 0], [len(each) for each in labels])


def as_sparse():
    places = np.flatnonzero(VY >= 0)
    indices = np.stack([places, np.zeros_like(places)], axis=1)
    return VX, tf.SparseTensor(indices, VY[places], [HELD_OUT, 1])


class Loader:
    """As a data loader of another library."""

    def __iter__(self):
        return iter([(VX[:13], VY[:13]), (VX[13:], VY[13:])])


FORMS = {
    "dataset": as_dataset,
    "PyDataset": lambda: (Batches(),),
    "iterable": lambda: (Loader(),),
    "float64": lambda: (VX.astype("float64"), VY[:, None]),
    "tensors": lambda: (tf.constant(VX), tf.constant(VY)),
    "ragged": as_ragged,
    "sparse": as_sparse,
}


@pytest.mark.all_cases
@cases_of("form", list(FORMS))
def test_the_sample_is_the_same_in_each_form(form):
    data = FORMS[form]()
    sample = RowSample("test", data[0] if len(data) == 1 else data, 20, 5)
    batches, sizes = sample.batches(8)
    assert sizes == [8, 8, 4]
    assert sample.size == 20 and sample.seen == HELD_OUT
    chosen = chosen_rows(20, seed=5)
    np.testing.assert_array_equal(np.concatenate([x for x, _ in batches]), VX[chosen])
    labels = [y.values if hasattr(y, "values") else y for _, y in batches]
    np.testing.assert_array_equal(np.concatenate(labels).ravel(), VY[chosen])


def test_inputs_of_several_kinds_weights_and_padded_sequences():
    sparse = tf.sparse.from_dense(np.tile(VX * (VX > 0), 2)[:, :7])
    x = {"sparse": sparse, "dense": [VX, VX[:, 0]]}
    weights = np.arange(HELD_OUT, dtype="float32")
    whole = RowSample("test", (x, VY, weights), 20, 5)
    (batch,), sizes = whole.batches(100)
    chosen = chosen_rows(20, seed=5)
    assert sizes == [20]
    np.testing.assert_array_equal(
        tf.sparse.to_dense(batch[0]["sparse"]), tf.sparse.to_dense(sparse).numpy()[chosen]
    )
    np.testing.assert_array_equal(batch[0]["dense"][1], VX[chosen, 0])
    np.testing.assert_array_equal(batch[2], weights[chosen])

    lengths = RNG.integers(1, 6, HELD_OUT)
    rows = [(np.full([n, 2], n, "float32"), np.full(n, i)) for i, n in enumerate(lengths)]
    rows[3] = (rows[3][0], np.full(lengths[3], -1))
    dataset = tf.data.Dataset.from_generator(
        lambda: iter(rows),
        output_signature=(tf.TensorSpec([None, 2]), tf.TensorSpec([None], tf.int64)),
    ).padded_batch(9, padding_values=(0.0, tf.constant(-1, tf.int64)))
    ((x, y),), _ = RowSample("test", dataset, HELD_OUT, 0).batches(100)
    assert x.shape == [HELD_OUT - 1, 5, 2]
    for i, (row, labels) in enumerate(rows[:3] + rows[4:]):
        n = len(labels)
        np.testing.assert_array_equal(x[i], np.pad(row, [(0, 5 - n), (0, 0)]))
        np.testing.assert_array_equal(y[i], np.pad(labels, (0, 5 - n), constant_values=-1))


def test_scipy_rows_and_a_class_that_is_ignored():
    scipy_sparse = pytest.importorskip("scipy.sparse")
    matrix = scipy_sparse.csr_matrix(VX * (VX > 0))
    sample = RowSample("test", (matrix, VY), HELD_OUT, 0, ignored=VY[1])
    ((x, y),), _ = sample.batches(100)
    kept = (VY != -1) & (VY[1] != VY)
    np.testing.assert_array_equal(y, VY[kept])
    np.testing.assert_array_equal(tf.sparse.to_dense(x), (VX * (VX > 0))[kept])
    booleans = scipy_sparse.csr_matrix(np.eye(CLASSES, dtype=bool)[LABELLED % CLASSES])
    sample = RowSample("test", (VX[LABELLED], booleans), HELD_OUT, 0, ignored=1)
    assert sample.size == np.sum(LABELLED % CLASSES != 1)


def test_weights_are_those_of_the_mean():
    model = model_with(metrics=[], weighted_metrics=[metrics.ExactLoss()])
    weights = RNG.random(HELD_OUT).astype("float32")
    history = fit(model, SampledValidation(VX, VY, weights, batch_size=64))
    values, weights = rows_of(model, VX[LABELLED], VY[LABELLED])["loss"], weights[LABELLED]
    n, mean = len(values), (weights * values).sum() / weights.sum()
    assert history["val_loss"][-1] == pytest.approx((weights * values).mean(), rel=1e-5)
    assert history["val_loss_se"][-1] == pytest.approx(error_of(weights * values), rel=1e-5)
    assert history["val_exact_loss"][-1] == pytest.approx(mean, rel=1e-5)
    residuals = weights * (values - mean)
    expected = np.sqrt(n / (n - 1) * (residuals**2).sum()) / weights.sum()
    assert history["val_exact_loss_se"][-1] == pytest.approx(expected, rel=1e-5)


def test_positions_of_a_row_count_together():
    """A row is a sequence: its positions are not independent."""
    keras.utils.set_random_seed(2)
    layers = [keras.Input([None, WIDTH]), keras.layers.Masking(), keras.layers.Dense(5), head_of()]
    model = keras.Sequential(layers)
    model.compile("sgd", losses.ComplementarySum(), metrics=[metrics.ExactLoss()])
    x = RNG.normal(size=(9, 4, WIDTH)).astype("float32")
    y = RNG.integers(0, CLASSES, (9, 4))
    for row, length in enumerate((4, 1, 2, 4, 3, 0, 4, 2, 1)):
        x[row, length:], y[row, length:] = 0, -1
    validation = SampledValidation(x, y, batch_size=4)
    history = model.fit(x, y, verbose=0, callbacks=[validation]).history
    hidden, (kernel, bias) = model.layers[-2](x).numpy(), _weights(model.layers[-1])
    logits = hidden.astype(float) @ kernel.T + bias
    at = np.take_along_axis(logits, np.maximum(y, 0)[..., None], axis=2)[..., 0]
    each = np.where(y >= 0, np.log(np.exp(logits).sum(axis=2)) - at, 0)
    sums, counts = each.sum(axis=1), (y >= 0).sum(axis=1)
    sums, counts = sums[counts > 0], counts[counts > 0]
    ratio = sums.sum() / counts.sum()
    expected = np.sqrt(8 / 7 * ((sums - ratio * counts) ** 2).sum()) / counts.sum()
    assert history["val_exact_loss"][-1] == pytest.approx(ratio, rel=1e-5)
    for name in ("loss", "exact_loss"):
        assert history[f"val_{name}_se"][-1] == pytest.approx(expected, rel=1e-5), name


def two_outputs(loss_weights=None):
    keras.utils.set_random_seed(2)
    inputs = keras.Input((WIDTH,))
    hidden = keras.layers.Dense(5, "tanh")(inputs)
    outputs = {
        "a": head_of(name="a")(hidden),
        "b": tlo.heads.DenseHead(CLASSES, name="b")(hidden),
        "c": keras.layers.Dense(1, name="c")(hidden),
    }
    model = keras.Model(inputs, outputs)
    model.compile(
        "sgd",
        {"a": losses.SampledSoftmax(), "b": losses.SoftmaxCrossentropy(), "c": "mse"},
        loss_weights=loss_weights,
        metrics={"a": [metrics.PrecisionAtK(1)], "b": [metrics.PrecisionAtK(1)]},
    )
    return model


def test_several_outputs_and_their_sum():
    weights = {"a": 1.0, "b": 0.5, "c": 2.0}
    model = two_outputs(weights)
    number = RNG.normal(size=HELD_OUT).astype("float32")
    y = {"a": VY, "b": np.maximum(VY[::-1], 0), "c": number}
    validation = SampledValidation(VX, y, batch_size=16)
    history = model.fit(VX, y, verbose=0, callbacks=[validation]).history
    expected = model.evaluate(VX, y, batch_size=HELD_OUT, verbose=0, return_dict=True)
    for name in ("b_loss", "c_loss", "a_precision_at_1", "b_precision_at_1"):
        assert history[f"val_{name}"][-1] == pytest.approx(expected[name], rel=1e-5), name
    hidden = model.layers[1](VX).numpy().astype(float)
    of_row = {}
    for name in ("a", "b"):
        labels = [[max(label, 0)] for label in y[name]]
        of_row[name] = oracle.cross_entropy(hidden, *_weights(model.get_layer(name)), labels)
    of_row["c"] = (model.get_layer("c")(hidden).numpy()[:, 0] - number) ** 2
    assert history["val_b_loss_se"][-1] == pytest.approx(error_of(of_row["b"]), rel=1e-5)
    assert history["val_c_loss_se"][-1] == pytest.approx(error_of(of_row["c"]), rel=1e-4)
    counted = {"a": VY >= 0, "b": np.ones(HELD_OUT), "c": np.ones(HELD_OUT)}
    total = sum(
        weights[name]
        * counted[name]
        * (values - np.average(values, weights=counted[name]))
        / counted[name].sum()
        for name, values in of_row.items()
    )
    expected = np.sqrt(HELD_OUT / (HELD_OUT - 1) * (total**2).sum())
    assert history["val_loss_se"][-1] == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("eager", [False, *thorough(True)])
def test_training_is_as_without_it(eager):
    def trained(*callbacks):
        model = model_with(run_eagerly=eager)
        history = fit(model, *callbacks)
        return [*model.get_weights(), history["loss"], history["accuracy"]]

    for a, b in zip(trained(), trained(SampledValidation(VX, VY, every=3)), strict=True):
        np.testing.assert_array_equal(a, b)


def test_every_so_many_steps_and_at_the_end_of_an_epoch():
    validation = SampledValidation(VX, VY, every=3)
    seen = []
    after = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: seen.append(logs.get("val_loss"))
    )
    fit(dense(), validation, after)
    assert [each["step"] for each in validation.history] == [3, 6, 8, 9, 12, 15, 16]
    losses_seen = [each["val_loss"] for each in validation.history]
    assert seen[:3] == [None, None, losses_seen[0]] and seen[-1] == losses_seen[-2]
    several = SampledValidation(VX, VY, every=3)
    fit(dense(steps_per_execution=2), several)
    assert [each["step"] for each in several.history] == [4, 6, 8, 10, 12, 16]


def test_callbacks_of_keras_work_with_it(tmp_path):
    stopping = keras.callbacks.EarlyStopping("val_precision_at_1", min_delta=2, patience=1)
    best = keras.callbacks.ModelCheckpoint(
        tmp_path / "{epoch}-{val_loss:.3f}.weights.h5", save_best_only=True, save_weights_only=True
    )
    board = keras.callbacks.TensorBoard(tmp_path / "board")
    model = dense([metrics.PrecisionAtK(1)])
    history = fit(model, SampledValidation(VX, VY), stopping, best, board, epochs=5)
    assert len(history["val_loss"]) == 2
    assert {path.name for path in tmp_path.glob("*.h5")} >= {
        f"1-{history['val_loss'][0]:.3f}.weights.h5"
    }
    assert {"epoch_loss", "epoch_loss_se"} <= set(events_in(tmp_path / "board" / "validation"))


def events_in(folder):
    (path,) = folder.glob("events.out.*")
    return {
        value.tag: value
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
    }


def test_tensorboard_gets_values_and_bands(tmp_path):
    from tensorboard.plugins.custom_scalar import layout_pb2

    validation = SampledValidation(VX, VY, log_dir=tmp_path)
    fit(dense([metrics.PrecisionAtK(1)]), validation)
    found, last = events_in(tmp_path), validation.history[-1]
    value = {tag: tf.make_ndarray(each.tensor) for tag, each in found.items()}
    assert value["val_loss"] == pytest.approx(last["val_loss"])
    low = last["val_loss"] - last["val_loss_se"]
    assert value["val_loss/lower"] == pytest.approx(low)
    assert value["val_loss/upper"] == pytest.approx(low + 2 * last["val_loss_se"])
    layout = layout_pb2.Layout.FromString(value["custom_scalars__config__"].item())
    (category,) = layout.category
    series = {chart.title: chart.margin.series[0] for chart in category.chart}
    assert set(series) == {name.removesuffix("_se") for name in last if name.endswith("_se")}
    assert series["val_loss"].value == "val_loss"
    assert series["val_loss"].lower == "val_loss/lower"
    assert series["val_loss"].upper == "val_loss/upper"


class SetWeights(keras.callbacks.Callback):
    """Moves the bias of the head, so that the loss falls and then rises."""

    def on_train_batch_end(self, batch, logs=None):
        self.step = getattr(self, "step", 0) + 1
        bias = self.model.layers[-1].bias
        bias.assign(np.where(np.arange(CLASSES) == 0, (self.step - 4.0) ** 2, 0))


def test_training_stops_in_mid_epoch_and_the_best_comes_back():
    validation = SampledValidation(VX, VY, every=2, patience=2, restore_best=True)
    model = dense()
    history = fit(model, SetWeights(), validation)
    values = [each["val_loss"] for each in validation.history]
    assert [each["step"] for each in validation.history] == [2, 4, 6, 8]
    assert validation.best == min(values) and validation.wait == 2
    assert len(history["loss"]) == 1 and model.stop_training
    expected = model.evaluate(VX[LABELLED], VY[LABELLED], verbose=0, return_dict=True)
    assert expected["loss"] == pytest.approx(validation.best, rel=1e-5)


@pytest.mark.parametrize(
    ("monitor", "mode", "stops"),
    [
        ("val_precision_at_1", "auto", True),  # it can't rise by 2
        ("val_loss", "max", True),
        ("val_loss", "min", True),
        ("val_accuracy", "max", True),
    ],
)
def test_min_delta_is_asked_for_in_the_direction_of_the_monitor(monitor, mode, stops):
    options = {"monitor": monitor, "mode": mode, "min_delta": 99.0}
    validation = SampledValidation(VX, VY, patience=3, **options)
    fit(dense([metrics.PrecisionAtK(1), "accuracy"]), validation, epochs=6)
    assert len(validation.history) == 4
    assert validation.best == validation.history[0][monitor]


class Killed(Exception):
    pass


def test_a_resumed_run_waits_and_stops_as_one_without_a_break(tmp_path):
    def of_epoch(epoch):
        order = np.random.default_rng(epoch).permutation(EXAMPLES)
        return tf.data.Dataset.from_tensor_slices((X[order], Y[order])).batch(8)

    def run(folder, kill=None):
        model = dense()
        options = {"every": 3, "patience": 5, "restore_best": True, "min_delta": 0.002}
        validation = SampledValidation(VX, VY, **options)
        checkpoint = Checkpoint(tmp_path / folder, every=5, callbacks=[validation])
        steps = []

        def count(batch, logs):
            steps.append(batch)
            if len(steps) == kill:
                raise Killed

        killing = keras.callbacks.LambdaCallback(on_train_batch_end=count)
        callbacks = [validation, checkpoint, killing]
        data = checkpoint.data(of_epoch)
        history = model.fit(data, epochs=6, shuffle=False, verbose=0, callbacks=callbacks).history
        return model, validation, history

    model, whole, history = run("whole")
    with pytest.raises(Killed):
        run("parts", kill=13)
    again, resumed, other = run("parts")
    assert resumed.history == whole.history
    assert other == history
    state = ("best", "best_step", "wait", "step")
    assert [getattr(resumed, name) for name in state] == [getattr(whole, name) for name in state]
    for a, b in zip(model.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


ARGUMENTS = {
    "rows": ({"rows": 1}, "rows must be an integer of at least 2; got 1"),
    "every": ({"every": 0}, "every must be an integer of at least 1; got 0"),
    "batch_size": ({"batch_size": 0}, "batch_size must be an integer of at least 1; got 0"),
    "seed": ({"seed": -1}, "seed must be an integer of at least 0; got -1"),
    "mode": ({"mode": "up"}, "mode must be"),
    "min_delta": ({"min_delta": -1}, "min_delta must be"),
    "patience": ({"patience": 0}, "patience must be an integer of at least 1; got 0"),
}


@cases_of("argument", list(ARGUMENTS))
def test_arguments_are_checked(argument):
    given, message = ARGUMENTS[argument]
    with pytest.raises(ValueError, match=message):
        SampledValidation(VX, VY, **given)


ENDLESS = tf.data.Dataset.from_tensors((VX, VY)).repeat()
DATA = {
    "lengths": ((VX, VY[:9]), ValueError, "equally many rows; got \\[9, 50\\]"),
    "no labels": ((VX, np.full(HELD_OUT, -1)), ValueError, "one row with a label; got 50 rows"),
    "no rows": ((VX[:0], VY[:0]), ValueError, "one row with a label; got 0 rows"),
    "no y": ((VX,), TypeError, "needs arrays x and y, .* got ndarray"),
    "no end": ((ENDLESS,), ValueError, "needs data with an end; got a data set without one"),
    "generator": ((iter([(VX, VY)]),), TypeError, "another iterable of batches that begins anew"),
    "inputs alone": ((tf.data.Dataset.from_tensors(VX),), ValueError, "needs labels y"),
}


@cases_of("data", list(DATA))
def test_data_are_checked_before_training(data):
    given, error, message = DATA[data]
    model = dense()
    before = model.get_weights()
    with pytest.raises(error, match=f"SampledValidation needs .*{message}|{message}"):
        fit(model, SampledValidation(*given))
    for a, b in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(a, b)


def test_what_can_not_be_is_refused():
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model = model_with(tlo.heads.DenseHead(CLASSES), loss)
    with pytest.raises(TypeError, match="SampledValidation needs a model with a HeadLoss; got"):
        fit(model, SampledValidation(VX, VY))
    for reduction in ("sum", None):
        model.compile("sgd", losses.SoftmaxCrossentropy(reduction=reduction, name="l"))
        with pytest.raises(ValueError, match=f"a mean, .*got reduction={reduction!r} of l"):
            fit(model, SampledValidation(VX, VY))
    model = dense(run_eagerly=True)
    with pytest.raises(ValueError, match=r"monitor must be one of val_loss, .*; got 'loss'"):
        fit(model, SampledValidation(VX, VY, monitor="loss", patience=1))
    with pytest.raises(ValueError, match=r"mode must be 'min' or 'max' .* 'val_loss_se'"):
        fit(model, SampledValidation(VX, VY, monitor="val_loss_se", patience=1))
    with pytest.raises(ValueError, match="no validation_data beside SampledValidation"):
        fit(model, SampledValidation(VX, VY), validation_data=(VX, VY))
    with pytest.raises(ValueError, match="sample_weight must be None where x comes in batches"):
        SampledValidation(as_dataset()[0], sample_weight=np.ones(HELD_OUT))
