# SPDX-License-Identifier: Apache-2.0
"""Whether there is a GPU, whether weights are on it, and what stays on the host."""

from __future__ import annotations

import contextlib

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


def host_if(condition: bool) -> contextlib.AbstractContextManager[None]:
    """Returns a scope whose ops run on the host, or else where TensorFlow places them."""
    return tf.device(HOST) if condition else contextlib.nullcontext()


def split_seed(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns several seeds `[2]` by one, on the host, where random ops read them."""
    with tf.device(HOST):
        return tf.unstack(tf.random.split(seed, count))
