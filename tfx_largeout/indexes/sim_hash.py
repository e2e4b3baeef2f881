# SPDX-License-Identifier: Apache-2.0
"""SimHash: on which side of a random hyperplane a vector is."""

from __future__ import annotations

import math

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.indexes.hash_family import HashFamily
from tfx_largeout.ops.hashing.hash_codes import HashFunctions


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SimHash(HashFamily):
    """Signs of random projections: [<r, x> > 0] with r ~ N(0, I).

    Two vectors at the angle theta get the same value with probability p = 1 - theta / pi, exactly.

    Cost: D multiplications a function and vector.

    References:
        Charikar 2002, Similarity estimation techniques from rounding algorithms.
    """

    @property
    def num_values(self) -> int:
        return 2

    def functions(self, width: int, count: int, rng: np.random.Generator) -> HashFunctions:
        return HashFunctions.by_planes(rng.standard_normal((count, width)).astype(np.float32))

    def collision_probability(self, cosine: tf.Tensor) -> tf.Tensor:
        return 1 - tf.acos(tf.clip_by_value(cosine, -1, 1)) / math.pi
