# SPDX-License-Identifier: Apache-2.0
"""Builds the model of one head, and trains it with plain `compile` and `fit`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from tfx_largeout.compare.event_file import EventFile
from tfx_largeout.compare.head_options import OPTIMIZERS, SAME, fitted
from tfx_largeout.compare.head_table import HeadRow
from tfx_largeout.compare.own_head import find_row
from tfx_largeout.compare.peers import K, precision
from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.timed_fit import timed_fit
from tfx_largeout.datasets import SparseExamples
from tfx_largeout.distribute import DataParallel, current, shard
from tfx_largeout.distribute.class_shard import parameters_of_all
from tfx_largeout.layers import SparseDense
from tfx_largeout.metrics import ExactLoss, PrecisionAtK, PSPrecisionAtK
from tfx_largeout.models.nearest_neighbors import NearestNeighborModel
from tfx_largeout.ops import library


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
    model, optimizers = build_model(settings, train_examples)
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
    falling = optimizers if common.schedule == "linear" else []
    clock = timed_fit(model, data, common, steps_per_epoch, evaluate, send, events, falling)

    def add_neighbors() -> None:
        examples = train_examples, test_examples
        point = with_neighbors(model, clock.seconds, *examples, common.batch_size)
        send("with_neighbors", point=dataclasses.asdict(point))

    def leave_out() -> None:
        send("note", text=f"{settings.head}: neighbors are left out over several workers.")

    if options["neighbors"] == "yes":
        current().pick(add_neighbors, leave_out)()
    send("done", step=clock.steps, seconds=clock.seconds)


def build_model(
    settings: WorkerSettings, train_examples: SparseExamples
) -> tuple[keras.Model, list[keras.optimizers.Optimizer]]:
    """Returns the model of a head, compiled (sparse input, the trunk, the head); its optimizers."""
    label_counts = train_examples.label_counts()
    inputs = keras.Input([train_examples.num_features], sparse=True)
    hidden = _trunk(inputs, settings.training)
    row = find_row(settings.head, settings.function)
    head, loss = row.build(
        train_examples.num_labels, label_counts, settings.training.seed, settings.options
    )
    model = keras.Model(inputs, head(hidden))
    optimizers = _build_optimizers(row, settings.options)
    optimizer = _as_one(optimizers)
    model.compile(
        current().pick(lambda: optimizer, lambda: DataParallel(optimizer))(),
        loss=loss,
        metrics=_metrics(settings.data, label_counts, len(train_examples)),
    )
    return model, optimizers


def _trunk(inputs: Any, settings: TrainingSettings) -> Any:
    """Returns h. The name of its layer is that by which optimizers tell it from the head."""
    hidden = SparseDense(settings.hidden, activation="relu", name="trunk")(inputs)
    if not settings.dropout:
        return hidden
    return keras.layers.Dropout(settings.dropout, seed=settings.seed)(hidden)


def _build_optimizers(row: HeadRow, options: dict[str, Any]) -> list[keras.optimizers.Optimizer]:
    """Returns the optimizer of the trunk, and that of the head if it is another one."""
    names = ["trunk"]
    if not row.updates_itself and options["head_optimizer"] != SAME:
        names.append("head")
    return [
        OPTIMIZERS[options[f"{name}_optimizer"]](options[f"{name}_learning_rate"]) for name in names
    ]


def _as_one(
    optimizers: list[keras.optimizers.Optimizer],
) -> keras.optimizers.Optimizer:
    trunk, *head = optimizers
    if not head:
        return trunk
    return keras.optimizers.MultiOptimizer(
        keras.optimizers.OptimizerMap(head[0], {"trunk.*": trunk})
    )


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
        "dropout": common.dropout,
        "schedule": common.schedule,
        "seed": common.seed,
        "features": settings.data.features,
        **settings.options,
    }


# Of neighbors by the trunk's output and by features; chosen on held-out examples of WordNet.
_WEIGHT, _FEATURE_WEIGHT = 0.2, 0.4


def with_neighbors(
    model: keras.Model,
    seconds: float,
    train: SparseExamples,
    test: SparseExamples,
    batch_size: int,
) -> CurvePoint:
    """Evaluates a trained model together with nearest neighbors: see `NearestNeighborModel`.

    Args:
        model: The model.
        seconds: Seconds of its training; those that the neighbors take to store are added.
        train: The examples that are neighbors.
        test: To evaluate on.
        batch_size: Examples a batch.
    """
    start = time.perf_counter()
    k = min(K, train.num_labels)
    both = NearestNeighborModel(model, k, weight=_WEIGHT, feature_weight=_FEATURE_WEIGHT)
    both.adapt(train.dataset(batch_size))
    seconds += time.perf_counter() - start
    _, ids = both.predict(test.dataset(batch_size), verbose=0)
    found = precision(np.pad(ids, [(0, 0), (0, K - k)], constant_values=-1), test)
    return CurvePoint(0, 0.0, seconds, None, *(found[k] for k in (1, 3, 5)))
