# SPDX-License-Identifier: Apache-2.0
"""Families of locality-sensitive hash functions of vectors: WTAHash, DWTAHash and SimHash."""

from __future__ import annotations

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.ops.hashing.hash_codes import HashFunctions


class HashFamily:
    """Functions that have the same value for near vectors more often than for distant ones.

    Holds configuration. To add a family whose functions are winners or signs, implement `functions`
    and `num_values`; to save it with a model, register it with Keras and implement `get_config`.
    """

    @property
    def num_values(self) -> int:
        """The number of values of a function."""
        raise NotImplementedError

    def functions(self, width: int, count: int, rng: np.random.Generator) -> HashFunctions:
        """Draws `count` functions, or a few more, for vectors `[D]`.

        Args:
            width: D.
            count: The required number.
            rng: The random generator.

        Raises:
            ValueError: D is too small for the family.
        """
        raise NotImplementedError

    def collision_probability(self, cosine: tf.Tensor) -> tf.Tensor:
        """Returns the probability p that a function has the same value for two vectors.

        Args:
            cosine: The cosine of their angle, in any shape.

        Raises:
            NotImplementedError: The family has no such formula.
        """
        raise NotImplementedError(
            f"{type(self).__name__} has no closed form of the probability of a collision; "
            "SimHash has one"
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for JSON."""
        return {}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> HashFamily:
        """Creates a family from the result of `get_config`."""
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class WTAHash(HashFamily):
    """The position of the greatest among the first coordinates of a random permutation.

    Only the order of the coordinates matters: vectors often agree if their coordinates are ranked
    alike. Ties go to the first coordinate. Each function has a separate permutation.

    Cost: `window` comparisons per function and vector.

    Args:
        window: The number of coordinates that are compared, k in the paper; at least 2, at most D.
            Default 8.

    Raises:
        ValueError: `window` is not an integer, or out of range.

    References:
        Yagnik, Strelow, Ross, Lin 2011, The power of comparative reasoning; Vijayanarasimhan,
        Shlens, Monga, Yagnik 2014, section 3.2.
    """

    def __init__(self, window: int = 8) -> None:
        self.window = integer_argument("window", window, at_least=2)

    @property
    def num_values(self) -> int:
        return self.window

    def functions(self, width: int, count: int, rng: np.random.Generator) -> HashFunctions:
        self._check_width(width)
        elements = [rng.permutation(width)[: self.window] for _ in range(count)]
        return HashFunctions.by_winner(np.stack(elements))

    def get_config(self) -> dict[str, Any]:
        return {"window": self.window}

    def _check_width(self, width: int) -> None:
        if self.window > width:
            raise ValueError(f"window must be at most D = {width}; got {self.window}")


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DWTAHash(WTAHash):
    """Densified winner take all: the position of the greatest coordinate in each bin.

    A random permutation of the coordinates is cut into floor(D / window) bins, with one function
    per bin, for as many permutations as needed. A vector with many zeros, such as the output of
    ReLUs, can have bins with only zeros, whose winner is meaningless: such a bin takes the value of
    the nearest non-empty bin, in the circle of its permutation (ties: the later one). A non-empty
    bin has the value of `WTAHash`.

    Cost: `window` comparisons per function and vector; memory: floor(D / window) functions share D
    integers.

    Args, errors: as `WTAHash`.

    Deviations: the D mod window coordinates at the end of a permutation are in none of its bins.

    References:
        Chen, Shrivastava 2018, Densified winner take all (WTA) hashing for sparse datasets;
        Daghaghi et al. 2021, appendix A.
    """

    def functions(self, width: int, count: int, rng: np.random.Generator) -> HashFunctions:
        self._check_width(width)
        bins = width // self.window
        elements = [
            rng.permutation(width)[: bins * self.window].reshape(bins, self.window)
            for _ in range(-(-count // bins))
        ]
        return HashFunctions.by_winner(np.concatenate(elements), bins)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SimHash(HashFamily):
    """Signs of random projections: [<r, x> > 0] with r ~ N(0, I).

    Two vectors at the angle theta get the same value with probability p = 1 - theta / pi, exactly.

    Cost: D multiplications per function and vector.

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
