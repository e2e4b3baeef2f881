# SPDX-License-Identifier: Apache-2.0
"""A probability distribution over the classes."""

from __future__ import annotations

import numpy as np
import tensorflow as tf


class ClassDistribution:
    """q(c) > 0 for c = 0 .. C-1: draws from it, and its logarithm.

    Attributes:
        num_classes: C.
    """

    num_classes: int

    def sample(self, shape: tf.Tensor | list[int], seed: tf.Tensor) -> tf.Tensor:
        """Returns independent draws.

        Args:
            shape: The shape of the result.
            seed: `[2]` int32 or int64.

        Returns:
            Class ids, int64.
        """
        raise NotImplementedError

    def log_probability(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns log q of class ids, float64, of the same shape."""
        raise NotImplementedError

    def probabilities(self) -> np.ndarray:
        """Returns q, `[C]` float64. O(C): not for a training step."""
        raise NotImplementedError
