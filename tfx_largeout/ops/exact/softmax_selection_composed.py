# SPDX-License-Identifier: Apache-2.0
"""A random choice of entries of the softmax, in TensorFlow's own ops alone."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.distribute.class_shard import ClassShard
from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.exact.streamed_logits_composed import (
    classes_of_block,
    ids_between,
    logits_of_block,
    streamed_logits_composed,
)
from tfx_largeout.ops.padded_rows import padded_rows


def softmax_selection_composed(
    arguments: CandidateArguments,
    num_selected: int,
    epsilon: float,
    seed: tf.Tensor,
    shard: ClassShard,
    products: str,
) -> tuple[tf.Tensor, ...]:
    """Same results as the custom op of `softmax_selection`, by two sweeps over blocks of classes.

    The first gives the partition function; the second computes the logits again and keeps entries.

    Arguments, result and errors: those of `softmax_selection`.
    """
    num_classes, num_rows = shard.num_classes, arguments.num_classes
    shard = shard.tensors(num_rows)
    arguments = arguments.checked([shard.check(num_rows)], num_classes)
    hidden, labels = arguments.hidden, arguments.labels
    log_z, targets, *_ = streamed_logits_composed(
        hidden, arguments.kernel, arguments.bias, labels, 0, None, shard, products
    )
    batch = tf.shape(hidden, tf.int64)[0]
    if num_selected == 0:
        empty = tf.stack([batch, 0])
        return log_z, targets, tf.zeros(empty, tf.int64), *[tf.zeros(empty, hidden.dtype)] * 3
    block = classes_of_block(hidden, arguments.kernel)
    keys = _example_keys(seed, batch)

    def body(start, places, values):  # type: ignore[no-untyped-def]
        end = start + tf.minimum(block, num_rows - start)
        ids = shard.class_of(ids_between(start, end))
        layer = arguments.kernel, arguments.bias
        logits = logits_of_block(hidden, *layer, start, end, products)
        p = tf.exp(logits - log_z[:, tf.newaxis])
        u = tf.cast(_uniform(keys, ids), p.dtype)
        is_label = tf.reduce_any(labels[:, :, tf.newaxis] == ids, axis=1)
        kept = tf.where((p > u * epsilon) & ~is_label)
        of_block = tf.stack([kept[:, 0], tf.gather(ids, kept[:, 1])], axis=1)
        p, logits, u = (tf.gather_nd(x, kept) for x in (p, logits, u))
        more = tf.stack([tf.maximum(p, epsilon), logits, logits - tf.math.log(u)], axis=1)
        places = tf.concat([places, of_block], axis=0)
        return end, places, tf.concat([values, more], axis=0)

    _, places, values = tf.while_loop(
        lambda start, *_: start < num_rows,
        body,
        (tf.zeros([], tf.int32), tf.zeros([0, 2], tf.int64), tf.zeros([0, 3], hidden.dtype)),
        shape_invariants=(
            tf.TensorShape([]),
            tf.TensorShape([None, 2]),
            tf.TensorShape([None, 3]),
        ),
        parallel_iterations=1,
    )
    # Blocks came in order, so that a stable sort by examples leaves the classes rising.
    order = tf.argsort(places[:, 0], stable=True)
    places, values = tf.gather(places, order), tf.gather(values, order)
    entries = [(places[:, 1], -1), *((x, 0) for x in tf.unstack(values, axis=1))]
    matrices = padded_rows(places[:, 0], batch, *entries)
    return log_z, targets, *(tf.ensure_shape(x, [hidden.shape[0], None]) for x in matrices)


# The random numbers of the custom op: a hash of the seed, the example and the class.


def _example_keys(seed: tf.Tensor, batch: tf.Tensor) -> tf.Tensor:
    """Returns a random number of 32 bits for each example, `[B]` uint32."""
    seed = tf.cast(seed, tf.uint64)
    key = _split_mix(tf.bitwise.bitwise_xor(_split_mix(seed[0]), seed[1]))
    examples = tf.cast(tf.range(batch), tf.uint64)
    return tf.cast(_shifted(_split_mix(tf.bitwise.bitwise_xor(key, examples)), 32), tf.uint32)


def _uniform(keys: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    """Returns random numbers in (0, 1] for each example and class, `[B, n]` float32."""
    of_class = tf.cast(ids, tf.uint32)
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B)):
        of_class = _mixed(of_class, shift) * tf.constant(factor, tf.uint32)
    of_class = _mixed(of_class, 16)
    x = tf.bitwise.bitwise_xor(keys[:, tf.newaxis], of_class) * tf.constant(0x9E3779B1, tf.uint32)
    x = _mixed(x, 15) * tf.constant(0x85EBCA77, tf.uint32)
    return (tf.cast(_shifted(x, 1), tf.float32) + 0.5) * 2.0**-31


def _split_mix(x: tf.Tensor) -> tf.Tensor:
    """A step of the generator SplitMix64 (Steele, Lea, Flood 2014)."""
    x += tf.constant(0x9E3779B97F4A7C15, tf.uint64)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = _mixed(x, shift) * tf.constant(factor, tf.uint64)
    return _mixed(x, 31)


def _mixed(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.bitwise_xor(x, _shifted(x, shift))


def _shifted(x: tf.Tensor, shift: int) -> tf.Tensor:
    return tf.bitwise.right_shift(x, tf.constant(shift, x.dtype))
