# SPDX-License-Identifier: Apache-2.0
"""Examples in tensorflow-datasets: their schema, made from a container, and `sparse_batches`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_datasets as tfds

from tfx_largeout.arguments import flag_argument, integer_argument
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


def sparse_batches(
    dataset: tf.data.Dataset,
    num_features: int,
    batch_size: int,
    *,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Batches of a tensorflow-datasets data set, for `model.fit`.

    For data that fit in memory, `SparseExamples.dataset` is much faster.

    Args:
        dataset: Examples of one of this package's builders, such as `tfds.load(name,
            split="train")`; shuffle it first.
        num_features: Width of the input, `builder.info.metadata["num_features"]`.
        batch_size: Examples per batch, B.
        drop_remainder: Whether to leave out a last batch of fewer than B examples.

    Returns:
        A dataset of features, a `tf.SparseTensor [B, num_features]` float32, and labels, a
        `tf.RaggedTensor [B, None]` int64.

    Raises:
        ValueError: `batch_size` or `num_features` is not a positive integer; or `drop_remainder`
            is not a flag.
    """
    batch_size = integer_argument("batch_size", batch_size, at_least=1)
    num_features = integer_argument("num_features", num_features, at_least=1)
    drop_remainder = flag_argument("drop_remainder", drop_remainder)

    def to_sparse(batch: dict[str, Any]) -> tuple[tf.SparseTensor, tf.RaggedTensor]:
        ids = batch["feature_ids"]
        size = batch_size if drop_remainder else ids.nrows()
        sparse = tf.SparseTensor(
            tf.stack([ids.value_rowids(), ids.values], axis=1),
            batch["feature_values"].values,
            tf.stack([tf.cast(size, tf.int64), num_features]),
        )
        return sparse, batch["labels"]

    return (
        dataset.ragged_batch(batch_size, drop_remainder=drop_remainder)
        .map(to_sparse, num_parallel_calls=tf.data.AUTOTUNE)
        .prefetch(tf.data.AUTOTUNE)
    )
