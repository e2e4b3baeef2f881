# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses
from copy import deepcopy

import keras
import numpy as np
import pytest
from compare.conftest import needs_two_optimizers
from keras.ops import convert_to_numpy

from tfx_largeout.compare import training as training_module
from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.head_table import head_row
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.training import build_model, train


def settings_for(folder, head="full_softmax", **options):
    train, test = find_files(str(folder))
    options = {**head_row(head).default_options, **options}
    data, training = DataSettings(None, train, test), TrainingSettings(batch_size=64, hidden=16)
    return WorkerSettings(head, options, data, training, "")


@needs_two_optimizers
@pytest.mark.parametrize("trunk_optimizer", ["sgd", "adam", "fused_adam", "adagrad", "row_rmsprop"])
def test_trunk_and_head_may_have_an_optimizer_each(tiny_data, trunk_optimizer):
    rates = {"head_learning_rate": 1e-12, "trunk_learning_rate": 0.1}
    settings = settings_for(
        tiny_data, trunk_optimizer=trunk_optimizer, head_optimizer="sgd", **rates
    )
    examples, _ = load(settings.data)
    model, _ = build_model(settings, examples)
    trunk, head = model.get_layer("trunk"), model.get_layer("head")
    before = [convert_to_numpy(layer.kernel) for layer in (trunk, head)]
    model.fit(examples.dataset(64), epochs=1, shuffle=False, verbose=0)
    assert np.allclose(before[1], convert_to_numpy(head.kernel), rtol=0, atol=1e-9)
    assert not np.allclose(before[0], convert_to_numpy(trunk.kernel), rtol=0, atol=1e-6)


def test_the_optimizer_of_the_trunk_may_train_the_head_too(tiny_data):
    settings = settings_for(tiny_data, head_optimizer="same")
    examples, _ = load(settings.data)
    model, optimizers = build_model(settings, examples)
    assert optimizers == [model.optimizer]


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_the_trunk_has_dropout_if_it_is_asked_for(tiny_data, dropout):
    settings = settings_for(tiny_data)
    training = dataclasses.replace(settings.training, dropout=dropout)
    model, _ = build_model(dataclasses.replace(settings, training=training), load(settings.data)[0])
    found = [layer.rate for layer in model.layers if isinstance(layer, keras.layers.Dropout)]
    assert found == [0.25] * (dropout > 0)


class Optimizers(list):
    """Gets the optimizers that a model is built with."""

    def __init__(self, monkeypatch):
        super().__init__()

        def build(settings, examples):
            model, optimizers = build_model(settings, examples)
            self.extend(optimizers)
            return model, optimizers

        monkeypatch.setattr(training_module, "build_model", build)


@pytest.mark.all_cases
@pytest.mark.parametrize("head", ["full_softmax", "complementary_sum"])
@pytest.mark.parametrize(
    ("schedule", "last"),
    [("linear", 0.02), pytest.param("constant", 1.0, marks=pytest.mark.thorough)],
)
def test_rates_fall_by_the_schedule(tiny_data, tmp_path, monkeypatch, head, schedule, last):
    optimizers = Optimizers(monkeypatch)
    few = {"num_sampled": 20, "neighbors": "no"} if head == "complementary_sum" else {}
    settings = settings_for(tiny_data, head, **few)
    training = TrainingSettings(None, 1, 1, batch_size=100, hidden=8, schedule=schedule)
    settings = dataclasses.replace(settings, training=training, events=str(tmp_path))
    train(settings, *load(settings.data), lambda **_: None)
    names = ["trunk", "head"][: len(optimizers)]
    if head == "complementary_sum":  # follows the trunk's
        assert len(names) == 1
    for name, optimizer in zip(names, optimizers, strict=True):
        rate = settings.options[f"{name}_learning_rate"]
        assert float(optimizer.learning_rate) == pytest.approx(last * rate)


@pytest.mark.parametrize(
    ("classes", "least", "most"),
    [pytest.param(200, 0.15, 0.4, marks=pytest.mark.thorough), (3, 0.3, 0.4)],
)
def test_a_head_and_nearest_neighbors_together(tiny_data, tmp_path, classes, least, most):
    settings = settings_for(tiny_data, "complementary_sum", num_sampled=2, neighbors="yes")
    training = TrainingSettings(None, 4, 1, batch_size=64, hidden=16, dropout=0.0)
    settings = dataclasses.replace(settings, training=training, events=str(tmp_path))
    examples = [
        dataclasses.replace(each, label_ids=each.label_ids % classes, num_labels=classes)
        for each in load(settings.data)
    ]
    sent = {}
    train(settings, *examples, lambda **told: sent.update(deepcopy(told)))
    together, alone = sent["with_neighbors"], sent["point"]
    assert together["precision_at_1"] > 0.5
    assert least < together["precision_at_5"] <= most  # two labels per example
    assert together["seconds"] > alone["seconds"] > 0 and together["exact_loss"] is None


def test_the_same_seed_gives_the_same_trunk_to_each_head(tiny_data):
    kernels = []
    for head in ("full_softmax", "tf_nce"):
        settings = settings_for(
            tiny_data, head, **({} if head == "full_softmax" else {"num_sampled": 20})
        )
        examples, _ = load(settings.data)
        keras.utils.set_random_seed(0)
        kernels.append(
            convert_to_numpy(build_model(settings, examples)[0].get_layer("trunk").kernel)
        )
    np.testing.assert_array_equal(*kernels)


def events_of_a_short_training(folder, events, batch_size):
    settings = settings_for(folder)
    training = TrainingSettings(None, 2, 1, batch_size=batch_size, hidden=8)
    settings = dataclasses.replace(settings, training=training, events=str(events))
    sent = []
    train(settings, *load(settings.data), lambda **told: sent.append(told))
    return [told for told in sent if told.keys() != {"steps", "seconds", "loss"}]


@pytest.mark.parametrize(("batch_size", "steps_per_epoch"), [(100, 6), (1000, 1)])
def test_only_whole_batches_if_there_is_one(tiny_data, tmp_path, batch_size, steps_per_epoch):
    events = events_of_a_short_training(tiny_data, tmp_path, batch_size)
    ready, first, second, done = (told for told in events if "note" not in told)
    assert ready["steps_per_epoch"] == steps_per_epoch
    assert [first["point"]["step"], second["point"]["step"]] == [0, 2 * steps_per_epoch]
    assert (done["status"], done["steps"]) == ("done", 2 * steps_per_epoch)


@pytest.mark.thorough
def test_a_note_says_that_the_custom_ops_are_not_in_use(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")
    (note, *_) = events_of_a_short_training(tiny_data, tmp_path, 1000)
    assert note == {"note": "custom ops switched off by TFX_LARGEOUT_FORCE_FALLBACK"}
