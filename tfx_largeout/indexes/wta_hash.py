# SPDX-License-Identifier: Apache-2.0
"""WTAHash: winner take all, which of a few random coordinates is the greatest."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tfx_largeout.arguments import integer_argument
from tfx_largeout.indexes.hash_family import HashFamily
from tfx_largeout.ops.hashing.hash_codes import HashFunctions


@keras.saving.register_keras_serializable(package="tfx_largeout")
class WTAHash(HashFamily):
    """The place of the greatest among the first coordinates of a random permutation.

    Only the order of the coordinates matters: vectors agree often if they are ranked alike. The
    first of equal coordinates wins. Each function has a permutation of its own.

    Cost: `window` comparisons a function and vector.

    Args:
        window: How many coordinates are compared, k in the paper; at least 2, at most D. Default 8.

    Raises:
        ValueError: `window` is no integer, or out of range.

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
        if self.window > width:
            raise ValueError(f"window must be at most D = {width}; got {self.window}")
        elements = [rng.permutation(width)[: self.window] for _ in range(count)]
        return HashFunctions.by_winner(np.stack(elements))

    def get_config(self) -> dict[str, Any]:
        return {"window": self.window}
