# SPDX-License-Identifier: Apache-2.0
"""How often each class occurs: an argument of samplers and of trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfx_largeout.arguments import number_argument
from tfx_largeout.saving import unpack_array


def class_counts(counts: Any) -> np.ndarray:
    """Returns the counts as an array of its own.

    Args:
        counts: `[C]` numbers, finite and at least 0; or what `pack_array` made of them.

    Returns:
        `[C]` int64 or float64.

    Raises:
        TypeError: They are not numbers.
        ValueError: They are not `[C]`, or a count is negative or not finite.
    """
    array = unpack_array(counts) if isinstance(counts, str) else np.array(counts)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"counts must have shape [C], C > 0; got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"counts must be numbers; got dtype {array.dtype}")
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    wrong = ~(np.isfinite(array) & (array >= 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            "counts must be finite and at least 0 for every class; got "
            f"{array[first]} for class {first}"
        )
    return array


def smoothing_argument(smoothing: Any) -> float | None:
    """Returns the argument of this name: None, or a finite number of at least 0.

    Raises:
        ValueError: It is neither.
    """
    return None if smoothing is None else number_argument("smoothing", smoothing, at_least=0)


def smoothed(counts: np.ndarray, smoothing: float | None = None) -> np.ndarray:
    """Returns counts that are all positive: a class that was not seen is rare, not impossible.

    A class that can never be drawn would be missing from every estimate, and log 0 is no bias.

    Args:
        counts: `[C]`, at least 0.
        smoothing: What is added to each. Default None: nothing where all are positive; else half of
            the least one above 0, which for whole counts is half an observation more of each class.

    Returns:
        `[C]`, the counts themselves where nothing is added.

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
    """Refuses counts of another number of classes."""
    if counts.size != num_classes:
        raise ValueError(
            f"counts must have one entry for each of the {num_classes} classes; got {counts.size}"
        )
