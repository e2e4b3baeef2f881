# SPDX-License-Identifier: Apache-2.0
"""How an example looks in tensorflow-datasets: its schema, and examples made from a container."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import tensorflow_datasets as tfds

from tfx_largeout.datasets.sparse_examples import SparseExamples


def features() -> tfds.features.FeaturesDict:
    """Schema of an example: `feature_ids [n]`, `feature_values [n]` and `labels [k]`."""
    return tfds.features.FeaturesDict(
        {
            "feature_ids": tfds.features.Tensor(shape=(None,), dtype=np.int64),
            "feature_values": tfds.features.Tensor(shape=(None,), dtype=np.float32),
            "labels": tfds.features.Tensor(shape=(None,), dtype=np.int64),
        }
    )


def generate(examples: SparseExamples) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yields (key, example) in the order of the examples."""
    feature_splits, label_splits = examples.feature_splits, examples.label_splits
    feature_ids = examples.feature_ids.astype(np.int64)
    for i in range(examples.num_examples):
        row = slice(feature_splits[i], feature_splits[i + 1])
        yield (
            i,
            {
                "feature_ids": feature_ids[row],
                "feature_values": examples.feature_values[row],
                "labels": examples.label_ids[label_splits[i] : label_splits[i + 1]],
            },
        )
