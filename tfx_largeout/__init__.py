# SPDX-License-Identifier: Apache-2.0
"""Keras output layers for very many classes: sampled softmax, exact softmax and others."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

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
    distribute,
    heads,
    hessian_free,
    indexes,
    initializers,
    layers,
    losses,
    metrics,
    optimizers,
    samplers,
    serving,
    statistics,
)
from tfx_largeout.callbacks.choose_num_sampled import choose_num_sampled
from tfx_largeout.layers.top_k import TopK, top_k_model
from tfx_largeout.models.estimate_memory import estimate_memory
from tfx_largeout.models.nearest_neighbors import NearestNeighborModel
from tfx_largeout.models.replace_output import replace_output, to_keras
from tfx_largeout.models.resize_classes import resize_classes
from tfx_largeout.models.save_model import save_model
from tfx_largeout.models.temperature import fit_temperature
from tfx_largeout.ops.library import library_status
from tfx_largeout.ops.product_precision import set_product_precision
from tfx_largeout.serving.export import export

if TYPE_CHECKING:
    from tfx_largeout.compare.choose_settings import choose_settings
    from tfx_largeout.compare.compare_heads import compare_heads
    from tfx_largeout.compare.compare_models import compare_models

__all__ = [
    "NearestNeighborModel",
    "TopK",
    "callbacks",
    "choose_num_sampled",
    "choose_settings",
    "compare_heads",
    "compare_models",
    "datasets",
    "distribute",
    "estimate_memory",
    "export",
    "fit_temperature",
    "heads",
    "hessian_free",
    "indexes",
    "initializers",
    "layers",
    "library_status",
    "losses",
    "metrics",
    "optimizers",
    "replace_output",
    "resize_classes",
    "samplers",
    "save_model",
    "serving",
    "set_product_precision",
    "statistics",
    "to_keras",
    "top_k_model",
]


_COMPARISONS = ("choose_settings", "compare_heads", "compare_models")


def __getattr__(name: str) -> Any:
    # `datasets` needs tensorflow-datasets, which takes longer to import than the rest.
    if name == "datasets":
        return importlib.import_module("tfx_largeout.datasets")
    if name in _COMPARISONS:
        return getattr(importlib.import_module(f"tfx_largeout.compare.{name}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
