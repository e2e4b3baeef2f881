# SPDX-License-Identifier: Apache-2.0
"""Counts of classes from which each class can be drawn."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfx_largeout.class_counts import class_counts

_LARGEST_RATIO = 1e25


def drawable_counts(counts: Any) -> np.ndarray:
    """Returns the counts as an array of its own. Arguments and errors: as `class_counts`.

    Raises:
        ValueError: Also, counts differ so much that float32 can't weigh the rarest class.
    """
    array = class_counts(counts)
    if array.max() / array.min() > _LARGEST_RATIO:
        raise ValueError(
            f"counts must not differ by a factor above {_LARGEST_RATIO:g}: float32 can't weigh the "
            f"rarest class; got {array.min()} for class {array.argmin()}, {array.max()} for class "
            f"{array.argmax()}"
        )
    return array
