# SPDX-License-Identifier: Apache-2.0
"""Whether there is a GPU, whether weights are on it, and what stays on the host."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable
from typing import Any, TypeVar

import tensorflow as tf

Function = TypeVar("Function", bound=Callable[..., Any])

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


def on_host(function: Function) -> Function:
    """Makes a function run its ops on the host."""

    @functools.wraps(function)
    def run(*arguments: Any, **options: Any) -> Any:
        with tf.device(HOST):
            return function(*arguments, **options)

    return run  # type: ignore[return-value]


@on_host
def split_seed(seed: tf.Tensor, count: int) -> list[tf.Tensor]:
    """Returns several seeds `[2]` by one, on the host, where random ops read them."""
    return tf.unstack(tf.random.split(seed, count))
