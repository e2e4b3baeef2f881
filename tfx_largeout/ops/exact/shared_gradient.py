# SPDX-License-Identifier: Apache-2.0
"""A gradient shared by the logits of all classes, estimated without bias from a few classes."""

from __future__ import annotations

from typing import NamedTuple

import tensorflow as tf


class CandidateGradients(NamedTuple):
    """Examples with separate candidates, for `candidate_update`.

    Attributes:
        hidden: `[M, D]`.
        labels: `[M, K]` int64, padded with -1.
        candidates: `[M, S]` int64, padded with -1; or `[S]`, the same for all.
        true_gradient: `[M, K]`, the gradient with respect to the labels' logits.
        candidate_gradient: `[M, S]`, the gradient with respect to the candidates' logits.
    """

    hidden: tf.Tensor
    labels: tf.Tensor
    candidates: tf.Tensor
    true_gradient: tf.Tensor
    candidate_gradient: tf.Tensor

    def above(self, other: CandidateGradients) -> CandidateGradients:
        """Concatenates these examples and others, padded to as many labels and candidates."""
        return CandidateGradients(*map(_stacked, self, other, (0, -1, -1, 0, 0)))

    def without_zeros(self) -> CandidateGradients:
        """Returns these examples with -1 for rows with gradient 0, as in `named_rows`.

        So an example with a mask or a weight of 0 does not change a row, not even by moments or
        decay.
        """
        candidates = self.candidates
        if candidates.shape.rank == 2:
            candidates = named_rows(candidates, self.candidate_gradient)
        labels = named_rows(self.labels, self.true_gradient)
        return self._replace(labels=labels, candidates=candidates)


def named_rows(ids: tf.Tensor, gradient: tf.Tensor) -> tf.Tensor:
    """Returns the ids of rows, with -1 (no row) if the gradient is exactly 0."""
    return tf.where(gradient == 0, tf.constant(-1, ids.dtype), ids)


def shared_gradient(
    hidden: tf.Tensor, gradient: tf.Tensor, num_classes: int, num_drawn: int, seed: tf.Tensor
) -> CandidateGradients:
    """Returns examples with the same expected update of W and b as a shared gradient.

    With dL/do_ic = m_i / C for all c, each row of W has the same gradient v = 1/C sum_i m_i h_i,
    and each bias 1/C sum_i m_i. Here P = ceil(B / S) systematic samples of S classes are drawn. The
    gradient of a row is v C / (P S) times the number of samples that contain it, whose expectation
    is v. With S = C it is v.

    Per sample, all h_i with m_i > 0 are merged into one example, and all with m_i < 0 into another:
    their mean with weights m_i. Its candidates have the gradient (sum of the weights) / (P S).

    Cost: O(B D), and 2 P S entries.

    Args:
        hidden: h, `[B, D]`, float32 or float64.
        gradient: m, `[B]`, of the same dtype.
        num_classes: C, below 2^31.
        num_drawn: S, in [1, C].
        seed: `[2]` int64.

    Returns:
        2 P examples without labels, with S candidates each.
    """
    num_samples = num_samples_for(tf.shape(hidden)[0], num_drawn)
    ids = systematic_samples(num_classes, num_drawn, num_samples, seed)
    weights = tf.stack([tf.maximum(gradient, 0), tf.minimum(gradient, 0)])
    totals = tf.reduce_sum(weights, axis=1, keepdims=True)
    means = tf.math.divide_no_nan(tf.matmul(weights, hidden), totals)
    means, totals = (tf.repeat(x, num_samples, axis=0) for x in (means, totals))
    candidates = tf.tile(ids, [2, 1])
    share = totals / tf.cast(num_samples * num_drawn, totals.dtype)
    return CandidateGradients(
        means,
        tf.zeros([2 * num_samples, 0], tf.int64),
        candidates,
        tf.zeros([2 * num_samples, 0], totals.dtype),
        tf.broadcast_to(share, tf.shape(candidates)),
    )


def num_samples_for(batch: tf.Tensor, num_drawn: int) -> tf.Tensor:
    """Returns P, the number of samples of S classes in `shared_gradient` for B examples."""
    return -(-batch // num_drawn)


def systematic_samples(
    num_classes: int, num_drawn: int, num_samples: tf.Tensor, seed: tf.Tensor
) -> tf.Tensor:
    """Draws samples of S distinct classes, each class with probability S / C in each sample.

    c_j = floor((r + j C) / S) for j = 0 ... S - 1, with r uniform in 0 ... C - 1: a systematic
    sample, whose classes are spread evenly. With S = C it is all classes.

    Args:
        num_classes: C, below 2^31.
        num_drawn: S, in [1, C].
        num_samples: P, an integer scalar.
        seed: `[2]` int64.

    Returns:
        `[P, S]` int64, rising.
    """
    shape = tf.stack([num_samples, 1])
    starts = tf.random.stateless_uniform(shape, seed, 0, num_classes, tf.int64)
    return (starts + num_classes * tf.range(num_drawn, dtype=tf.int64)) // num_drawn


def _stacked(first: tf.Tensor, second: tf.Tensor, padding: int) -> tf.Tensor:
    """Concatenates the rows of two matrices, padded to the columns of the wider one."""
    columns = tf.maximum(tf.shape(first)[1], tf.shape(second)[1])

    def widened(matrix: tf.Tensor) -> tf.Tensor:
        missing = tf.stack([tf.shape(matrix)[0], columns - tf.shape(matrix)[1]])
        return tf.concat([matrix, tf.fill(missing, tf.cast(padding, matrix.dtype))], axis=1)

    return tf.concat([widened(first), widened(second)], axis=0)
