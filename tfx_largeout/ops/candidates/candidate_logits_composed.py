# SPDX-License-Identifier: Apache-2.0
"""Logits of labels and candidates, in TensorFlow's own ops alone."""

from __future__ import annotations

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.rows.variable_rows import gather

_BLOCK_ELEMENTS = 2**21  # how much of the gathered rows exists at a time: 8 MiB in float32


def candidate_logits_composed(
    arguments: CandidateArguments,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Same results as the custom op of `candidate_logits`.

    Cost: O(N (K + S) D); memory for O(S D) numbers, or for a block of 2^21 of them where candidates
    are an example's own.

    Arguments, result and errors: those of `candidate_logits`.
    """
    arguments = arguments.checked()
    labels, candidates = arguments.labels, arguments.candidates
    logits = _own_logits if arguments.is_own else _shared_logits
    candidate_logits = tf.where(candidates >= 0, logits(arguments, candidates), 0)
    true_logits = tf.where(labels >= 0, _own_logits(arguments, labels), 0)
    return true_logits, candidate_logits, hits_of(labels, candidates, tf.shape(candidate_logits))


def _shared_logits(arguments: CandidateArguments, ids: tf.Tensor) -> tf.Tensor:
    ids = tf.maximum(ids, 0)
    rows = tf.cast(gather(arguments.kernel, ids), arguments.hidden.dtype)
    return tf.matmul(arguments.hidden, rows, transpose_b=True) + _biases(arguments, ids)


def _own_logits(arguments: CandidateArguments, ids: tf.Tensor) -> tf.Tensor:
    """Returns o at `ids` `[N, n]`, a block of examples at a time."""
    ids, hidden = tf.maximum(ids, 0), arguments.hidden
    num_examples, per_example = tf.shape(ids)[0], tf.shape(ids)[1]
    block = _BLOCK_ELEMENTS // tf.maximum(per_example * arguments.kernel.shape[1], 1)
    block = tf.maximum(block, 1)

    def body(start: tf.Tensor, logits: tf.TensorArray) -> tuple[tf.Tensor, tf.TensorArray]:
        end = tf.minimum(start + block, num_examples)
        some, h = ids[start:end], hidden[start:end]
        rows = tf.cast(gather(arguments.kernel, some), hidden.dtype)
        products = tf.linalg.matvec(rows, h) + _biases(arguments, some)
        return end, logits.write(start // block, products)

    logits = tf.TensorArray(
        hidden.dtype,
        size=tf.maximum((num_examples + block - 1) // block, 1),
        infer_shape=False,
        element_shape=tf.TensorShape([None, ids.shape[1]]),
    )
    start = tf.zeros([], tf.int32)
    _, logits = tf.while_loop(
        lambda *_: True,
        body,
        (start, logits),
        maximum_iterations=logits.size(),
        parallel_iterations=1,
    )
    return tf.reshape(logits.concat(), tf.shape(ids))


def _biases(arguments: CandidateArguments, ids: tf.Tensor) -> tf.Tensor | float:
    if arguments.bias is None:
        return tf.zeros([], arguments.hidden.dtype)
    return tf.cast(gather(arguments.bias, ids), arguments.hidden.dtype)


def hits_of(labels: tf.Tensor, candidates: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns whether a candidate is among an example's labels, one label slot at a time."""

    def body(slot: tf.Tensor, hits: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        label = labels[:, slot, tf.newaxis]
        return slot + 1, hits | ((label == candidates) & (label >= 0))

    static = tf.TensorShape([labels.shape[0], candidates.shape[-1]])
    none = tf.ensure_shape(tf.zeros(shape, tf.bool), static)
    _, hits = tf.while_loop(
        lambda slot, _: slot < tf.shape(labels)[1],
        body,
        (tf.zeros([], tf.int32), none),
        shape_invariants=(tf.TensorShape([]), tf.TensorShape([None, None])),
        parallel_iterations=1,
    )
    return tf.ensure_shape(hits, static)
