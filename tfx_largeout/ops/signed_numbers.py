# SPDX-License-Identifier: Apache-2.0
"""Numbers of index tables, which are int32 in variables of uint32: a GPU has none of int32."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def signed(numbers: Any) -> tf.Tensor:
    """Returns uint32 as the int32 of the same bits: 2^32 - 1 is -1."""
    return tf.bitcast(numbers, tf.int32)


def unsigned(numbers: Any) -> tf.Tensor:
    """Returns int32 as the uint32 of the same bits."""
    return tf.bitcast(numbers, tf.uint32)
