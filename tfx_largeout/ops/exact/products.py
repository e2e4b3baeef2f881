# SPDX-License-Identifier: Apache-2.0
"""What the products of a pass over all classes are of: float32, or bfloat16 summed in float32."""

from __future__ import annotations

import tensorflow as tf

PRODUCTS = ("float32", "bfloat16")


def rounded_for(products: str, factor: tf.Tensor) -> tf.Tensor:
    """Returns a factor, rounded to bfloat16 if products are of that, in its own dtype."""
    if products == "float32":
        return factor
    return tf.cast(tf.cast(factor, tf.bfloat16), factor.dtype)
