# SPDX-License-Identifier: Apache-2.0
"""Names of the package's classes in Keras files, by which Keras loads them."""

from __future__ import annotations

import inspect

import keras

import tfx_largeout as tlo
from tfx_largeout.indexes.base import Index
from tfx_largeout.indexes.hash_family import HashFamily

NAMESPACES = [tlo, *(value for _, value in inspect.getmembers(tlo, inspect.ismodule))]
SAVED = (
    HashFamily,
    Index,
    tlo.samplers.Sampler,
    keras.initializers.Initializer,
    keras.Layer,
    keras.Loss,
    keras.Metric,
    keras.optimizers.Optimizer,
)
BASES = {  # without instances
    "CandidateLoss",
    "HashFamily",
    "Head",
    "HeadLoss",
    "Index",
    "IndexSampler",
    "KernelHead",
    "RowOptimizer",
    "RowUpdatingHead",
    "Sampler",
    "SelfUpdatingHead",
    "SphericalLoss",
}


def test_each_class_that_is_saved_is_registered():
    classes = {
        value
        for namespace in NAMESPACES
        for name in getattr(namespace, "__all__", ())
        if inspect.isclass(value := getattr(namespace, name)) and issubclass(value, SAVED)
        if value.__module__.startswith("tfx_largeout.")
    }
    names = {of.__name__: keras.saving.get_registered_name(of) for of in classes}
    assert len(names) > 60
    assert names == {name: name if name in BASES else f"tfx_largeout>{name}" for name in names}
