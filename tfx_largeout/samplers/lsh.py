# SPDX-License-Identifier: Apache-2.0
"""LSH: candidates whose rows of W are near h, or near the rows of the labels."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import flag_argument
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather
from tfx_largeout.samplers.base import Candidates, OutputWeights
from tfx_largeout.samplers.index_sampler import IndexSampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LSHEmbedding(IndexSampler):
    """Classes that share a bucket with h, which the model may confuse with the labels.

    A class c is found in one of the L tables with probability 1 - (1 - p^H)^L (Theorem 2), where p
    is the probability that one hash function gives h and w_c, as the index hashes them, the same
    value; H is `hashes_per_table`, L `num_tables`. So the candidates change with W and with the
    input.

    With `ActiveSetSoftmax` and no `background`, training is as in the paper. With `corrected`,
    losses get the probability above instead of an expected count of 1, and a corrected loss
    (`ComplementarySum`, `SampledSoftmax`) has an unbiased estimate of Z over the choice of hash
    functions. This needs `SimHash`, candidates per example, no background, and a `num_found` large
    enough for all classes in the buckets: if S or a bucket's limit drops some, the probability is
    too large. The tables may be older than W, by their period. The main cost is the
    candidates' logits.

    Args:
        num_found, background, per_example: As `IndexSampler`.
        corrected: Whether losses get the probability of being found. Default False.

    Raises:
        TypeError: As `IndexSampler`.
        ValueError: As `IndexSampler`; `corrected` with shared candidates, or with a background.
        NotImplementedError: When the head is created: `corrected`, and p has no closed form for the
            hash family of the head's index.

    References:
        Daghaghi et al. 2021, section 2, Theorem 2.
    """

    spreads_classes: ClassVar[bool] = True

    def __init__(self, num_found: int, *args: Any, corrected: bool = False, **kwargs: Any) -> None:
        super().__init__(num_found, *args, **kwargs)
        self.corrected = flag_argument("corrected", corrected)
        if self.corrected and (not self.per_example or self.background is not None):
            raise ValueError(
                "corrected must go with per_example=True and background=None: the probability of "
                f"other candidates is not known; got per_example={self.per_example}, "
                f"background={self.background!r}"
            )

    def check_index(self, index: Index | None) -> None:
        super().check_index(index)
        if self.corrected and isinstance(index, HashIndex):
            index.family.collision_probability(tf.constant(0.0))

    def queries(self, hidden: tf.Tensor, labels: Labels, weights: OutputWeights) -> tf.Tensor:
        return hidden

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        drawn = super().draw(hidden, labels, seed, weights)
        if not self.corrected:
            return drawn
        dtype = "float64" if weights.kernel.dtype == "float64" else "float32"
        hidden = tf.cast(hidden, dtype)
        bias = weights.bias if weights.index.similarity == "inner_product" else None
        of_labels, of_drawn = weights.rows.of(labels.ids), weights.rows.of(drawn.ids)
        values = candidate_logits(weights.kernel, bias, hidden, of_labels, of_drawn)
        true_log_expected = _log_found(weights, hidden, of_labels, values.true_logits)
        return drawn._replace(
            log_expected=_log_found(weights, hidden, of_drawn, values.candidate_logits),
            true_log_expected=weights.rows.of_owners(labels.ids, true_log_expected, "log_found"),
        )


def _log_found(
    weights: OutputWeights, hidden: tf.Tensor, places: tf.Tensor, products: tf.Tensor
) -> tf.Tensor:
    """Returns log(1 - (1 - p^H)^L) for the classes of given rows; 0 at padding (-1)."""
    index: HashIndex = weights.index
    unique, which = tf.unique(tf.reshape(places, [-1]))
    rows, _ = index.hashed_rows(weights.kernel, weights.bias).get(tf.maximum(unique, 0))
    norms = tf.reshape(tf.gather(tf.norm(rows, axis=1), which), tf.shape(places))
    squares = tf.reduce_sum(tf.cast(hidden, tf.float32) ** 2, axis=1, keepdims=True)
    if index.similarity == "inner_product":
        squares += 1  # the square of the 1 in the query vector (h, 1, 0)
    cosine = tf.math.divide_no_nan(tf.cast(products, tf.float32), norms * tf.sqrt(squares))
    in_table = index.family.collision_probability(cosine) ** index.hashes_per_table
    missed = index.num_tables * tf.math.log1p(-tf.minimum(in_table, 1 - 1e-7))
    # The log of at least 1e-30 is finite, even for a very unlikely class.
    found = tf.math.log(tf.maximum(-tf.math.expm1(missed), 1e-30))
    return tf.where(places < 0, 0.0, found)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LSHLabel(IndexSampler):
    """Classes that share a bucket with a label: they look alike to the model.

    The index is queried with the rows of W of all labels of an example. With one label y, a class c
    is found with probability 1 - (1 - p^H)^L (Theorem 1), where p is the probability that one hash
    function gives w_y and w_c the same value.

    Arguments and errors: as `IndexSampler`.

    References:
        Daghaghi et al. 2021, section 2, Theorem 1.
    """

    spreads_classes: ClassVar[bool] = True

    def queries(self, hidden: tf.Tensor, labels: Labels, weights: OutputWeights) -> tf.Tensor:
        ids = tf.where(labels.mask, labels.ids, tf.constant(-1, tf.int64))
        places = weights.rows.of(ids)
        rows = gather(bare_variable(weights.kernel), tf.maximum(places, 0))
        rows = tf.where(places[..., tf.newaxis] < 0, 0.0, tf.cast(rows, tf.float32))
        return weights.rows.of_owners(ids, rows, "rows_of_labels")
