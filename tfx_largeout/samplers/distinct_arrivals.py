# SPDX-License-Identifier: Apache-2.0
"""The first S distinct classes that a Poisson process draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.devices import split_seed
from tfx_largeout.samplers.class_distribution import ClassDistribution

_MAX_NEWTON_STEPS = 100


class Arrivals(NamedTuple):
    """The result of `DistinctArrivals`.

    Attributes:
        ids: `[S]` int64, different classes, in the order of their first arrival.
        tries: `[]` float64, T, the number of draws up to the (S+1)-th different class.
    """

    ids: tf.Tensor
    tries: tf.Tensor


class DistinctArrivals:
    """Draws S of C classes without replacement: the first S different classes drawn from q.

    The expected counts E_c make the sum over the sample of z_c / E_c an unbiased estimate of sum_c
    z_c. Let the draws arrive with Exp(1) waiting times, and let tau be the time of the (S+1)-th
    distinct class. Class c first arrives at a time t_c ~ Exp(q_c), independent of the others, and
    the sample is the S earliest. Given the times of the other classes, a class of the sample was in
    it with probability 1 - exp(-q_c tau): dividing by this is unbiased ("rank conditioning"). Given
    all draws, tau ~ Gamma(T, 1) with T the number of tries, and the mean of the weight over tau is
    also unbiased, and has less variance:

        1 / E_c = E[1 / (1 - exp(-q_c tau)) | T] = sum_{k >= 0} (1 + k q_c)^-T

    There are two exact methods to draw the classes and T:

    - Tries in blocks. One block nearly always suffices.
    - If this takes more than C tries: for all C classes t_c = -log(u_c) / q_c, the S+1 smallest,
      and T - (S+1) ~ Poisson(sum over the sample of q_c (tau - t_c)), the repeats before tau.

    Cost: O(tries), or O(C log S).

    Args:
        distribution: q.
        num_sampled: S < C.

    References:
        Cohen and Kaplan 2007, Summarizing data using bottom-k sketches (rank conditioning).
        Efraimidis and Spirakis 2006, Weighted random sampling with a reservoir (the S smallest).
        The mean over tau: Rao-Blackwell.
    """

    def __init__(self, distribution: ClassDistribution, num_sampled: int) -> None:
        self.distribution = distribution
        self.num_sampled = num_sampled
        self.block = _block(distribution.probabilities(), num_sampled)

    def draw(self, seed: tf.Tensor) -> Arrivals:
        """Draws classes and the number of tries for a seed `[2]`."""
        return self._all_times(seed) if self.block is None else self._tries(seed, self.block)

    def log_expected(self, ids: tf.Tensor, tries: tf.Tensor) -> tf.Tensor:
        """Returns log E of classes in any shape after T tries, float64, to 1e-7.

        Sums four terms of the series, and the rest by the Euler-Maclaurin formula.
        """
        q = tf.exp(self.distribution.log_probability(ids))
        k = tf.constant([1.0, 2.0, 3.0, 4.0], tf.float64)
        terms = tf.exp(-tries * tf.math.log1p(k * q[..., tf.newaxis]))
        fall = q / (1 + 4 * q)  # relative decrease of the last term, per try
        first = fall * tries
        third = first * fall * (tries + 1) * fall * (tries + 2)
        fifth = third * fall * (tries + 3) * fall * (tries + 4)
        rest = 1 / (fall * (tries - 1)) + 1 / 2 + first / 12 - third / 720 + fifth / 30240
        return -tf.math.log(1 + tf.reduce_sum(terms[..., :3], axis=-1) + terms[..., 3] * rest)

    def _tries(self, seed: tf.Tensor, block: int) -> Arrivals:
        tries = self.distribution.sample([block], seed)
        distinct, places = tf.unique(tries)
        state = (tf.constant(1, seed.dtype), tries, distinct, places)

        def too_few(*state: tf.Tensor) -> tf.Tensor:
            return tf.size(state[2]) <= self.num_sampled

        def go_on(number: tf.Tensor, tries: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            block_seed = tf.random.fold_in(seed, number)
            tries = tf.concat([tries, self.distribution.sample([block], block_seed)], axis=0)
            return (number + 1, tries, *tf.unique(tries))

        shapes = (tf.TensorShape([]), *[tf.TensorShape([None])] * 3)
        _, _, distinct, places = tf.while_loop(too_few, go_on, state, shape_invariants=shapes)
        ids = tf.ensure_shape(distinct[: self.num_sampled], [self.num_sampled])
        last_try = tf.argmax(tf.equal(places, self.num_sampled))  # the first of the maxima
        return Arrivals(ids, tf.cast(last_try + 1, tf.float64))

    def _all_times(self, seed: tf.Tensor) -> Arrivals:
        time_seed, repeat_seed = split_seed(seed, 2)
        classes = tf.range(self.distribution.num_classes, dtype=tf.int64)
        rates = tf.exp(self.distribution.log_probability(classes))
        uniform = tf.random.stateless_uniform(
            [self.distribution.num_classes], time_seed, dtype=tf.float64
        )
        first = tf.math.top_k(tf.math.log(uniform) / rates, self.num_sampled + 1)
        ids, times = first.indices[: self.num_sampled], -first.values
        left = times[self.num_sampled] - times[: self.num_sampled]
        repeats = tf.random.stateless_poisson(
            [], repeat_seed, tf.tensordot(tf.gather(rates, ids), left, axes=1), tf.float64
        )
        return Arrivals(tf.cast(ids, tf.int64), repeats + (self.num_sampled + 1))


def _block(probabilities: np.ndarray, num_sampled: int) -> int | None:
    """Returns a number of tries that nearly always suffices, or None if it is above C.

    The number of distinct classes among m tries has a mean of about sum_c 1 - exp(-m q_c), and a
    standard deviation below the square root of that. Newton's method on this concave function of m
    never oversteps the root.
    """
    enough = num_sampled + 1 + 4 * math.sqrt(num_sampled + 1)
    tries = float(num_sampled)
    for _ in range(_MAX_NEWTON_STEPS):
        missing = np.exp(-tries * probabilities)
        step = (enough - np.sum(1 - missing)) / np.dot(probabilities, missing)
        tries += step
        if not tries <= probabilities.size:
            return None
        if step < 1:
            break
    return math.ceil(tries)
