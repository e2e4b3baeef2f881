# SPDX-License-Identifier: Apache-2.0
"""Builds the model of one head, and trains it with plain `compile` and `fit`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

from tfx_largeout.compare.event_file import EventFile
from tfx_largeout.compare.head_options import OPTIMIZERS, fitted
from tfx_largeout.compare.own_head import find_row
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.timed_fit import timed_fit
from tfx_largeout.datasets import SparseExamples
from tfx_largeout.distribute import DataParallel, current, shard
from tfx_largeout.distribute.class_shards import parameters_of_all
from tfx_largeout.layers import SparseDense
from tfx_largeout.metrics import ExactLoss, PrecisionAtK, PSPrecisionAtK
from tfx_largeout.ops import library

_DROPOUT = 0.5


def train(
    settings: WorkerSettings,
    train_examples: SparseExamples,
    test_examples: SparseExamples,
    send: Callable[..., None],
) -> None:
    """Trains one head, and sends what happens.

    Args:
        settings: The head, its options, and what it has in common with the others.
        train_examples: To train on.
        test_examples: To evaluate on.
        send: `send(event, **fields)`; see `worker.py`.
    """
    common = settings.training
    keras.utils.set_random_seed(common.seed)
    row = find_row(settings.head, settings.function)
    options = fitted(
        settings.options,
        row.default_options,
        train_examples.num_labels,
        row.in_proportion,
        settings.chosen,
    )
    if options != settings.options:
        settings = dataclasses.replace(settings, options=options)
        send("options", options=options)
    model = build_model(settings, train_examples)
    # A small last batch would make a step several times as long for its examples.
    batches = train_examples.dataset(
        common.batch_size,
        shuffle=True,
        seed=common.seed,
        drop_remainder=len(train_examples) >= common.batch_size,
    )
    batches, test_batches = shard(batches), shard(test_examples.dataset(common.batch_size))
    steps_per_epoch = int(batches.cardinality())
    if library.load() is None:
        send("note", text=library.library_status())
    events = None
    if current().rank == 0:
        events = EventFile(settings.events, _hyper_parameters(settings))
    send(
        "ready",
        steps_per_epoch=steps_per_epoch,
        parameters=sum(parameters_of_all(variable) for variable in model.weights),
        implementation=library.library_status(),
        batch_size=min(common.batch_size, len(train_examples)),
        data={
            "train_examples": len(train_examples),
            "test_examples": len(test_examples),
            "features": train_examples.num_features,
            "classes": train_examples.num_labels,
        },
    )

    def evaluate() -> dict[str, float]:
        values = model.evaluate(test_batches, verbose=0, return_dict=True)
        return {name: value for name, value in values.items() if name != "loss"}

    data = {"x": batches, "shuffle": False}
    timed_fit(model, data, common, steps_per_epoch, evaluate, send, events)


def build_model(settings: WorkerSettings, train_examples: SparseExamples) -> keras.Model:
    """Returns the model of a head, compiled: sparse input, the trunk, the head."""
    label_counts = train_examples.label_counts()
    inputs = keras.Input([train_examples.num_features], sparse=True)
    hidden = _trunk(inputs, settings.training)
    head, loss = find_row(settings.head, settings.function).build(
        train_examples.num_labels, label_counts, settings.training.seed, settings.options
    )
    model = keras.Model(inputs, head(hidden))
    optimizer = _build_optimizer(settings.options)
    model.compile(
        optimizer if current().alone else DataParallel(optimizer),
        loss=loss,
        metrics=_metrics(settings.data, label_counts, len(train_examples)),
    )
    return model


def _trunk(inputs: Any, settings: TrainingSettings) -> Any:
    """Returns h. Names begin with `trunk`, by which optimizers tell it from the head."""
    hidden = SparseDense(settings.hidden, activation="relu", name="trunk")(inputs)
    if settings.trunk == "relu":
        return hidden
    hidden = keras.layers.Dropout(_DROPOUT, seed=settings.seed)(hidden)
    if settings.trunk == "dropout":
        return hidden
    block = keras.layers.Dense(settings.hidden, activation="relu", name="trunk_block")(hidden)
    block = keras.layers.Dropout(_DROPOUT, seed=settings.seed + 1)(block)
    return keras.layers.Add()([hidden, block])


def _build_optimizer(options: dict[str, Any]) -> keras.optimizers.Optimizer:
    optimizer = OPTIMIZERS[options["optimizer"]](options["learning_rate"])
    if options["trunk_optimizer"] == "same":
        return optimizer
    if not hasattr(keras.optimizers, "MultiOptimizer"):
        raise RuntimeError(
            "--trunk-optimizer needs keras.optimizers.MultiOptimizer, of Keras 3.15 or newer; "
            f"got Keras {keras.__version__}: use --trunk-optimizer same"
        )
    trunk = OPTIMIZERS[options["trunk_optimizer"]](options["trunk_learning_rate"])
    by_path = keras.optimizers.OptimizerMap(optimizer, {"trunk.*": trunk})
    return keras.optimizers.MultiOptimizer(by_path)


def _metrics(data: DataSettings, label_counts: Any, num_examples: int) -> list[Any]:
    propensities = (label_counts, num_examples, data.propensity_a, data.propensity_b)
    return [
        PrecisionAtK(1),
        PrecisionAtK(3),
        PrecisionAtK(5),
        PSPrecisionAtK(1, *propensities),
        ExactLoss(),
    ]


def _hyper_parameters(settings: WorkerSettings) -> dict[str, Any]:
    common = settings.training
    return {
        "head": settings.head,
        "batch_size": common.batch_size,
        "hidden": common.hidden,
        "trunk": common.trunk,
        "seed": common.seed,
        "features": settings.data.features,
        **settings.options,
    }
