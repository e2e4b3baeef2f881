# SPDX-License-Identifier: Apache-2.0
"""fit_temperature: the one number that calibrates the probabilities of a trained model."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.callbacks.row_sample import common_length, in_batches, map_leaves, rows_of
from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.keras_losses_and_metrics import ignored_by_loss_of
from tfx_largeout.keras_internals import mask_of
from tfx_largeout.layers.top_k import exact_best, output_of_logits
from tfx_largeout.statistics import ExactStatistics

_ASKED_BY = "fit_temperature"
_LARGEST = float(np.log(100.0))
_POINTS = 9  # temperatures of a sweep
_SPACING = 0.1  # spacing of the last sweep, in log T


def fit_temperature(model: keras.Model, data: Any, batch_size: int = 256) -> float:
    """Returns the temperature at which a model's probabilities fit held-out data best.

    With the logits o of N examples, and their labels Y_n, it minimises the negative log-likelihood

        L(T) = 1/N sum_n [log sum_c exp(o_nc / T) - 1/|Y_n| sum_{l in Y_n} o_nl / T]

    over T in [0.01, 100]. Classes keep their order: `tlo.TopK(head, k, temperature=T,
    probabilities=True)`, `top_k_model` and `export` give the calibrated probabilities.

    Sweeps with 9 temperatures each narrow log T down to 0.1; a polynomial of degree 4 through the
    last 5 then gives it to about 3 digits.

    Cost: 3 or 4 sweeps over the data, with 10 exact passes O(N C D) each; memory is bounded.

    Args:
        model: A trained model that ends in a head.
        data: Held-out examples: a `tf.data.Dataset` of batches `(x, y)` or `(x, y, sample_weight)`,
            or such a tuple of arrays, tensors or sparse matrices. Labels of the class that the
            model's loss ignores don't count.
        batch_size: The batch size for arrays. Default 256.

    Raises:
        TypeError: The model does not end in a head with logits W h + b; `data` has another type.
        ValueError: Arrays are of different lengths; a weight is negative, there is no example with
            a label, the loss is not finite, or it has no minimum in [0.01, 100].
        RuntimeError: The classes are spread over several workers.

    References:
        Guo, Pleiss, Sun, Weinberger, On calibration of modern neural networks, 2017, section 4.
    """
    integer_argument("batch_size", batch_size, at_least=1)
    losses = _Losses(model, data, batch_size)
    middle, spacing = 0.0, 2 * _LARGEST / (_POINTS - 1)
    while True:
        places = middle + spacing * (np.arange(_POINTS) - _POINTS // 2)
        values = losses.at(np.exp(places))
        best = int(values.argmin())
        if abs(places[best]) >= _LARGEST - 1e-9:
            raise ValueError(
                "data must be such that the loss has a minimum at a temperature in [0.01, 100]; "
                f"got a loss that falls up to {np.exp(places[best]):.3g}"
            )
        if spacing <= _SPACING:
            return float(np.exp(_minimum(places, values, best)))
        middle, spacing = places[best], 2.2 * spacing / (_POINTS - 1)


def _minimum(places: np.ndarray, values: np.ndarray, best: int) -> float:
    """Returns the minimum of the polynomial through the best value and two on each side."""
    first = min(max(best - 2, 0), len(places) - 5)
    own = places[first : first + 5] - places[best]
    fitted = np.polyfit(own, values[first : first + 5] - values[best], 4)
    near = np.linspace(own[0], own[-1], 20_001)
    return float(places[best] + near[np.polyval(fitted, near).argmin()])


def _slices(data: Any, batch_size: int) -> Iterator[Any]:
    """Yields batches of arrays, dense or sparse, nested or not."""
    (whole,) = in_batches(_ASKED_BY, data)
    length = common_length(_ASKED_BY, whole)
    for start in range(0, length, batch_size):
        rows = np.arange(start, min(start + batch_size, length))
        yield map_leaves(functools.partial(rows_of, rows=rows), whole)


class _Losses:
    """The mean loss of a model on data, at some temperatures."""

    def __init__(self, model: keras.Model, data: Any, batch_size: int) -> None:
        if not isinstance(data, (tf.data.Dataset, tuple)) or (
            isinstance(data, tuple) and len(data) not in (2, 3)
        ):
            raise TypeError(
                "data must be a tf.data.Dataset, or a tuple (x, y) or (x, y, sample_weight); got "
                f"{type(data).__name__}"
            )
        self._data, self._batch_size = data, batch_size

        @tf.function(reduce_retracing=True, autograph=False)
        def sums(x: Any, y: Any, sample_weight: Any, temperatures: tf.Tensor) -> Any:
            logits = model(x, training=False)
            output = output_of_logits(logits).for_metric(ignored_by_loss_of(model))
            head = output.head
            head.workers.refuse_several(
                f"{_ASKED_BY} must be called in a single process; got {head.workers.size} "
                "workers: load the model in one, from what tlo.save_model has written"
            )
            exact = output.statistics(ExactStatistics, y).of_positive_targets
            target = tf.cast(exact.labels.mean(exact.target_logits), tf.float64)
            weights = example_weights(output.hidden, sample_weight, mask_of(logits))
            weights = tf.where(exact.labels.counts > 0, weights, 0)
            found = []
            for temperature in tf.unstack(temperatures):
                best = exact_best(head, output.flat_hidden, 0, None, temperature)
                loss = tf.cast(best.log_partition, tf.float64) - target / temperature
                found.append(tf.reduce_sum(tf.math.multiply_no_nan(loss, weights)))
            return tf.stack(found), tf.reduce_sum(weights), tf.reduce_min(weights)

        self._sums = sums

    def at(self, temperatures: np.ndarray) -> np.ndarray:
        total, weight = np.zeros(len(temperatures)), 0.0
        for x, y, sample_weight in self._batches():
            values, of_batch, least = self._sums(x, y, sample_weight, tf.constant(temperatures))
            if least < 0:
                raise ValueError(f"sample_weight must be at least 0; got {float(least)}")
            total += values.numpy()
            weight += float(of_batch)
        if weight == 0:
            raise ValueError("data must have an example with a label; got none")
        if not np.isfinite(total).all():
            raise ValueError(f"the model must give finite logits on data; got losses {total}")
        return total / weight

    def _batches(self) -> Iterator[tuple[Any, Any, Any]]:
        data = self._data
        if not isinstance(data, tf.data.Dataset):
            data = _slices(data, self._batch_size)
        for batch in data:
            if not isinstance(batch, tuple) or len(batch) not in (2, 3):
                raise TypeError(
                    "data must have batches (x, y) or (x, y, sample_weight); got "
                    f"{type(batch).__name__}"
                )
            yield batch if len(batch) == 3 else (*batch, None)
