# SPDX-License-Identifier: Apache-2.0
"""Logits of labels and candidate classes, from only their rows of W."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.rows.variable_rows import fold_blocks, gather
from tfx_largeout.statistics import TopScores

_BLOCK_ELEMENTS = 2**21  # size of a block of gathered rows: 8 MiB in float32


class CandidateLogits(NamedTuple):
    """The result of `candidate_logits`; floats are float32, or float64 for a float64 kernel."""

    true_logits: tf.Tensor
    """`[N, K]`: o at the labels; 0 at padding."""
    candidate_logits: tf.Tensor
    """`[N, S]`: o at the candidates; 0 where there is none."""
    hits: tf.Tensor
    """`[N, S]` bool: the candidate is one of the example's labels."""


def candidate_logits(
    kernel: Any,
    bias: Any,
    hidden: tf.Tensor,
    labels: tf.Tensor,
    candidates: tf.Tensor,
    *,
    implementation: str = "auto",
) -> CandidateLogits:
    """Computes o_c = W[c] . h_i + b_c for the labels and the candidates of each example.

    Cost: O(N (K + S) D), independent of C. Memory besides the result: O((N + S) D) for shared
    candidates; 12 N (K + S) bytes and at most 1 MiB for candidates per example.

    Args:
        kernel: W, `[C, D]`: this one and the next four as in `CandidateArguments`.
        bias: b, `[C]`, or None.
        hidden: h, `[N, D]`.
        labels: `[N, K]`.
        candidates: `[S]`, or `[N, S]`: per example.
        implementation: See `ops`, which has the errors, too. This package's GPU kernels read an id
            out of range as padding and don't wait: the error is raised by a later call of this
            function, of `candidate_update` or `streamed_logits`.
    """
    arguments = CandidateArguments.of(kernel, bias, hidden, labels, candidates)
    module = arguments.op_module(implementation, "tfx_candidate_logits")
    if module is None:
        return _composed(arguments)
    return CandidateLogits(
        *module.tfx_candidate_logits(**arguments.inputs, candidates=arguments.candidates)
    )


def top_candidates(kernel: Any, bias: Any, hidden: tf.Tensor, ids: tf.Tensor, k: int) -> TopScores:
    """Ranks each example's distinct candidates `[N, S]`, and returns the best k, k <= S.

    Returns:
        Logits and ids `[N, k]`, by falling logit, padded with -inf and -1; and log Z over only the
        candidates, `[N]`.
    """
    dtype = tf.float64 if kernel.dtype in ("float64", tf.float64) else tf.float32
    no_labels = tf.zeros([tf.shape(hidden)[0], 0], tf.int64)
    values = candidate_logits(kernel, bias, tf.cast(hidden, dtype), no_labels, ids)
    logits = tf.where(ids < 0, tf.constant(float("-inf"), dtype), values.candidate_logits)
    scores, places = tf.math.top_k(logits, k)
    log_partition = tf.reduce_logsumexp(logits, axis=1)
    return TopScores(scores, tf.gather(ids, places, batch_dims=1), log_partition)


def _composed(arguments: CandidateArguments) -> CandidateLogits:
    """Same results as the custom op, in O(S D) memory, or a block for candidates per example."""
    arguments = arguments.checked()
    labels, candidates = arguments.labels, arguments.candidates
    logits = _own_logits if arguments.is_own else _shared_logits
    candidate_logits = tf.where(candidates >= 0, logits(arguments, candidates), 0)
    true_logits = tf.where(labels >= 0, _own_logits(arguments, labels), 0)
    hits = hits_of(labels, candidates, tf.shape(candidate_logits))
    return CandidateLogits(true_logits, candidate_logits, hits)


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

    def of_block(start: tf.Tensor, end: tf.Tensor, logits: tf.TensorArray) -> tf.TensorArray:
        some, h = ids[start:end], hidden[start:end]
        rows = tf.cast(gather(arguments.kernel, some), hidden.dtype)
        products = tf.linalg.matvec(rows, h) + _biases(arguments, some)
        return logits.write(start // block, products)

    num_examples = tf.maximum(num_examples, 1)  # at least one block, maybe empty
    logits = tf.TensorArray(
        hidden.dtype,
        size=(num_examples + block - 1) // block,
        infer_shape=False,
        element_shape=tf.TensorShape([None, ids.shape[1]]),
    )
    logits = fold_blocks(num_examples, block, of_block, logits)
    return tf.reshape(logits.concat(), tf.shape(ids))


def _biases(arguments: CandidateArguments, ids: tf.Tensor) -> tf.Tensor | float:
    if arguments.bias is None:
        return tf.zeros([], arguments.hidden.dtype)
    return tf.cast(gather(arguments.bias, ids), arguments.hidden.dtype)


def hits_of(labels: tf.Tensor, candidates: tf.Tensor, shape: tf.Tensor) -> tf.Tensor:
    """Returns whether a candidate is among an example's labels, one label slot at a time."""

    def of_slot(slot: tf.Tensor, _: tf.Tensor, hits: tf.Tensor) -> tf.Tensor:
        label = labels[:, slot, tf.newaxis]
        return hits | ((label == candidates) & (label >= 0))

    static = tf.TensorShape([labels.shape[0], candidates.shape[-1]])
    none = tf.ensure_shape(tf.zeros(shape, tf.bool), static)
    hits = fold_blocks(tf.shape(labels)[1], 1, of_slot, none, tf.TensorShape([None, None]))
    return tf.ensure_shape(hits, static)
