# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import dataclasses

import keras
import numpy as np
import pytest
from keras.ops import convert_to_numpy

from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.head_table import head_row
from tfx_largeout.compare.settings import TRUNKS, DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.training import build_model, train


def settings_for(folder, head="full_softmax", **options):
    train, test = find_files(str(folder))
    options = {**head_row(head).options, **options}
    data, training = DataSettings(None, train, test), TrainingSettings(batch_size=64, hidden=16)
    return WorkerSettings(head, options, data, training, "")


@pytest.mark.parametrize(
    ("trunk_optimizer", "trunk_moves"),
    [
        ("same", False),
        ("sgd", True),
        ("adam", True),
        ("fused_adam", True),
        ("adagrad", True),
        ("row_rmsprop", True),
    ],
)
def test_the_trunk_may_have_an_optimizer_of_its_own(tiny_data, trunk_optimizer, trunk_moves):
    settings = settings_for(
        tiny_data,
        optimizer="sgd",
        learning_rate=1e-12,
        trunk_optimizer=trunk_optimizer,
        trunk_learning_rate=0.1,
    )
    examples, _ = load(settings.data)
    model = build_model(settings, examples)
    trunk, head = model.get_layer("trunk"), model.get_layer("head")
    before = [convert_to_numpy(layer.kernel) for layer in (trunk, head)]
    model.fit(examples.dataset(64), epochs=1, shuffle=False, verbose=0)
    assert np.allclose(before[1], convert_to_numpy(head.kernel), rtol=0, atol=1e-9)
    assert np.allclose(before[0], convert_to_numpy(trunk.kernel), rtol=0, atol=1e-6) != trunk_moves


@pytest.mark.parametrize("trunk", TRUNKS)
def test_every_layer_of_a_trunk_has_its_optimizer(tiny_data, trunk):
    settings = settings_for(tiny_data, trunk_optimizer="sgd", trunk_learning_rate=0.1)
    training = dataclasses.replace(settings.training, trunk=trunk)
    examples, _ = load(settings.data)
    model = build_model(dataclasses.replace(settings, training=training), examples)
    layers = [layer for layer in model.layers if layer.name.startswith("trunk")]
    assert len(layers) == {"relu": 1, "dropout": 1, "residual": 2}[trunk]
    before = [convert_to_numpy(layer.kernel) for layer in layers]
    model.optimizer.build(model.trainable_variables)
    sgd = next(o for o in model.optimizer.optimizers if isinstance(o, keras.optimizers.SGD))
    sgd.learning_rate = 0.0
    model.fit(examples.dataset(64), epochs=1, shuffle=False, verbose=0)
    for kernel, layer in zip(before, layers, strict=True):
        np.testing.assert_array_equal(kernel, convert_to_numpy(layer.kernel))


def test_a_keras_without_multi_optimizer_says_so(tiny_data, monkeypatch):
    monkeypatch.delattr(keras.optimizers, "MultiOptimizer")
    settings = settings_for(tiny_data, trunk_optimizer="adam")
    examples, _ = load(settings.data)
    with pytest.raises(RuntimeError, match="use --trunk-optimizer same"):
        build_model(settings, examples)


def test_the_same_seed_gives_the_same_trunk_to_each_head(tiny_data):
    kernels = []
    for head in ("full_softmax", "tf_nce"):
        settings = settings_for(
            tiny_data, head, **({} if head == "full_softmax" else {"num_sampled": 20})
        )
        examples, _ = load(settings.data)
        keras.utils.set_random_seed(0)
        kernels.append(convert_to_numpy(build_model(settings, examples).get_layer("trunk").kernel))
    np.testing.assert_array_equal(*kernels)


def events_of_a_short_training(folder, events, batch_size):
    settings = settings_for(folder)
    training = TrainingSettings(None, 2, 1, batch_size=batch_size, hidden=8)
    settings = dataclasses.replace(settings, training=training, events=str(events))
    sent = []
    train(settings, *load(settings.data), lambda event, **fields: sent.append((event, fields)))
    return [(event, fields) for event, fields in sent if event != "progress"]


@pytest.mark.parametrize(("batch_size", "steps_per_epoch"), [(100, 6), (1000, 1)])
def test_only_whole_batches_if_there_is_one(tiny_data, tmp_path, batch_size, steps_per_epoch):
    events = events_of_a_short_training(tiny_data, tmp_path, batch_size)
    events = [(event, fields) for event, fields in events if event != "note"]
    assert [event for event, _ in events] == ["ready", "point", "point", "done"]
    assert events[0][1]["steps_per_epoch"] == steps_per_epoch
    assert events[-1][1]["step"] == 2 * steps_per_epoch


@pytest.mark.thorough
def test_a_note_says_that_the_custom_ops_are_not_in_use(tiny_data, tmp_path, monkeypatch):
    monkeypatch.setenv("TFX_LARGEOUT_FORCE_FALLBACK", "1")
    (note, *_) = events_of_a_short_training(tiny_data, tmp_path, 1000)
    assert note == ("note", {"text": "custom ops switched off by TFX_LARGEOUT_FORCE_FALLBACK"})
