# SPDX-License-Identifier: Apache-2.0
"""Weights that all workers share are the same on all of them, bit by bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.bits import sum_of_bits
from tfx_largeout.distribute.workers import Workers


def check_alike(workers: Workers, variables: Sequence[Any]) -> None:
    """Refuses weights that are not the same on all workers, bit by bit. A collective of 8 bytes.

    Args:
        workers: More than one.
        variables: Keras variables.

    Raises:
        tf.errors.InvalidArgumentError: They differ. Raised on all workers.
    """
    sums = [
        sum_of_bits(tf.convert_to_tensor(variable), place)
        for place, variable in enumerate(variables)
    ]
    if not sums:
        return
    heard = workers.gather(tf.add_n(sums), "trunk/check")
    tf.debugging.Assert(
        tf.reduce_all(heard == heard[0]),
        [
            "weights that all workers share must be the same on all of them; got sums of their "
            "bits by worker",
            heard,
            "Something has set them on one worker alone, such as an assignment or a callback",
        ],
        summarize=64,
    )
