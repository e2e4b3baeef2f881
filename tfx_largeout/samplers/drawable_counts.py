# SPDX-License-Identifier: Apache-2.0
"""Counts of classes from which each class can be drawn, but for the first ones."""

from __future__ import annotations

import numpy as np

from tfx_largeout.class_counts import smoothed

_LARGEST_RATIO = 1e25


def drawable_counts(counts: np.ndarray, smoothing: float | None, first_id: int) -> np.ndarray:
    """Returns the counts of the classes that are drawn, `[C - first_id]`, smoothed.

    Args:
        counts: `[C]`, as `class_counts` returns them.
        smoothing: As `smoothed`.
        first_id: The classes below are not drawn.

    Raises:
        ValueError: There is no such class. Counts differ so much that float32 can't weigh the
            rarest class, or one is 0 and not smoothed.
    """
    if first_id >= counts.size:
        raise ValueError(
            f"first_id must be less than the number of counts, {counts.size}; got {first_id}"
        )
    array = smoothed(counts[first_id:], smoothing)
    if array.max() / array.min() > _LARGEST_RATIO:
        raise ValueError(
            f"counts must not differ by a factor above {_LARGEST_RATIO:g}: float32 can't weigh the "
            f"rarest class; got {array.min()} for class {first_id + array.argmin()}, {array.max()} "
            f"for class {first_id + array.argmax()}"
        )
    return array
