# SPDX-License-Identifier: Apache-2.0
"""RowMeans: the losses and metrics of a compiled model on rows, and their standard errors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.keras_internals import means_told, metric_names, weighted_losses
from tfx_largeout.metrics.base import ExactMetric, ratios_told

LOSS, STANDARD_ERROR = "loss", "_se"

# For N rows: the terms of the numerator and of the denominator of a mean.
Terms = tuple[tf.Tensor, tf.Tensor]


class RowMeans:
    """Evaluates a compiled model like `evaluate`, with the standard errors of the values.

    Losses are means over all rows with weight, while Keras takes the mean of the means of batches.
    A mean R = sum_n a_n / sum_n b_n over N rows n has the standard error, by the delta method,

        se(R)^2 = m / (m - 1) sum_n z_n^2,   z_n = (a_n - R b_n) / sum_n b_n

    where m is the number of rows with b_n other than 0. For the plain mean of N values this is
    their standard deviation (with N - 1) divided by sqrt(N). In a sequence a_n and b_n are sums
    over the positions of a row, which need not be independent. For a weighted sum of losses, such
    as the loss of several outputs, z_n is the weighted sum of their z_n; for a function of a mean,
    such as the perplexity, z_n is multiplied by its derivative.

    Afterwards the metrics of the model are as before. Nothing is updated.
    """

    def __init__(self, model: keras.Model) -> None:
        self._model = model
        self._metrics: dict[str, Any] = {}
        self._step: Any = self._told if model.run_eagerly else None

    def measure(self, batches: tf.data.Dataset, sizes: list[int]) -> dict[str, float]:
        """Returns values and standard errors (`NAME_se`), of all workers together.

        Args:
            batches: This worker's part of each batch.
            sizes: The number of rows of each batch, of all workers.
        """
        model = self._model
        if self._step is None:
            specs = [batches.element_spec, tf.TensorSpec([], tf.int32)]
            function = tf.function(self._told, input_signature=specs, autograph=False)
            self._step = function.get_concrete_function()
        variables = [variable for metric in model.metrics for variable in metric.variables]
        before = [keras.ops.convert_to_numpy(variable) for variable in variables]
        model.reset_metrics()
        told: dict[str, list[np.ndarray]] = {}
        try:
            for batch, size in zip(batches, sizes, strict=True):
                for name, terms in self._step(batch, tf.constant(size)).items():
                    told.setdefault(name, []).append(np.stack(terms))
            values = _numbers(model.get_metrics_result())
            terms = {name: np.concatenate(parts, axis=1) for name, parts in told.items()}
            losses = self._of_losses(terms)
            # Keras averages the means of batches.
            values |= {name: mean.value for name, mean in losses.items()}
            errors = {name: mean.standard_error for name, mean in losses.items()}
            return _interleaved(values, errors | self._of_metrics(terms))
        finally:
            model.reset_metrics()  # metrics that were created here
            for variable, value in zip(variables, before, strict=True):
                variable.assign(value)

    def directions(self) -> dict[str, str | None]:
        """Returns by name whether `"up"` or `"down"` is better, after the first measurement."""
        losses = dict.fromkeys([LOSS, *(name for name, _ in weighted_losses(self._model))], "down")
        pairs = metric_names(self._model)
        return {name: getattr(metric, "_direction", None) for metric, name in pairs} | losses

    def _told(self, batch: Any, size: tf.Tensor) -> dict[str, Terms]:
        """Updates the metrics by a batch; returns the terms of each mean by a unique name."""
        told: dict[str, Terms] = {}
        losses = 0

        def add(name: str, values: Any, counts: Any) -> None:
            # Positions of a sequence are flattened, or a second dimension.
            terms = [
                tf.reduce_sum(tf.reshape(tf.cast(each, tf.float64), [size, -1]), axis=1)
                for each in (values, counts)
            ]
            known = told.get(name)
            told[name] = tuple(terms if known is None else map(tf.add, known, terms))

        def of_loss(values: Any, counts: Any) -> None:
            nonlocal losses
            if values.shape.rank:
                add(f"loss {losses}", values, counts)
            losses += 1

        def of_metric(metric: Any, values: Any, counts: Any) -> None:
            self._metrics[f"metric {id(metric)}"] = metric
            add(f"metric {id(metric)}", values, counts)

        with means_told(of_loss, of_metric), ratios_told(of_metric):
            self._model.test_step(batch)
        if self._model.losses:  # of regularizers, for example
            added = tf.add_n([tf.cast(loss, tf.float64) for loss in self._model.losses])
            add("added", tf.fill([size], added), tf.ones([size]))
        return told

    def _of_losses(self, terms: dict[str, np.ndarray]) -> dict[str, LinearMean]:
        """Returns the loss and, if there are several, each of them, by name.

        Empty if a model computes its loss differently from Keras.
        """
        losses = weighted_losses(self._model)
        places = [f"loss {place}" for place in range(len(losses))]
        if not losses or not terms.keys() >= set(places):
            return {}
        means = [LinearMean.of(*terms[place]) for place in places]
        weights = [weight for _, weight in losses]
        each = {name: mean for (name, _), mean in zip(losses, means, strict=True)}
        if "added" in terms:
            means.append(LinearMean.of(*terms["added"]))
            weights.append(1.0)
        total = LinearMean.weighted_sum(weights, means)
        return {LOSS: total} | (each if len(losses) > 1 else {})

    def _of_metrics(self, terms: dict[str, np.ndarray]) -> dict[str, float]:
        """Returns standard errors by name."""
        keys = {name: f"metric {id(metric)}" for metric, name in metric_names(self._model)}
        return {
            name: LinearMean.of(*terms[key]).standard_error * abs(_slope(self._metrics[key]))
            for name, key in keys.items()
            if key in terms
        }


class LinearMean(NamedTuple):
    """A mean R, and the term z_n of each row: see `RowMeans`."""

    value: float
    z: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, numerator: np.ndarray, denominator: np.ndarray) -> LinearMean:
        total = denominator.sum()
        with np.errstate(invalid="ignore", divide="ignore"):
            value = numerator.sum() / total
            z = (numerator - value * denominator) / total
        return cls(float(value), z, denominator != 0)

    @classmethod
    def weighted_sum(cls, weights: Sequence[float], means: Sequence[LinearMean]) -> LinearMean:
        pairs = list(zip(weights, means, strict=True))
        return cls(
            sum(weight * mean.value for weight, mean in pairs),
            np.sum([weight * mean.z for weight, mean in pairs], axis=0),
            np.any([mean.counts for mean in means], axis=0),
        )

    @property
    def standard_error(self) -> float:
        """The standard error; NaN with fewer than two rows."""
        number = int(self.counts.sum())
        if number < 2:
            return math.nan
        return math.sqrt(number / (number - 1) * float((self.z**2).sum()))


def _slope(metric: Any) -> float:
    """Returns the derivative of a metric with respect to its ratio of sums."""
    if not isinstance(metric, ExactMetric):
        return 1.0
    numerator = metric.numerator.value
    with tf.GradientTape() as tape:
        tape.watch(numerator)
        value = metric.ratio()
    return float(tape.gradient(value, numerator)) * float(metric.denominator)


def _numbers(results: dict[str, Any]) -> dict[str, float]:
    """Returns the results that are one number, also from metrics with several results."""
    found: dict[str, float] = {}
    for name, value in results.items():
        if isinstance(value, dict):
            found |= _numbers(value)
        elif (array := keras.ops.convert_to_numpy(value)).ndim == 0:
            found[name] = float(array)
    return found


def _interleaved(values: dict[str, float], errors: dict[str, float]) -> dict[str, float]:
    result: dict[str, float] = {}
    for name, value in values.items():
        result[name] = value
        if name in errors:
            result[name + STANDARD_ERROR] = errors[name]
    return result
