# SPDX-License-Identifier: Apache-2.0
"""float64 numbers in pieces that float32 holds exactly, to travel in a tensor of float32."""

from __future__ import annotations

import numpy as np

_BITS = 22  # of a piece; float32 has all integers below 2^24
_SHIFTS = np.arange(0, 64, _BITS, dtype=np.uint64)


def pieces(values: np.ndarray) -> np.ndarray:
    """Returns three integers below 2^22 a value, `[3 k]` float64, for values `[k]` float64.

    Plus zero, in any floating dtype of 22 bits or more, each stays what it is; the bits of the
    value themselves, as a float32, may not (NaN, -0.0, subnormal numbers).
    """
    bits = np.ascontiguousarray(values, np.float64).view(np.uint64)
    return ((bits[:, None] >> _SHIFTS) % np.uint64(2**_BITS)).astype(np.float64).ravel()


def floats(values: np.ndarray) -> np.ndarray:
    """Returns the values `[k]` float64 of which these are the pieces `[3 k]`, bit by bit."""
    parts = values.reshape([-1, len(_SHIFTS)]).astype(np.uint64)
    return (parts << _SHIFTS).sum(axis=1, dtype=np.uint64).view(np.float64)
