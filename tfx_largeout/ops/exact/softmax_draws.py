# SPDX-License-Identifier: Apache-2.0
"""Draws from the softmax over all classes, in bounded memory and TensorFlow's ops."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tfx_largeout.ops.exact.logit_blocks import LogitBlocks, classes_of_small_block

_GROUP = 64  # classes per group: draws choose a group of their block, then a class


def softmax_draws(
    hidden: tf.Tensor, kernel: Any, bias: Any, num_draws: int, seed: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Draws classes of each example from its softmax p_c = exp(o_c) / Z, with replacement.

    By inverse cumulative sums, in two passes over blocks of classes. The first computes the sum of
    exp(o_c) over each block; they give Z and the block of each draw. The second computes each block
    again; each draw of the block chooses a group of classes by its sum, then a class of the group.
    Each choice compares a separate random number with sums in float64.

    Cost: O(B C D) twice, and O(B S) for each block. Memory, in numbers: a few blocks of 2^20
    logits, on a GPU too, or of 64 B if that is more; the sums of blocks, at most B C / 64; and, if
    all draws are in one block, about 64 B S + 2^14 S for their groups and classes.

    Args:
        hidden: h, `[B, D]`, of the dtype to compute in: float32 or float64.
        kernel: W, `[C, D]`, a variable or a tensor. It is read in blocks and never copied.
        bias: b, `[C]`, likewise, or None.
        num_draws: S, at least 1.
        seed: `[2]` int32 or int64: equal seeds give equal draws.

    Returns:
        The classes `[B, S]` int64, -1 where Z is not finite; and log Z `[B]`, of the dtype of h.
    """
    blocks = LogitBlocks.of(hidden, kernel, bias)
    block = tf.minimum(classes_of_small_block(hidden), blocks.num_classes)
    log_sums = _log_sums_of_blocks(blocks, block)
    log_partition = tf.reduce_logsumexp(tf.cast(log_sums, tf.float64), axis=0)
    shape = [tf.shape(hidden)[0], num_draws, 3]
    uniform = tf.random.stateless_uniform(shape, seed, dtype=tf.float64)
    block_of_draw = _blocks_of_draws(log_sums, log_partition, uniform[:, :, 0])

    def visit(start, end, logits, ids):  # type: ignore[no-untyped-def]
        number = start // block
        weights = tf.exp(logits - log_sums[number][:, tf.newaxis])
        draws = tf.where(block_of_draw == tf.cast(number, tf.int64))
        drawn = _draws_of_block(weights, draws[:, 0], tf.gather_nd(uniform[:, :, 1:], draws))
        return tf.tensor_scatter_nd_update(ids, draws, drawn + tf.cast(start, tf.int64))

    none = tf.fill(shape[:2], tf.constant(-1, tf.int64))
    ids = blocks.fold(visit, none, tf.TensorShape([None, num_draws]), block)
    return tf.ensure_shape(ids, [hidden.shape[0], num_draws]), tf.cast(log_partition, hidden.dtype)


def _log_sums_of_blocks(blocks: LogitBlocks, block: tf.Tensor) -> tf.Tensor:
    """Returns the log of the sum of exp(o_c) over each block, `[blocks, B]`."""
    num_blocks = (blocks.num_classes + block - 1) // block
    sums = tf.TensorArray(blocks.hidden.dtype, num_blocks, element_shape=[None])
    sums = blocks.fold(
        lambda start, end, logits, sums: sums.write(
            start // block, tf.reduce_logsumexp(logits, axis=1)
        ),
        sums,
        block=block,
    )
    return sums.stack()


def _blocks_of_draws(
    log_sums: tf.Tensor, log_partition: tf.Tensor, uniform: tf.Tensor
) -> tf.Tensor:
    """Returns the block of each draw, `[B, S]` int64; the number of blocks if Z is not finite."""
    shares = tf.exp(tf.cast(tf.transpose(log_sums), tf.float64) - log_partition[:, tf.newaxis])
    sums = tf.cumsum(shares, axis=1)
    values = uniform * sums[:, -1:]
    return tf.raw_ops.UpperBound(sorted_inputs=sums, values=values, out_type=tf.int64)


def _draws_of_block(weights: tf.Tensor, examples: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Returns a column of the weights `[B, n]` of a block for each draw, `[m]` int64.

    `examples` `[m]` is the example of each draw, `uniform` is `[m, 2]`.
    """
    weights = tf.pad(weights, [[0, 0], [0, -tf.shape(weights)[1] % _GROUP]])
    weights = tf.reshape(weights, [tf.shape(weights)[0], tf.shape(weights)[1] // _GROUP, _GROUP])
    group = _choice(tf.gather(tf.reduce_sum(weights, axis=2), examples), uniform[:, 0])
    member = _choice(tf.gather_nd(weights, tf.stack([examples, group], axis=1)), uniform[:, 1])
    return group * _GROUP + member


def _choice(weights: tf.Tensor, uniform: tf.Tensor) -> tf.Tensor:
    """Draws a column for each row of weights `[m, n]`, proportional to them, `[m]` int64."""
    sums = tf.cumsum(tf.cast(weights, tf.float64), axis=1)
    below = sums <= uniform[:, tf.newaxis] * sums[:, -1:]
    return tf.math.count_nonzero(below, axis=1)
