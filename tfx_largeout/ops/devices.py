# SPDX-License-Identifier: Apache-2.0
"""Whether there is a GPU, and whether weights are on it."""

from __future__ import annotations

import tensorflow as tf

HOST = "CPU:0"
"""The host: for what decides there which ops run, seeds of random ops, and CPU kernels."""


def has_gpu() -> bool:
    """Whether TensorFlow sees a GPU, and so places ops with a GPU kernel there.

    Does not start TensorFlow's runtime, because `tlo.distribute.connect` must come before.
    """
    return bool(tf.config.get_visible_devices("GPU"))


def is_on_gpu(weights: tf.Tensor | tf.Variable) -> bool:
    """Whether weights are on a GPU; for tensors of a graph, without a device yet: will be."""
    device = tf.DeviceSpec.from_string(weights.device or "").device_type
    return device == "GPU" or (device is None and has_gpu())
