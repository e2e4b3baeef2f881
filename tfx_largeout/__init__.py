# SPDX-License-Identifier: Apache-2.0
"""Keras output layers whose cost does not grow with the number of classes."""

from __future__ import annotations

import keras

__version__ = "0.1.0"

if keras.backend.backend() != "tensorflow":
    raise ImportError(
        "tfx_largeout needs the TensorFlow backend of Keras; "
        f"got KERAS_BACKEND={keras.backend.backend()!r}. "
        "Set the environment variable KERAS_BACKEND=tensorflow before you import keras."
    )

from tfx_largeout import (
    callbacks,
    heads,
    hessian_free,
    indexes,
    layers,
    losses,
    metrics,
    optimizers,
    samplers,
)
from tfx_largeout.layers.top_k import TopK, TopKModel, top_k_model

__all__ = [
    "TopK",
    "TopKModel",
    "callbacks",
    "heads",
    "hessian_free",
    "indexes",
    "layers",
    "losses",
    "metrics",
    "optimizers",
    "samplers",
    "top_k_model",
]
