# SPDX-License-Identifier: Apache-2.0
"""Bernoulli: each class is in or out, independently."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, flag_argument, integer_argument, number_argument
from tfx_largeout.class_counts import (
    check_length,
    class_counts,
    drawable_counts,
    smoothing_argument,
)
from tfx_largeout.devices import split_seed
from tfx_largeout.labels import PADDING, Labels
from tfx_largeout.ops.sorted_search import padded_rows
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler
from tfx_largeout.samplers.class_distribution import AliasTable

_MAX_NEWTON_STEPS = 200
_TOLERANCE = 1e-13  # largest relative error of the sum
_CERTAIN_RATE = 40.0  # e^-40 = 4e-18: beyond the resolution of float64


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Bernoulli(Sampler):
    """Each class c is a candidate with its probability b_c, independently; E_c = b_c.

    b_c = f_c^alpha,  f_c = (n_c + a) / sum_d (n_d + a),  alpha >= 0 such that sum_c b_c = S

    No candidate repeats, and S = C takes all classes: alpha = 0, E = 1. The number of candidates
    varies; its variance is sum_c b_c (1 - b_c) <= S.

    The draw does not visit every class: class c arrives in a Poisson process with rate -log(1 -
    b_c), and is a candidate if it arrives at least once within a unit of time. All arrivals
    together are a Poisson number of draws from a distribution proportional to the rates. If there
    are more than C, each class is drawn separately.

    Cost: O(sum_c -log(1 - b_c)) per step, at most O(C); times N with `per_example`.

    Args:
        counts: `[C]` numbers n_c, finite and at least 0. With a model they are saved compressed.
            Counts below `first_id` are not used.
        num_sampled: S, the expected number of candidates, above 0 and at most C - first_id.
        per_example: Whether each example gets separate candidates, `[N, S]` padded with -1,
            where S is their largest number. Default False: one set `[S]` for the batch.
        smoothing: a, as in `Unigram`. Default None.
        first_id: The first class that is drawn, as `DistributionSampler`. Default 0.

    Raises:
        TypeError: `counts` are not numbers.
        ValueError: A count is negative or not finite, or 0 with a smoothing of 0; another argument
            is out of range. At `build`: there are not C counts; `num_sampled` is above C -
            first_id, or too small for any alpha.

    Deviations:
        In the paper S does not count the classes summed explicitly, which differ between examples;
        here it counts all.

    References:
        Barber and Botev 2016, section 2.1.2, eq. 19 to 21.
    """

    bytes_a_class: ClassVar[int] = 12  # threshold, alias, log of the inclusion probability

    def __init__(
        self,
        counts: Any,
        num_sampled: float,
        per_example: bool = False,
        smoothing: float | None = None,
        first_id: int = 0,
    ) -> None:
        self.counts = class_counts(counts)
        self.smoothing = smoothing_argument(smoothing)
        self.first_id = integer_argument("first_id", first_id, at_least=0)
        drawable_counts(self.counts, self.smoothing, self.first_id)  # raises for bad counts
        self.num_sampled = number_argument("num_sampled", num_sampled, above=0)
        self.per_example = flag_argument("per_example", per_example)

    def tabulate(self, num_classes: int) -> None:
        check_length(self.counts, num_classes)
        counts = drawable_counts(self.counts, self.smoothing, self.first_id)
        at_most_classes("num_sampled", self.num_sampled, num_classes, self.first_id)
        self._size = counts.size
        log_frequency = np.log(counts / counts.sum(dtype=np.float64))
        self.alpha = _solve_alpha(log_frequency, self.num_sampled)
        log_inclusion = self.alpha * log_frequency
        self._log_inclusion = tf.constant(log_inclusion.astype(np.float32))
        with np.errstate(divide="ignore"):
            rates = np.minimum(-np.log(-np.expm1(log_inclusion)), _CERTAIN_RATE)
        self._rate = float(rates.sum())
        if self._rate < self._size:
            self._arrivals = AliasTable(rates)
        else:
            self._inclusion = tf.constant(np.exp(log_inclusion))

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        rows = tf.shape(hidden, tf.int64)[0] if self.per_example else tf.constant(1, tf.int64)
        number_of_row, ids = self._draw(rows, seed)
        log_expected, ids = tf.gather(self._log_inclusion, ids), ids + self.first_id
        if self.per_example:
            padded = (ids, PADDING), (log_expected, 0.0)
            ids, log_expected = padded_rows(number_of_row, rows, *padded)
        places = tf.maximum(labels.ids - self.first_id, 0)
        of_labels = tf.gather(self._log_inclusion, places)
        return Candidates(ids, log_expected, tf.where(labels.ids >= self.first_id, of_labels, 0))

    def _draw(self, rows: tf.Tensor, seed: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the candidates of all rows, row by row: row numbers `[n]`, ids `[n]`.

        The ids count from `first_id`.
        """
        if self._rate >= self._size:
            uniform = tf.random.stateless_uniform([rows, self._size], seed, dtype=tf.float64)
            return tuple(tf.unstack(tf.where(uniform < self._inclusion), axis=1))
        number_seed, class_seed = split_seed(seed, 2)
        numbers = tf.random.stateless_poisson(
            [rows], number_seed, tf.constant(self._rate, tf.float64), tf.int64
        )
        ids = self._arrivals.sample([tf.reduce_sum(numbers)], class_seed)
        if not self.per_example:
            ids = tf.unique(ids).y
            return tf.zeros_like(ids), ids
        number_of_row = tf.repeat(tf.range(rows), numbers)
        keys = tf.unique(number_of_row * self._size + ids).y
        return keys // self._size, keys % self._size


def _solve_alpha(log_frequency: np.ndarray, num_sampled: float) -> float:
    """Returns alpha >= 0 with sum_c exp(alpha log f_c) = num_sampled.

    The logarithm of the sum is convex and decreasing in alpha, so Newton's method from alpha = 0
    (where the sum is C) never oversteps the root.
    """
    alpha = 0.0
    for _ in range(_MAX_NEWTON_STEPS):
        inclusion = np.exp(alpha * log_frequency)
        total = inclusion.sum()
        excess = math.log(total / num_sampled)
        if abs(excess) <= _TOLERANCE:
            return alpha
        slope = np.dot(inclusion, -log_frequency) / total
        if slope == 0:
            break  # only classes of frequency 1 are left
        alpha += excess / slope
    raise ValueError(
        f"num_sampled must be a sum of f_c^alpha that some alpha gives; got {num_sampled}, too "
        "small for these counts, of which one is nearly all"
    )
