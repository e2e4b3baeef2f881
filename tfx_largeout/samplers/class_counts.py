# SPDX-License-Identifier: Apache-2.0
"""How often each class occurs: an argument of samplers."""

from __future__ import annotations

import base64
import zlib
from typing import Any

import numpy as np

_LARGEST_RATIO = 1e25


def class_counts(counts: Any) -> np.ndarray:
    """Returns the counts as an array of its own.

    Args:
        counts: `[C]` numbers, all positive and finite; or what `encode` returned.

    Returns:
        `[C]` int64 or float64.

    Raises:
        TypeError: They are not numbers.
        ValueError: They are not `[C]`, or a count is not positive and finite: a class that can
            never be drawn would be missing from every estimate.
    """
    array = _decode(counts) if isinstance(counts, dict) else np.array(counts)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"counts must have shape [C], C > 0; got shape {array.shape}")
    if array.dtype.kind not in "iuf":
        raise TypeError(f"counts must be numbers; got dtype {array.dtype}")
    array = array.astype(np.float64 if array.dtype.kind == "f" else np.int64)
    wrong = ~(np.isfinite(array) & (array > 0))
    if wrong.any():
        first = int(wrong.argmax())
        raise ValueError(
            "counts must be positive and finite for every class, or it could never be drawn, and "
            f"every estimate would miss it; got {array[first]} for class {first}. To let each "
            "class be drawn, add 1 to all counts."
        )
    if array.max() / array.min() > _LARGEST_RATIO:
        raise ValueError(
            f"counts must not differ by a factor above {_LARGEST_RATIO:g}: float32 can't weigh the "
            f"rarest class; got {array.min()} for class {array.argmin()}, {array.max()} for class "
            f"{array.argmax()}"
        )
    return array


def check_length(counts: np.ndarray, num_classes: int) -> None:
    """Refuses counts of another number of classes."""
    if counts.size != num_classes:
        raise ValueError(
            f"counts must have one entry for each of the {num_classes} classes; got {counts.size}"
        )


def encode(counts: np.ndarray) -> dict[str, str]:
    """Returns the counts for JSON, compressed.

    A million integers take 0.1 to 4 MB, a million floats 10 MB, as they would in a list; but Keras
    walks along lists in Python.
    """
    little_endian = counts.astype(counts.dtype.newbyteorder("<"))
    packed = base64.b64encode(zlib.compress(little_endian.tobytes(), level=1))
    return {"dtype": counts.dtype.name, "zlib_base64": packed.decode("ascii")}


def _decode(counts: dict[str, str]) -> np.ndarray:
    packed = zlib.decompress(base64.b64decode(counts["zlib_base64"]))
    dtype = np.dtype(counts["dtype"])
    return np.frombuffer(packed, dtype.newbyteorder("<")).astype(dtype)
