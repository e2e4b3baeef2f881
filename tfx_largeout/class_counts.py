# SPDX-License-Identifier: Apache-2.0
"""How often each class occurs: an argument of samplers and of trees."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfx_largeout.saving.packed_array import unpack_array


def class_counts(counts: Any) -> np.ndarray:
    """Returns the counts as an array of its own.

    Args:
        counts: `[C]` numbers, all positive and finite; or what `pack_array` made of them.

    Returns:
        `[C]` int64 or float64.

    Raises:
        TypeError: They are not numbers.
        ValueError: They are not `[C]`, or a count is not positive and finite: a class that can
            never be drawn would be missing from every estimate.
    """
    array = unpack_array(counts) if isinstance(counts, str) else np.array(counts)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"counts must have shape [C], C > 0; got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"counts must be numbers; got dtype {array.dtype}")
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            f"counts must be positive and finite for every class; got {array[first]} for class "
            f"{first}. Where some classes have not been seen, add 1 to all counts."
        )
    return array


def check_length(counts: np.ndarray, num_classes: int) -> None:
    """Refuses counts of another number of classes."""
    if counts.size != num_classes:
        raise ValueError(
            f"counts must have one entry for each of the {num_classes} classes; got {counts.size}"
        )
