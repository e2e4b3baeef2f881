# SPDX-License-Identifier: Apache-2.0
"""Objective: mean loss, gradient and products from the sums of workers, and counters."""

from __future__ import annotations

import collections
import contextlib
import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.meeting import together
from tfx_largeout.distribute.workers import Workers
from tfx_largeout.hessian_free.agreement import SITE, agree_on_problem, refuse_heads
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.flat_parameters import FlatParameters, WeightPenalty
from tfx_largeout.hessian_free.over_workers import OverWorkers
from tfx_largeout.hessian_free.samples import GradientNoise
from tfx_largeout.hessian_free.worker import VectorTotal, Worker

MakeWorker = Callable[[Curvature, Examples, int], Worker]

_MICRO_BATCHES = 16


class Gradient(NamedTuple):
    """The gradient of the mean loss of a sample, including the penalty.

    Attributes:
        vector: g `[n]`.
        loss: Mean loss of the sample, including the penalty.
        size: Examples in the sample.
        noise: The noise of the gradient without penalty; None with only one micro-batch.
    """

    vector: tf.Tensor
    loss: float
    size: int
    noise: GradientNoise | None


class Objective:
    """The mean loss over examples plus a penalty on the weights.

    `training` has the examples for gradients and products, `held_out` for the line search.

    Attributes:
        points: The number of examples that went through the model so far (repeats count), for
            `"gradient"`, `"cg"` and `"line_search"`.
        seconds: Time since `start_clock`, under the same names.
    """

    def __init__(
        self,
        parameters: FlatParameters,
        training: Worker,
        held_out: Worker,
        penalty: WeightPenalty,
    ) -> None:
        self._parameters, self._penalty = parameters, penalty
        self._training, self._held_out = training, held_out
        self._all_held_out = np.arange(held_out.num_examples)
        self._held = 0
        self.start_clock()
        self.points: collections.Counter[str] = collections.Counter()

    @property
    def num_examples(self) -> int:
        """The number of examples for gradients and products."""
        return self._training.num_examples

    def start_clock(self) -> None:
        """Sets `seconds` to 0."""
        self.seconds = dict.fromkeys(("gradient", "cg", "line_search"), 0.0)

    @contextlib.contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Adds the time in this context to `seconds`."""
        start = time.perf_counter()
        yield
        self.seconds[name] += time.perf_counter() - start

    def read(self) -> tf.Tensor:
        """Returns theta `[n]`."""
        return self._parameters.read()

    def assign(self, theta: tf.Tensor) -> None:
        """Sets the weights to theta `[n]`, here and on all workers."""
        self._parameters.assign(theta)
        self._training.set_parameters(theta)
        self._held_out.set_parameters(theta)

    def loss_at(self, theta: tf.Tensor) -> float:
        """Returns L(theta), the loss on the line search data, including the penalty.

        Afterwards the weights are theta, here and on the worker that has these data.
        """
        self._parameters.assign(theta)
        self._held_out.set_parameters(theta)
        self.points["line_search"] += len(self._all_held_out)
        total = self._held_out.loss(self._all_held_out)
        return _mean(total.loss, total.weight) + self._penalty.value()

    def gradient(self, numbers: np.ndarray, with_noise: bool) -> Gradient:
        """Returns the gradient on the examples with these numbers (ascending)."""
        self.points["gradient"] += len(numbers)
        micro_batch = max(1, len(numbers) // _MICRO_BATCHES) if with_noise else None
        total = self._training.gradient(numbers, micro_batch)
        return Gradient(
            self._penalty.add_gradient(_mean_vector(total)),
            _mean(total.loss, total.weight) + self._penalty.value(),
            len(numbers),
            _noise(total, len(numbers)) if with_noise else None,
        )

    def hold(self, numbers: np.ndarray) -> None:
        """Fixes the sample of products."""
        self._held = len(numbers)
        self._training.hold(numbers)

    def product(self, vector: tf.Tensor) -> tf.Tensor:
        """Returns G v `[n]`, including the penalty, on the held sample."""
        self.points["cg"] += self._held
        mean = _mean_vector(self._training.product(vector))
        return self._penalty.add_product(mean, vector)

    def squared_gradients(self, generator: np.random.Generator) -> tf.Tensor:
        """Returns an estimate of the mean squared gradient of the held sample, `[n]`."""
        self.points["cg"] += self._held
        signs = generator.choice([-1.0, 1.0], self._held)
        total = self._training.squared_gradients(signs, max(1, self._held // _MICRO_BATCHES))
        return _mean_vector(total)


def make_objective(
    workers: Workers,
    model: keras.Model,
    make_examples: Callable[[], tuple[Examples, Examples]],
    make_worker: MakeWorker,
    batch_size: int,
    sharded: bool,
) -> Objective:
    """Returns the objective of a compiled model; builds the model if needed.

    `make_examples` returns the examples for gradients and for the line search: all of them, or the
    part of this process. An error in one process is raised in all.
    """

    def make() -> tuple[Curvature, tuple[Examples, Examples], list[Worker]]:
        refuse_heads(workers, model)
        parts = make_examples()
        if not model.built:
            model(parts[0].take(np.arange(1))[0], training=False)
        curvature = Curvature(model, parts[0].spec)
        return curvature, parts, [make_worker(curvature, part, batch_size) for part in parts]

    curvature, parts, own = together(workers, SITE, make)
    parameters = curvature.parameters

    def over_all() -> list[Worker]:
        agree_on_problem(workers, model, *parts, sharded)
        return [OverWorkers(each, workers, parameters, batch_size, sharded) for each in own]

    # A single process needs no pass over the data, nor over each vector.
    training, held_out = workers.pick(lambda: own, over_all)()
    return Objective(parameters, training, held_out, WeightPenalty(model.trainable_variables))


def _mean_vector(total: VectorTotal) -> tf.Tensor:
    return total.vector / total.weight if total.weight else total.vector


def _mean(total: float, weight: float) -> float:
    return total / weight if weight else math.nan


def _noise(total: VectorTotal, examples: int) -> GradientNoise | None:
    """The variance of an example's gradient, from the squares of micro-batches.

    With the sum G_k over micro-batch k of n_k examples, sum_k n_k |G_k / n_k - G / n|^2 / (K - 1)
    has this expectation for any sizes.
    """
    if total.micro_batches < 2 or not total.weight:
        return None
    squared_sum = float(tf.reduce_sum(total.vector**2))
    spread = (total.squares - squared_sum / examples) / (total.micro_batches - 1)
    scale = examples / total.weight
    return GradientNoise(squared_sum / total.weight**2, max(spread, 0.0) * scale**2)
