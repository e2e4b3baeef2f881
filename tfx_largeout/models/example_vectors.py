# SPDX-License-Identifier: Apache-2.0
"""Stored vectors of the training examples, and search for the nearest by cosine."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.exact.streamed_logits import streamed_logits
from tfx_largeout.run_time_checks import after

_BLOCK_ELEMENTS = 2**22  # cosines, or products for them, in memory

Vectors: TypeAlias = tf.Tensor | tf.SparseTensor


def directions(vectors: Vectors) -> Vectors:
    """Returns the rows of `[N, F]`, dense or sparse, scaled to norm 1 in float32; zeros stay zeros.

    Rows are first divided by their largest entry, so that squares neither vanish nor overflow.
    """
    if not isinstance(vectors, tf.SparseTensor):
        dense = tf.cast(vectors, tf.float32)
        largest = tf.reduce_max(tf.abs(dense), axis=1, keepdims=True)
        return tf.math.l2_normalize(tf.math.divide_no_nan(dense, largest), axis=1)
    values, rows = tf.cast(vectors.values, tf.float32), vectors.indices[:, 0]
    number = vectors.dense_shape[0]
    largest = tf.math.unsorted_segment_max(tf.abs(values), rows, number)
    values = tf.math.divide_no_nan(values, tf.gather(largest, rows))
    squares = tf.math.unsorted_segment_sum(values**2, rows, number)
    scale = tf.math.rsqrt(tf.maximum(squares, 1e-12))
    return tf.SparseTensor(vectors.indices, values * tf.gather(scale, rows), vectors.dense_shape)


def finite(name: str, vectors: Vectors) -> Vectors:
    """Raises an error if rows, dense or sparse, are not finite."""
    if isinstance(vectors, tf.SparseTensor):
        return vectors.with_values(finite(name, vectors.values))
    if not vectors.dtype.is_floating:
        return vectors
    with after([check_finite(name, vectors)]):
        return tf.identity(vectors)


def rows_of(vectors: Vectors, kept: tf.Tensor) -> Vectors:
    """Returns the rows of `[N, F]`, dense or sparse, for which `kept`, `[N]` bool, is True."""
    if not isinstance(vectors, tf.SparseTensor):
        return tf.boolean_mask(vectors, kept)
    places = tf.cumsum(tf.cast(kept, tf.int64))
    there = tf.sparse.retain(vectors, tf.gather(kept, vectors.indices[:, 0]))
    rows, columns = tf.unstack(there.indices, axis=1)
    indices = tf.stack([tf.gather(places, rows) - 1, columns], axis=1)
    number = tf.math.count_nonzero(kept)
    return tf.SparseTensor(indices, there.values, tf.stack([number, vectors.dense_shape[1]]))


def stored_arrays(name: str, batches: list[Any]) -> dict[str, np.ndarray]:
    """Returns the arrays to store for all batches of `directions`, by the names of weights.

    Sparse vectors are stored as an inverted file: for each feature the examples that have it.
    """
    if not isinstance(batches[0], tf.SparseTensor):
        return {name: np.concatenate([batch.numpy() for batch in batches])}
    first = np.cumsum([0, *(int(batch.dense_shape[0]) for batch in batches)])
    examples = np.concatenate(
        [batch.indices.numpy()[:, 0] + i for batch, i in zip(batches, first[:-1], strict=True)]
    )
    features = np.concatenate([batch.indices.numpy()[:, 1] for batch in batches])
    values = np.concatenate([batch.values.numpy() for batch in batches])
    order = np.argsort(features, kind="stable")
    counts = np.bincount(features, minlength=int(batches[0].dense_shape[1]))
    return {
        f"{name}_examples": examples[order],
        f"{name}_values": values[order],
        f"{name}_splits": np.concatenate([[0], np.cumsum(counts)]),
    }


def nearest(
    name: str, stored: dict[str, Any], queries: Vectors, num_stored: int, n: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the n largest cosines and their examples, both `[B, n]`, ties by lower number.

    Cost: O(B N F) for dense vectors; for sparse ones O(B N), and the number of examples with each
    feature of each query. Only the cosines of a few queries are in memory at a time.
    """
    if not isinstance(queries, tf.SparseTensor):
        nobody = tf.zeros([tf.shape(queries)[0], 0], tf.int64)
        near = streamed_logits(queries, stored[name], None, nobody, n)
        return near.top_scores, near.top_ids
    examples, values, splits = (
        tf.convert_to_tensor(stored[f"{name}_{part}"]) for part in ("examples", "values", "splits")
    )
    num_queries, width = queries.dense_shape[0], queries.dense_shape[1]
    lengths = tf.gather(splits, queries.indices[:, 1] + 1) - tf.gather(
        splits, queries.indices[:, 1]
    )
    most_products = tf.reduce_max(
        tf.math.unsorted_segment_sum(lengths, queries.indices[:, 0], num_queries)
    )
    of_a_query = tf.maximum(most_products, num_stored)
    rows = tf.maximum(_BLOCK_ELEMENTS // of_a_query, 1)

    def block(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = tf.sparse.slice(queries, [start, 0], [rows, width])
        row, feature = part.indices[:, 0], part.indices[:, 1]
        having = tf.ragged.range(tf.gather(splits, feature), tf.gather(splits, feature + 1))
        entry = having.value_rowids()
        products = tf.gather(part.values, entry) * tf.gather(values, having.values)
        places = tf.gather(row, entry) * num_stored + tf.gather(examples, having.values)
        cosines = tf.math.unsorted_segment_sum(products, places, rows * num_stored)
        return tuple(tf.math.top_k(tf.reshape(cosines, [rows, num_stored]), n))

    signature = tf.TensorSpec([None, n], tf.float32), tf.TensorSpec([None, n], tf.int32)
    starts = tf.range(0, tf.maximum(num_queries, 1), rows)  # at least one block
    scores, ids = tf.map_fn(block, starts, fn_output_signature=signature)
    return (
        tf.reshape(scores, [-1, n])[:num_queries],
        tf.cast(tf.reshape(ids, [-1, n])[:num_queries], tf.int64),
    )


def shares(cosines: tf.Tensor, temperature: float) -> tf.Tensor:
    """Returns the softmax of cosine / temperature over cosines above 0; 0 for the others.

    An example that has nothing in common with a query is not a neighbor, even if others are few.
    """
    weights = tf.exp((cosines - tf.reduce_max(cosines, axis=1, keepdims=True)) / temperature)
    weights = tf.where(cosines > 0, weights, 0.0)
    return tf.math.divide_no_nan(weights, tf.reduce_sum(weights, axis=1, keepdims=True))
