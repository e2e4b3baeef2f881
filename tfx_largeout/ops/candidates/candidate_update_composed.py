# SPDX-License-Identifier: Apache-2.0
"""The backward step of labels and candidates, in TensorFlow's own ops alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import tensorflow as tf

from tfx_largeout.ops.candidates.candidate_arguments import CandidateArguments
from tfx_largeout.ops.rows.row_rule import RowRule
from tfx_largeout.ops.rows.row_update_composed import step_on_rows
from tfx_largeout.ops.rows.variable_rows import gather


class _Terms(NamedTuple):
    """Entries of a sparse matrix G `[N, n]` of gradients: rows are examples, columns classes."""

    examples: tf.Tensor
    classes: tf.Tensor
    values: tf.Tensor

    @classmethod
    def of(cls, ids: tf.Tensor, gradient: tf.Tensor) -> _Terms:
        """Takes the entries of `[N, n]` ids and gradients that are no padding."""
        places = tf.where(ids >= 0)
        return cls(places[:, 0], tf.gather_nd(ids, places), tf.gather_nd(gradient, places))


def candidate_update_composed(
    arguments: CandidateArguments,
    slots: tuple[Sequence[tf.Variable], Sequence[tf.Variable]],
    true_gradient: tf.Tensor,
    candidate_gradient: tf.Tensor,
    rule: RowRule,
    learning_rate: tf.Tensor,
    update: bool,
) -> tf.Tensor:
    """Same results as the custom op of `candidate_update`.

    Cost: O(N (K + S) D). Memory: O(n D) for n different classes.

    Arguments, result and errors: those of `candidate_update`.
    """
    arguments, true_gradient, candidate_gradient = arguments.checked_step(
        true_gradient, candidate_gradient, learning_rate, rule.weight_decay
    )
    gradients = _own if arguments.is_own else _shared
    ids, hidden_gradient, kernel_gradient, bias_gradient = gradients(
        arguments, true_gradient, candidate_gradient
    )
    if update:
        with tf.control_dependencies([hidden_gradient]):  # which is that of the old W
            ids = tf.identity(ids)
        step_on_rows(arguments.kernel, slots[0], ids, kernel_gradient, rule, learning_rate)
        if arguments.bias is not None:
            step_on_rows(arguments.bias, slots[1], ids, bias_gradient, rule, learning_rate)
    return tf.ensure_shape(hidden_gradient, arguments.hidden.shape)


# Each returns the touched classes [n], dL/dh, and dL/dW [n, D] and dL/db [n] at those classes.


def _own(
    arguments: CandidateArguments, true_gradient: tf.Tensor, candidate_gradient: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    labels = _Terms.of(arguments.labels, true_gradient)
    candidates = _Terms.of(arguments.candidates, candidate_gradient)
    terms = _Terms(*(tf.concat(pair, axis=0) for pair in zip(labels, candidates, strict=True)))
    ids, places = tf.unique(terms.classes, tf.int64)
    return ids, *_products(arguments, terms._replace(classes=places), ids)


def _shared(
    arguments: CandidateArguments, true_gradient: tf.Tensor, candidate_gradient: tf.Tensor
) -> tuple[tf.Tensor, ...]:
    labels = _Terms.of(arguments.labels, true_gradient)
    there = arguments.candidates >= 0
    candidates = tf.boolean_mask(arguments.candidates, there)
    gradient = tf.boolean_mask(candidate_gradient, there, axis=1)
    ids, places = tf.unique(tf.concat([labels.classes, candidates], axis=0), tf.int64)
    num_labels = tf.size(labels.classes)
    label_places, candidate_places = places[:num_labels], places[num_labels:]
    hidden_gradient, kernel_gradient, bias_gradient = _products(
        arguments, labels._replace(classes=label_places), ids
    )
    rows = tf.cast(gather(arguments.kernel, candidates), gradient.dtype)
    hidden_gradient += tf.matmul(gradient, rows)
    by_candidate = tf.matmul(gradient, arguments.hidden, transpose_a=True)
    kernel_gradient += _sum_by_place(by_candidate, candidate_places, ids)
    bias_gradient += _sum_by_place(tf.reduce_sum(gradient, axis=0), candidate_places, ids)
    return ids, hidden_gradient, kernel_gradient, bias_gradient


def _sum_by_place(values: tf.Tensor, places: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
    return tf.math.unsorted_segment_sum(values, places, tf.size(ids))


def _products(
    arguments: CandidateArguments, terms: _Terms, ids: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Returns G W, G^T H and G^T 1, where column p of G is that of class ids[p]."""
    hidden = arguments.hidden
    indices = tf.stack([terms.examples, terms.classes], axis=1)
    shape = tf.stack([tf.shape(hidden, tf.int64)[0], tf.size(ids, tf.int64)])
    sparse = {"a_indices": indices, "a_values": terms.values, "a_shape": shape}
    rows = tf.cast(gather(arguments.kernel, ids), hidden.dtype)
    hidden_gradient = tf.raw_ops.SparseTensorDenseMatMul(**sparse, b=rows)
    kernel_gradient = tf.raw_ops.SparseTensorDenseMatMul(**sparse, b=hidden, adjoint_a=True)
    bias_gradient = tf.math.unsorted_segment_sum(terms.values, terms.classes, tf.size(ids))
    return hidden_gradient, kernel_gradient, bias_gradient
