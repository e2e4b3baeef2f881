# SPDX-License-Identifier: Apache-2.0
"""LSHLabel: candidates whose rows of W are near to those of the labels."""

from __future__ import annotations

from typing import ClassVar

import keras
import tensorflow as tf

from tfx_largeout.labels import Labels
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather
from tfx_largeout.samplers.base import OutputWeights
from tfx_largeout.samplers.index_sampler import IndexSampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LSHLabel(IndexSampler):
    """Classes that share a bucket with a label: those that look alike to the model.

    The index is queried with the rows of W of all labels of an example. With one label y, a class c
    is found with probability 1 - (1 - p^K)^L (Theorem 1), p being that of a collision of w_y and
    w_c in one hash.

    The arguments and the errors are those of `IndexSampler`.

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
