# SPDX-License-Identifier: Apache-2.0
"""HashFamily: locality-sensitive hash functions of vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.hashing.hash_codes import HashFunctions


class HashFamily:
    """Functions that give near vectors the same value more often than distant ones.

    Carries configuration. To add a family whose functions are winners or signs, write `functions`
    and `num_values`; register it with Keras and write `get_config` to save it with a model.
    """

    @property
    def num_values(self) -> int:
        """How many values a function has."""
        raise NotImplementedError

    def functions(self, width: int, count: int, rng: np.random.Generator) -> HashFunctions:
        """Draws `count` functions, or a few more, of vectors `[D]`.

        Args:
            width: D.
            count: How many are needed.
            rng: To draw with.

        Raises:
            ValueError: D is too small for the family.
        """
        raise NotImplementedError

    def collision_probability(self, cosine: tf.Tensor) -> tf.Tensor:
        """Returns the probability p that a function gives two vectors the same value.

        Args:
            cosine: The cosine of the angle between the two, in any shape.

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
        """Makes a family from what `get_config` returned."""
        return cls(**config)
