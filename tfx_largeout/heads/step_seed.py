# SPDX-License-Identifier: Apache-2.0
"""Seeds of heads that draw at random: a draw is a function of the seed and the step's number."""

from __future__ import annotations

import random

import tensorflow as tf

from tfx_largeout.arguments import integer_argument

_NEXT_DRAW = 2**32  # above every seed


def seed_argument(seed: int | None) -> int:
    """Returns a head's seed: the argument, or one that is drawn for None.

    Raises:
        ValueError: It is no integer in [0, 2^32).
    """
    if seed is None:
        seed = random.randrange(2**31)  # by keras.utils.set_random_seed, if that was called
    seed = integer_argument("seed", seed, at_least=0)
    if seed >= _NEXT_DRAW:
        raise ValueError(f"seed must be less than 2^32; got {seed}")
    return seed


def seed_of_step(seed: int, step: tf.Tensor, draw: tf.Tensor) -> tf.Tensor:
    """Returns the seed of a step, `[2]` int64.

    Args:
        seed: The head's.
        step: The number of the step.
        draw: See `Head.without_update`.
    """
    return tf.stack([seed + _NEXT_DRAW * draw, tf.cast(step, tf.int64)])
