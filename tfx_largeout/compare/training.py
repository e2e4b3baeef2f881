# SPDX-License-Identifier: Apache-2.0
"""Builds the model of one head, and trains it with plain `compile` and `fit`."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable

import keras
import numpy as np

from tfx_largeout.compare.data import sizes
from tfx_largeout.compare.head_builders import HeadBuilder
from tfx_largeout.compare.head_options import OPTIMIZERS, SAME, fitted
from tfx_largeout.compare.head_table import head_row
from tfx_largeout.compare.peers import K, precision
from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.compare.settings import WorkerSettings
from tfx_largeout.compare.timed_fit import EventFile, Supervisor
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
    """Trains one head, and sends events by `send`; see `worker.py`."""
    common = settings.training
    keras.utils.set_random_seed(common.seed)
    row = head_row(settings.head, settings.function)
    options = fitted(
        settings.options,
        row.default_options,
        train_examples.num_labels,
        row.in_proportion,
        settings.chosen,
    )
    if options != settings.options:
        settings = dataclasses.replace(settings, options=options)
        send(options=options)
    model, optimizers = build_model(settings, train_examples)
    # A small last batch would take several times as long per example.
    batches = train_examples.dataset(
        common.batch_size,
        shuffle=True,
        seed=common.seed,
        drop_remainder=len(train_examples) >= common.batch_size,
    )
    batches, test_batches = shard(batches), shard(test_examples.dataset(common.batch_size))
    steps_per_epoch = int(batches.cardinality())
    if library.load() is None:
        send(note=library.library_status())
    events = None
    if current().rank == 0:
        names = ("batch_size", "hidden", "dropout", "schedule", "seed")
        shared = {name: getattr(common, name) for name in names}
        shared["features"] = settings.data.features
        events = EventFile(settings.events, {"head": settings.head, **shared, **options})
    send(
        stage="training",
        steps_per_epoch=steps_per_epoch,
        parameters=sum(parameters_of_all(variable) for variable in model.weights),
        implementation=library.library_status(),
        batch_size=min(common.batch_size, len(train_examples)),
        data=sizes(train_examples, test_examples),
    )

    def evaluate() -> dict[str, float]:
        values = model.evaluate(test_batches, verbose=0, return_dict=True)
        return {name: value for name, value in values.items() if name != "loss"}

    falling = optimizers if common.schedule == "linear" else []
    supervisor = Supervisor(common, steps_per_epoch, evaluate, send, events, falling)
    clock = supervisor.fit(model, {"x": batches, "shuffle": False})

    def add_neighbors() -> None:
        examples = train_examples, test_examples
        point = _with_neighbors(model, clock.seconds, *examples, common.batch_size)
        send(with_neighbors=dataclasses.asdict(point))

    def leave_out() -> None:
        send(note=f"{settings.head}: neighbors are left out over several workers.")

    if options["neighbors"] == "yes":
        current().pick(add_neighbors, leave_out)()
    send(status="done", steps=clock.steps, seconds=clock.seconds)


def build_model(
    settings: WorkerSettings, train_examples: SparseExamples
) -> tuple[keras.Model, list[keras.optimizers.Optimizer]]:
    """Returns the model of a head, compiled (sparse input, the trunk, the head).

    Also returns the optimizer of the trunk, and the head's if it is separate.
    """
    common, options = settings.training, settings.options
    label_counts = train_examples.label_counts()
    inputs = keras.Input([train_examples.num_features], sparse=True)
    # Optimizers distinguish trunk and head by the name of the trunk.
    hidden = SparseDense(common.hidden, activation="relu", name="trunk")(inputs)
    if common.dropout:
        hidden = keras.layers.Dropout(common.dropout, seed=common.seed)(hidden)
    row = head_row(settings.head, settings.function)
    builder = HeadBuilder(train_examples.num_labels, label_counts, common.seed, options)
    head, loss = row.make(builder)
    model = keras.Model(inputs, head(hidden))
    optimizer = OPTIMIZERS[options["trunk_optimizer"]](options["trunk_learning_rate"])
    optimizers = [optimizer]
    if not row.updates_itself and options["head_optimizer"] != SAME:
        own = OPTIMIZERS[options["head_optimizer"]](options["head_learning_rate"])
        optimizers.append(own)
        by_weight = keras.optimizers.OptimizerMap(own, {"trunk.*": optimizer})
        optimizer = keras.optimizers.MultiOptimizer(by_weight)
    a, b = settings.data.propensity_a, settings.data.propensity_b
    metrics = [PrecisionAtK(k) for k in (1, 3, 5)]
    metrics += [PSPrecisionAtK(1, label_counts, len(train_examples), a, b), ExactLoss()]
    model.compile(
        current().pick(lambda: optimizer, lambda: DataParallel(optimizer))(),
        loss=loss,
        metrics=metrics,
    )
    return model, optimizers


# Weights of neighbors by the trunk's output and by features; chosen on held-out WordNet examples.
_WEIGHT, _FEATURE_WEIGHT = 0.2, 0.4


def _with_neighbors(
    model: keras.Model, seconds: float, train: SparseExamples, test: SparseExamples, batch: int
) -> CurvePoint:
    """Evaluates a trained model together with nearest neighbors: see `NearestNeighborModel`.

    The time to store the neighbors is added to the `seconds` of training.
    """
    start = time.perf_counter()
    k = min(K, train.num_labels)
    both = NearestNeighborModel(model, k, weight=_WEIGHT, feature_weight=_FEATURE_WEIGHT)
    both.adapt(train.dataset(batch))
    seconds += time.perf_counter() - start
    _, ids = both.predict(test.dataset(batch), verbose=0)
    found = precision(np.pad(ids, [(0, 0), (0, K - k)], constant_values=-1), test)
    return CurvePoint(0, 0.0, seconds, None, *found.values())
