# SPDX-License-Identifier: Apache-2.0
"""Where things are: whether there is a GPU, and whether weights are on it."""

from __future__ import annotations

import tensorflow as tf


def has_gpu() -> bool:
    """Whether TensorFlow sees a GPU, and so puts there what has a kernel for it.

    Asks without starting TensorFlow's runtime, before which `tlo.distribute.connect` has to come.
    """
    return bool(tf.config.get_visible_devices("GPU"))


def is_on_gpu(weights: tf.Tensor | tf.Variable) -> bool:
    """Whether weights are on a GPU; tensors of a graph, which have no device yet: will be."""
    device = tf.DeviceSpec.from_string(weights.device or "").device_type
    return device == "GPU" or (device is None and has_gpu())
