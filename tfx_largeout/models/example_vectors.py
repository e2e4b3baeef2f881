# SPDX-License-Identifier: Apache-2.0
"""Vectors of the training examples, stored, and which of them are nearest to others by cosine."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

from tfx_largeout.ops.exact.streamed_logits import streamed_logits

_BLOCK_ELEMENTS = 2**24  # cosines, or features of queries, that are in memory at a time

Vectors: TypeAlias = tf.Tensor | tf.SparseTensor


def directions(vectors: Vectors) -> Vectors:
    """Returns the rows of `[N, F]`, dense or sparse, at length 1 in float32; zeros stay zeros."""
    if not isinstance(vectors, tf.SparseTensor):
        return tf.math.l2_normalize(tf.cast(vectors, tf.float32), axis=1)
    values, rows = tf.cast(vectors.values, tf.float32), vectors.indices[:, 0]
    squares = tf.math.unsorted_segment_sum(values**2, rows, vectors.dense_shape[0])
    scale = tf.math.rsqrt(tf.maximum(squares, 1e-12))
    return tf.SparseTensor(vectors.indices, values * tf.gather(scale, rows), vectors.dense_shape)


def stored_arrays(name: str, batches: list[Any]) -> dict[str, np.ndarray]:
    """Returns what is stored of all batches of `directions`, by the names of weights."""
    if not isinstance(batches[0], tf.SparseTensor):
        return {name: np.concatenate([batch.numpy() for batch in batches])}
    counts = [
        np.bincount(batch.indices.numpy()[:, 0], minlength=int(batch.dense_shape[0]))
        for batch in batches
    ]
    return {
        f"{name}_ids": np.concatenate([batch.indices.numpy()[:, 1] for batch in batches]),
        f"{name}_values": np.concatenate([batch.values.numpy() for batch in batches]),
        f"{name}_splits": np.cumsum(np.concatenate([[0], *counts])),
    }


def nearest(
    name: str, stored: dict[str, Any], queries: Vectors, n: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the n largest cosines and whose they are, both `[B, n]`, ties by lower number.

    Cost: O(B N F) for dense vectors; O(B nnz) for sparse ones, whose B x N cosines and B x F
    features are made for a few queries at a time.
    """
    if not isinstance(queries, tf.SparseTensor):
        nobody = tf.zeros([tf.shape(queries)[0], 0], tf.int64)
        near = streamed_logits(queries, stored[name], None, nobody, n)
        return near.top_scores, near.top_ids
    splits, ids = (tf.convert_to_tensor(stored[f"{name}_{part}"]) for part in ("splits", "ids"))
    width, num_stored = queries.dense_shape[1], tf.size(splits, tf.int64) - 1
    indices = tf.stack([tf.ragged.row_splits_to_segment_ids(splits), ids], axis=1)
    examples = tf.SparseTensor(
        indices, tf.convert_to_tensor(stored[f"{name}_values"]), [num_stored, width]
    )
    num_queries = queries.dense_shape[0]
    rows = tf.clip_by_value(_BLOCK_ELEMENTS // tf.maximum(width, num_stored), 1, 256)

    def block(start: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = tf.sparse.to_dense(tf.sparse.slice(queries, [start, 0], [rows, width]))
        part = tf.pad(part, [[0, rows - tf.shape(part, tf.int64)[0]], [0, 0]])
        cosines = tf.sparse.sparse_dense_matmul(examples, part, adjoint_b=True)
        return tuple(tf.math.top_k(tf.transpose(cosines), n))

    signature = tf.TensorSpec([None, n], tf.float32), tf.TensorSpec([None, n], tf.int32)
    starts = tf.range(0, num_queries, rows)
    scores, ids = tf.map_fn(block, starts, fn_output_signature=signature)
    return (
        tf.reshape(scores, [-1, n])[:num_queries],
        tf.cast(tf.reshape(ids, [-1, n])[:num_queries], tf.int64),
    )
