# SPDX-License-Identifier: Apache-2.0
"""choose_settings: trials, state that must not change, and errors."""

from __future__ import annotations

import csv
import random

import keras
import numpy as np
import pytest
import tensorflow as tf
from compare.own_models import CLASSES, WIDTH
from conformance.heads_table import HEADS
from variants import cases_of

import tfx_largeout as tlo
from tfx_largeout import losses, optimizers, samplers
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.compare import choose_settings as module
from tfx_largeout.compare import trial_batches
from tfx_largeout.compare.trial_batches import TrialBatches
from tfx_largeout.compare.trial_model import Settings, TrialModel
from tfx_largeout.keras_internals import global_seed

EXAMPLES = 400
RNG = np.random.default_rng(0)
Y = (RNG.zipf(1.6, EXAMPLES) - 1) % CLASSES
X = RNG.normal(size=(CLASSES, WIDTH))[Y].astype("float32")
SHORT = {"steps": 2, "rows": 40, "batch_size": 16}
ONE_STEP = {**SHORT, "steps": 1}


def model_with(head=None, loss=None, optimizer=None, **options):
    """A model whose steps run eagerly by default: to trace graphs takes longer than few steps."""
    keras.utils.set_random_seed(1)
    if head is None:
        head = tlo.heads.SampledHead(CLASSES, samplers.Uniform(8), optimizers.RowAdam(1e-4), seed=0)
    layers = [keras.Input([WIDTH]), keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.1), head]
    model = keras.Sequential(layers)
    options = {"run_eagerly": True, "metrics": [tlo.metrics.PrecisionAtK(1)], **options}
    optimizer = optimizer or keras.optimizers.Adam(1e-4)
    model.compile(optimizer, loss or losses.ComplementarySum(), **options)
    return model


def state_of(model):
    arrays = [np.array(read()) for _, read in ModelState(model).arrays()]
    own = [variable.numpy() for variable in model.optimizer.variables]
    generators = [random.getstate(), np.random.get_state(), np.array(global_seed() is None)]
    return [*arrays, *own, *map(str, generators), str(global_seed())]


@pytest.mark.parametrize("trained", [False, True])
def test_nothing_of_the_model_changes_and_the_choice_is_a_function_of_the_seed(trained):
    model = model_with()
    if trained:
        model.fit(X, Y, verbose=0)
    before, settings = state_of(model), Settings.of(model)
    sampler, head = model.layers[-1].sampler, model.layers[-1]
    rows = [
        tlo.choose_settings(model, (X, Y), trials=4, seed=seed, **ONE_STEP).rows
        for seed in (3, 3, 4)
    ]
    for a, b in zip(state_of(model), before, strict=True):
        np.testing.assert_array_equal(a, b)
    assert Settings.of(model) == settings and head.sampler is sampler
    for row in [*rows[0], *rows[1]]:
        del row["seconds"]
    assert rows[0] == rows[1] and len(rows[0]) == 4
    assert rows[0][0]["loss"] != rows[2][0]["loss"]


def test_a_rate_that_is_too_low_is_raised_and_the_choice_is_better_on_other_rows():
    model = model_with(run_eagerly=False)
    chosen = tlo.choose_settings(model, (X, Y), trials=12, steps=12, rows=40, batch_size=16)
    settings = chosen.settings
    assert settings["head_learning_rate"] > 5e-4
    finals = [row for row in chosen.rows if row["stage"] == "final"]
    assert len(finals) == 3 and all(row["steps"] == 48 for row in finals)
    best = min(finals, key=lambda row: row["loss"])
    assert best["head_learning_rate"] == settings["head_learning_rate"]
    tuned, plain = chosen.model(), model_with(run_eagerly=False)
    np.testing.assert_allclose(float(tuned.optimizer.learning_rate), settings["learning_rate"])
    results = []
    for each in (tuned, plain):
        each.fit(X, Y, batch_size=16, verbose=0)
        results.append(each.evaluate(X, Y, verbose=0, return_dict=True))
    assert results[0]["loss"] < results[1]["loss"] - 0.3
    assert "precision_at_1" in results[0]


def test_what_is_chosen_can_be_applied_printed_and_written(tmp_path):
    model = model_with()
    chosen = tlo.choose_settings(model, (X, Y), trials=3, **SHORT)
    weights = model.get_weights()
    settings = Settings(0.5, 0.25, 12, samplers.LogUniform(8))
    applied = module.ChosenSettings(chosen._config, settings, chosen.trials)
    applied.apply(model)
    head = model.layers[-1]
    assert float(model.optimizer.learning_rate) == 0.5
    assert float(head.optimizer.learning_rate) == 0.25
    assert type(head.sampler) is samplers.LogUniform and head.sampler.num_sampled == 12
    for a, b in zip(model.get_weights(), weights, strict=True):
        np.testing.assert_array_equal(a, b)
    model.fit(X[:32], Y[:32], verbose=0)
    again = keras.models.model_from_json(model.to_json()).layers[-1]
    assert type(again.sampler) is samplers.LogUniform
    text = str(applied)
    assert len(text.splitlines()) == 2 + len(chosen.rows)
    assert "chosen: learning_rate=0.5, head_learning_rate=0.25, num_sampled=12" in text
    chosen.to_csv(tmp_path / "trials.csv")
    with (tmp_path / "trials.csv").open() as file:
        found = list(csv.DictReader(file))
    assert [float(row["loss"]) for row in found] == [row["loss"] for row in chosen.rows]
    assert set(found[0]) == set(chosen.rows[0])


def test_trials_do_not_see_the_rows_held_out():
    numbers = np.arange(EXAMPLES)
    batches = TrialBatches("test", (numbers, numbers), None, 50, 16, 0)
    ((held, _),) = batches.held_out.batches(1000)[0]
    seen = np.concatenate([x for x, _ in _first(batches.training(), 50)])
    assert len(held) == 50 and len(np.unique(seen)) == EXAMPLES - 50
    assert not np.isin(seen, held).any()
    dataset = tf.data.Dataset.from_tensor_slices((numbers, numbers)).batch(20)
    for data in (dataset, dataset.repeat()):
        batches = TrialBatches("test", data.take(20), None, 30, None, 0)
        ((held, _),) = batches.held_out.batches(1000)[0]
        assert len(held) == 30 and (held.numpy() < 40).all()
        seen = np.concatenate([x for x, _ in _first(batches.training(), 36)])
        np.testing.assert_array_equal(np.unique(seen), np.arange(40, EXAMPLES))
    validation = TrialBatches("test", (numbers, numbers), (-numbers - 1, numbers), 9, 16, 0)
    assert validation.held_out.seen == EXAMPLES
    assert len(np.unique(np.concatenate([x for x, _ in _first(validation.training(), 25)]))) == 400


def test_labels_that_are_columns_are_counted(monkeypatch):
    monkeypatch.setattr(trial_batches, "_ROWS_TO_COUNT", 120)
    scipy_sparse = pytest.importorskip("scipy.sparse")
    rows, ids = np.arange(60), np.arange(60) % 7
    given = np.arange(60)[:, np.newaxis]
    counts = TrialBatches("test", (given, ids), (given, ids), 9, 60, 0).label_counts(9)
    np.testing.assert_allclose(counts / counts.sum(), np.bincount(ids, minlength=9) / 60)
    for dtype in (bool, "float32"):
        matrix = scipy_sparse.csr_matrix((np.ones(60, dtype), (rows, ids)), (60, 9))
        batches = TrialBatches("test", (given, matrix), (given, ids), 9, 60, 0)
        np.testing.assert_array_equal(batches.label_counts(9), counts)


def _first(batches, number):
    return [batch for batch, _ in zip(batches, range(number), strict=False)]


@pytest.mark.all_cases
@cases_of("kind", ["dense", "sampled", "index", "hierarchical", "factored", "tf"])
def test_what_a_head_lacks_is_not_tried(kind):
    rows = {
        "dense": ("dense", {"learning_rate"}),
        "sampled": ("sampled", {*Settings._fields}),
        "index": ("sampled_index", {"learning_rate", "head_learning_rate", "sampler"}),
        "hierarchical": ("hierarchical", {"learning_rate", "head_learning_rate"}),
        "factored": ("factored", {"learning_rate", "head_learning_rate"}),
        "tf": ("tf_sampled_softmax", {"learning_rate"}),
    }
    name, expected = rows[kind]
    row = next(row for row in HEADS if row.name.startswith(name))
    model = model_with(row.make_head(CLASSES), row.make_loss(), keras.optimizers.SGD(0.01))
    chosen = tlo.choose_settings(model, (X, Y), trials=2, **ONE_STEP)
    assert expected - {"sampler"} <= set(chosen.settings) <= expected | {"sampler", "num_sampled"}
    assert len(chosen.rows) == 2 and np.isfinite(chosen.rows[0]["loss"])


@pytest.mark.parametrize("kind", ["sampled", "exact"])
def test_a_tie_is_kept(kind):
    words = tlo.layers.RowEmbedding(CLASSES, 4)
    head = (
        tlo.heads.TiedSampledHead(words, samplers.LogUniform(8))
        if kind == "sampled"
        else tlo.heads.TiedExactSoftmaxHead(words)
    )
    loss = losses.SampledSoftmax() if kind == "sampled" else losses.SoftmaxCrossentropy()
    inputs = keras.Input([3], dtype="int32")
    hidden = keras.layers.GlobalAveragePooling1D()(words(inputs))
    model = keras.Model(inputs, head(hidden))
    model.compile(optimizers.RowAdam(0.01), loss, run_eagerly=True)
    x = np.stack([Y, Y, Y], axis=1)
    chosen = tlo.choose_settings(model, (x, Y), trials=2, steps=1, rows=4)
    assert len(chosen.rows) == 2
    assert [w.shape for w in chosen.model().weights] == [w.shape for w in model.weights]


def test_a_schedule_is_kept():
    falling = keras.optimizers.schedules.CosineDecay(0.01, 100)
    model = model_with(optimizer=keras.optimizers.Adam(falling))
    chosen = tlo.choose_settings(model, (X, Y), trials=2, **SHORT)
    assert "learning_rate" not in chosen.settings
    assert isinstance(chosen.model().optimizer._learning_rate, type(falling))


def test_a_trial_that_diverges_is_not_chosen():
    model = model_with()
    trial_model = TrialModel(model, TrialBatches("test", (X, Y), None, 40, 16, 0))
    search = module._Search(trial_model, module._Clock(0, None, 4, 5), [])
    good = search._try(trial_model.settings, 1, "start")
    bad = search._try(trial_model.settings._replace(head_learning_rate=1e30), 1, "short")
    assert not search._is_better(bad, good)
    assert min([bad, good], key=module._score) is good
    again = search._try(trial_model.settings, 1, "short")
    assert again.loss == good.loss  # nothing is left of the other one


def test_trials_end_with_the_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    model = model_with()
    trial_model = TrialModel(model, TrialBatches("test", (X, Y), None, 40, 16, 0))

    def slow_step(batch):
        now[0] += 0.1
        return 1.0

    def slow_score():
        now[0] += 0.3
        return -now[0], 0.0

    trial_model.step, trial_model.score = slow_step, slow_score
    search = module._Search(trial_model, module._Clock(0.0, 24.0, None, 5), [])
    search.run()
    assert now[0] <= 24.1
    assert sum(trial.stage == "final" for trial in search.trials) == 3
    assert all(trial.seconds <= 1.1 for trial in search.trials if trial.stage == "short")
    now[0] = 0.0
    least = module._Search(trial_model, module._Clock(0.0, 0.05, None, 5), [])
    least.run()
    assert [trial.steps for trial in least.trials] == [1]


REFUSED = {
    "no model": (lambda: ("model", (X, Y)), {}, TypeError, "model must be a compiled keras model"),
    "no head": (
        lambda: (model_with(keras.layers.Dense(CLASSES), "mse"), (X, Y)),
        {},
        TypeError,
        "model must have a head of this package",
    ),
    "not compiled": (
        lambda: (keras.Sequential([keras.Input([2]), keras.layers.Dense(2)]), (X, Y)),
        {},
        ValueError,
        "model must be compiled",
    ),
    "seconds": (lambda: (model_with(), (X, Y)), {"seconds": 0}, ValueError, "seconds must be .* 0"),
    "negative": (lambda: (model_with(), (X, Y)), {"seconds": -1}, ValueError, "seconds must be"),
    "trials": (lambda: (model_with(), (X, Y)), {"trials": 1}, ValueError, "trials must be an int"),
    "both": (
        lambda: (model_with(), (X, Y)),
        {"seconds": 1, "trials": 3},
        ValueError,
        "seconds must be None beside trials; got 1 and 3",
    ),
    "empty": (lambda: (model_with(), (X[:0], Y[:0])), {}, ValueError, "at least 10 rows .* got 0"),
    "no batch": (
        lambda: (model_with(), tf.data.Dataset.from_tensor_slices((X, Y)).batch(9).take(0)),
        {},
        ValueError,
        "data must have at least one batch; got none",
    ),
    "one batch": (
        lambda: (model_with(), tf.data.Dataset.from_tensors((X, Y))),
        {},
        ValueError,
        "data must have batches beside the rows held out; got none",
    ),
    "batch_size": (
        lambda: (model_with(), tf.data.Dataset.from_tensors((X, Y))),
        {"batch_size": 3},
        ValueError,
        "batch_size must be None where data come in batches; got 3",
    ),
    "labels": (
        lambda: (model_with(), (X, Y + CLASSES)),
        {"trials": 2},
        tf.errors.InvalidArgumentError,
        "labels",
    ),
}


@pytest.mark.all_cases
@cases_of("case", list(REFUSED))
def test_what_can_not_be_is_refused(case):
    make, options, error, message = REFUSED[case]
    given = make()
    with pytest.raises(error, match=message):
        tlo.choose_settings(*given, **options)


def test_seconds_of_the_clock():
    chosen = tlo.choose_settings(model_with(), (X, Y), seconds=0.5, rows=40, batch_size=16)
    assert chosen.rows[0]["stage"] == "start" and chosen.rows[0]["steps"] >= 1
