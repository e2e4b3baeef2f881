# SPDX-License-Identifier: Apache-2.0
"""Keeps a head in host memory, even if layers before it are on a GPU."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tfx_largeout.devices import HOST

_METHODS = (
    "build",
    "call",
    "logits",
    "statistics",
    "forward",
    "backward",
    "update_weights",
    "after_update",
    "count_step",
    "mean_logit",
    "top_k",
    "best_found",
    "allowed_ranks",
    "take_step",
)


def place_methods(kind: type) -> None:
    """Wraps the listed methods of a class so that they run `on_device`."""
    for name in _METHODS:
        if name in vars(kind):
            setattr(kind, name, on_device(vars(kind)[name]))


def on_device(method: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a method that runs on the head's `device`; None: where TensorFlow puts it."""

    @functools.wraps(method)
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.device is None:
            return method(self, *args, **kwargs)
        with tf.device(HOST):
            return method(self, *args, **kwargs)

    return run
