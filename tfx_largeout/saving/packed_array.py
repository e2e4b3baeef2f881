# SPDX-License-Identifier: Apache-2.0
"""A number for each class, packed into a string for a configuration."""

from __future__ import annotations

import base64
import zlib

import numpy as np


def pack_array(array: np.ndarray) -> str:
    """Returns a string that `unpack_array` turns back into the array.

    A list of a million numbers would make the JSON of a saved model huge.

    Args:
        array: An array of one dimension, of a number dtype.
    """
    array = array.astype(array.dtype.newbyteorder("<"))
    packed = base64.b64encode(zlib.compress(array.tobytes())).decode("ascii")
    return f"{array.dtype.str}:{packed}"


def unpack_array(text: str) -> np.ndarray:
    """Returns the array of which `pack_array` made `text`."""
    dtype, _, packed = text.partition(":")
    values = np.frombuffer(zlib.decompress(base64.b64decode(packed)), np.dtype(dtype))
    return values.astype(values.dtype.newbyteorder("="))
