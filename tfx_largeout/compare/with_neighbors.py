# SPDX-License-Identifier: Apache-2.0
"""What a trained model and the labels of the nearest training examples predict together."""

from __future__ import annotations

import time

import keras
import numpy as np

from tfx_largeout.compare.peers import K, precision
from tfx_largeout.compare.results import CurvePoint
from tfx_largeout.datasets import SparseExamples
from tfx_largeout.models.nearest_neighbors import NearestNeighborModel

# Of neighbors by the trunk's output and by features; chosen on held-out examples of WordNet.
_WEIGHT, _FEATURE_WEIGHT = 0.2, 0.4


def with_neighbors(
    model: keras.Model,
    seconds: float,
    train: SparseExamples,
    test: SparseExamples,
    batch_size: int,
) -> CurvePoint:
    """Evaluates a trained model together with nearest neighbors: see `NearestNeighborModel`.

    Args:
        model: The model.
        seconds: Seconds of its training; those that the neighbors take to store are added.
        train: The examples that are neighbors.
        test: To evaluate on.
        batch_size: Examples a batch.
    """
    start = time.perf_counter()
    k = min(K, train.num_labels)
    both = NearestNeighborModel(model, k, weight=_WEIGHT, feature_weight=_FEATURE_WEIGHT)
    both.adapt(train.dataset(batch_size))
    seconds += time.perf_counter() - start
    _, ids = both.predict(test.dataset(batch_size), verbose=0)
    found = precision(np.pad(ids, [(0, 0), (0, K - k)], constant_values=-1), test)
    return CurvePoint(0, 0.0, seconds, None, *(found[k] for k in (1, 3, 5)))
