# SPDX-License-Identifier: Apache-2.0
"""How often each class occurs: an argument of samplers and of trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfx_largeout.arguments import number_argument
from tfx_largeout.saving import unpack_array

_LARGEST_RATIO = 1e25


def class_counts(counts: Any, name: str = "counts") -> np.ndarray:
    """Returns counts of classes, finite and at least 0, as an array `[C]` of int64 or float64.

    Args:
        counts: The counts, or a string of `pack_array`.
        name: The name of the argument, for errors.

    Raises:
        TypeError: They are not numbers.
        ValueError: They are not `[C]`, or one is negative or not finite.
    """
    array = unpack_array(counts) if isinstance(counts, str) else np.array(counts)
    if array.ndim != 1 or array.size == 0:
        rule = "[C]" if array.ndim != 1 else "[C], C > 0"
        raise ValueError(f"{name} must have shape {rule}; got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} must be numbers; got dtype {array.dtype}")
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"{name} must be finite and at least 0 for every class; got "
            f"{array[first]} for class {first}"
        )
    return array


def smoothing_argument(smoothing: Any) -> float | None:
    """Returns the argument of this name: None, or a finite number of at least 0."""
    return None if smoothing is None else number_argument("smoothing", smoothing, at_least=0)


def smoothed(counts: np.ndarray, smoothing: float | None = None) -> np.ndarray:
    """Returns counts that are all positive: an unseen class is rare, not impossible.

    A class that can't be drawn would be missing from every estimate, and log 0 is not a valid bias.
    `smoothing` is added to each count. None: 0 if all are positive; else half of the smallest
    positive count, for integer counts half an observation per class.

    Raises:
        ValueError: A count is 0, and so is `smoothing`.

    References:
        Krichevsky and Trofimov 1981, The performance of universal encoding (half an observation).
    """
    missing = counts == 0
    if smoothing is None:
        smoothing = 0.0
        if missing.any():
            smoothing = 1.0 if missing.all() else float(counts[~missing].min()) / 2
    if not smoothing:
        if missing.any():
            raise ValueError(
                "counts must be positive for every class where smoothing is 0; got 0 for class "
                f"{int(missing.argmax())}"
            )
        return counts
    return counts + np.float64(smoothing)


def check_length(counts: np.ndarray, num_classes: int) -> None:
    """Raises ValueError for counts of another number of classes."""
    if counts.size != num_classes:
        raise ValueError(
            f"counts must have one entry for each of the {num_classes} classes; got {counts.size}"
        )


def drawable_counts(counts: np.ndarray, smoothing: float | None, first_id: int) -> np.ndarray:
    """Returns the smoothed counts of the classes from `first_id` on, which are drawn.

    Raises:
        ValueError: There is no such class. Counts differ so much that the probability of the rarest
            class is 0 in float32, or a count is 0 and not smoothed.
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
