# SPDX-License-Identifier: Apache-2.0
"""The first S different classes that a Poisson process draws."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.samplers.class_distribution import ClassDistribution

_MAX_NEWTON_STEPS = 100


class Arrivals(NamedTuple):
    """What `DistinctArrivals` draws.

    Attributes:
        ids: `[S]` int64, different classes, in the order of their first arrival.
        next_time: `[]` float64, tau, when the (S+1)-th different class arrives.
    """

    ids: tf.Tensor
    next_time: tf.Tensor


class DistinctArrivals:
    """Draws S of C classes without replacement: the first S different ones that arrive.

    Classes drawn from q arrive at unit rate, with Exp(1) waiting times between them. Class c thus
    arrives first at a time t_c ~ Exp(q_c), independent of the others. Let tau be the (S+1)-th
    smallest of these times. Given the times of the others, a class of the sample was in it with
    probability 1 - exp(-q_c tau), so that the sum over the sample of z_c / (1 - exp(-q_c tau)) is
    an unbiased estimate of sum_c z_c ("rank conditioning").

    Two exact ways to draw this:

    - Try after try in blocks, where the time of try T is Gamma(T, 1), independent of the classes.
      The block is so long that one nearly always suffices.
    - Where that takes more than C tries, all C times -log(u_c) / q_c, and the S+1 smallest.

    Cost: O(tries), or O(C log S).

    Args:
        distribution: q.
        num_sampled: S < C.

    References:
        Cohen and Kaplan 2007, Summarizing data using bottom-k sketches. Efraimidis and Spirakis
        2006, Weighted random sampling with a reservoir.
    """

    def __init__(self, distribution: ClassDistribution, num_sampled: int) -> None:
        self.distribution = distribution
        self.num_sampled = num_sampled
        self.block = _block(distribution.probabilities(), num_sampled)

    def draw(self, seed: tf.Tensor) -> Arrivals:
        """Draws classes and the time tau.

        Args:
            seed: `[2]` int32 or int64.
        """
        return self._all_times(seed) if self.block is None else self._tries(seed, self.block)

    def _tries(self, seed: tf.Tensor, block: int) -> Arrivals:
        tries_seed, time_seed = tf.unstack(tf.random.split(seed, 2, alg="philox"))
        tries = self.distribution.sample([block], tries_seed)
        distinct, places = tf.unique(tries)
        state = (tf.constant(1, seed.dtype), tries, distinct, places)

        def too_few(
            _: tf.Tensor, tries: tf.Tensor, distinct: tf.Tensor, __: tf.Tensor
        ) -> tf.Tensor:
            return tf.size(distinct) <= self.num_sampled

        def go_on(number: tf.Tensor, tries: tf.Tensor, *_: tf.Tensor) -> tuple[tf.Tensor, ...]:
            block_seed = tf.random.fold_in(tries_seed, number, alg="philox")
            tries = tf.concat([tries, self.distribution.sample([block], block_seed)], axis=0)
            return (number + 1, tries, *tf.unique(tries))

        shapes = (tf.TensorShape([]), *[tf.TensorShape([None])] * 3)
        _, _, distinct, places = tf.while_loop(too_few, go_on, state, shape_invariants=shapes)
        last_try = tf.where(tf.equal(places, self.num_sampled))[0, 0]
        number_of_tries = tf.cast(last_try + 1, tf.float64)
        time = tf.random.stateless_gamma([], time_seed, number_of_tries, dtype=tf.float64)
        return Arrivals(tf.ensure_shape(distinct[: self.num_sampled], [self.num_sampled]), time)

    def _all_times(self, seed: tf.Tensor) -> Arrivals:
        classes = tf.range(self.distribution.num_classes, dtype=tf.int64)
        uniform = tf.random.stateless_uniform(
            [self.distribution.num_classes], seed, dtype=tf.float64, alg="philox"
        )
        times = -tf.math.log(uniform) * tf.exp(-self.distribution.log_probability(classes))
        first = tf.math.top_k(-times, self.num_sampled + 1)
        ids = tf.cast(first.indices[: self.num_sampled], tf.int64)
        return Arrivals(ids, -first.values[self.num_sampled])


def _block(probabilities: np.ndarray, num_sampled: int) -> int | None:
    """Returns how many tries nearly always suffice, or None where that is more than C.

    The number of different classes among m tries has a standard deviation below the root of its
    mean, sum_c 1 - exp(-m q_c), about. Newton's method on this concave function of m never
    oversteps the root.
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
