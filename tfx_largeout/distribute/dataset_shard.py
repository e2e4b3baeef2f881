# SPDX-License-Identifier: Apache-2.0
"""shard: this worker's part of each batch of a dataset."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.distribute.meeting import agree
from tfx_largeout.distribute.workers import Workers, current
from tfx_largeout.tensorflow_internals import batch_size_of


def shard(dataset: tf.data.Dataset) -> tf.data.Dataset:
    """Returns the dataset with this worker's part of each batch; alone, the dataset itself.

    Of a batch of B examples, worker r gets the n = ceil(B / R) examples from r n on. The last parts
    are padded to n examples with examples of weight -0.0, which heads leave out, so that no example
    counts twice. For this, elements `(x, y)` get weights of 1. Elements `x`, for `predict`, are not
    padded, and the last parts may be smaller, or empty.

    All workers must read the same batches: give `shuffle` a seed, the same everywhere.

    Args:
        dataset: Batches `x`, `(x,)`, `(x, y)` or `(x, y, sample_weight)`, of dense, ragged or
            sparse tensors, in any nesting. The batch size is the global one.

    Raises:
        TypeError: `dataset` is not a `tf.data.Dataset`.
        ValueError: Datasets of workers differ in the number of batches, the batch size or the kind
            of elements, or an element is not a batch.
    """
    if not isinstance(dataset, tf.data.Dataset):
        raise TypeError(f"dataset must be a tf.data.Dataset; got {dataset!r}")
    workers = current()
    if workers.alone:
        return dataset
    spec = dataset.element_spec
    for leaf in tf.nest.flatten(spec):
        if leaf.shape.rank == 0:
            raise ValueError(
                f"dataset must have batches as elements; got the element {spec}: call "
                "dataset.batch(...) first"
            )
    facts = {
        "the number of batches (-1: no end, -2: not known)": int(dataset.cardinality().numpy()),
        "the batch size (0: not known)": batch_size_of(dataset),
        "the kind of elements": str(tf.nest.map_structure(_kind, spec)),
    }
    agree(workers, "shard", facts)

    def part(*element: Any) -> Any:
        if len(element) > 1:
            return padded_part(workers, *element)
        size, start, each = _place(workers, element)
        start = tf.minimum(start, size)
        number = tf.minimum(each, size - start)
        return _rows(element if isinstance(spec, tuple) else element[0], size, start, number)

    return dataset.map(part, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)


def _kind(spec: Any) -> str:
    return f"{type(spec).__name__} {spec.dtype.name} {spec.shape[1:]}"


def padded_part(workers: Workers, x: Any, y: Any, weight: Any = None) -> Any:
    """Returns a worker's part of a batch, padded, and its weights: see `shard`."""
    size, start, each = _place(workers, x)
    x, y = _rows((x, y), size, start, each)
    places = start + tf.range(each)
    weight = tf.ones([size]) if weight is None else weight
    return x, y, tf.nest.map_structure(lambda leaf: _weights(leaf, places, size), weight)


def _place(workers: Workers, x: Any) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns the size of a batch, the start of a worker's part, and the size of a part."""
    size = _batch_size(x)
    each = (size + workers.size - 1) // workers.size
    return size, workers.rank * each, each


def _batch_size(x: Any) -> tf.Tensor:
    leaf = tf.nest.flatten(x)[0]
    if isinstance(leaf, tf.SparseTensor):
        return tf.cast(leaf.dense_shape[0], tf.int32)
    return (
        tf.cast(leaf.nrows(), tf.int32) if isinstance(leaf, tf.RaggedTensor) else tf.shape(leaf)[0]
    )


def _rows(x: Any, size: tf.Tensor, start: tf.Tensor, number: tf.Tensor) -> Any:
    """Returns `number` rows from `start` on; after the last row, copies of it or empty rows."""
    return tf.nest.map_structure(lambda leaf: _rows_of_leaf(leaf, size, start, number), x)


def _rows_of_leaf(leaf: Any, size: tf.Tensor, start: tf.Tensor, number: tf.Tensor) -> Any:
    if not isinstance(leaf, tf.SparseTensor):
        return tf.gather(leaf, tf.minimum(start + tf.range(number), size - 1))
    start, number = tf.cast(start, tf.int64), tf.cast(number, tf.int64)
    rows = leaf.indices[:, 0]
    here = (rows >= start) & (rows < start + number)
    indices = tf.boolean_mask(leaf.indices, here)
    indices -= tf.one_hot(0, leaf.shape.rank, start, tf.constant(0, tf.int64))
    shape = tf.concat([[number], leaf.dense_shape[1:]], axis=0)
    return tf.SparseTensor(indices, tf.boolean_mask(leaf.values, here), shape)


def _weights(weight: tf.Tensor, places: tf.Tensor, size: tf.Tensor) -> tf.Tensor:
    """Returns the weights at some places; -0.0 only at places after the last weight."""
    weight = weight if weight.dtype.is_floating else tf.cast(weight, tf.float32)
    own = tf.gather(weight, tf.minimum(places, size - 1))
    own = tf.where(tf.equal(own, 0), tf.zeros_like(own), own)
    there = tf.reshape(places < size, tf.concat([[-1], tf.ones_like(tf.shape(own)[1:])], axis=0))
    return tf.where(there, own, tf.constant(-0.0, own.dtype))
