# SPDX-License-Identifier: Apache-2.0
"""LSHLabel: candidates whose rows of W are near to those of the labels."""

from __future__ import annotations

import keras
import tensorflow as tf

from tfx_largeout.labels import Labels
from tfx_largeout.samplers.index_sampler import IndexSampler


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LSHLabel(IndexSampler):
    """Classes that share a bucket with a label: those that look alike to the model.

    The index is queried with the rows of W of all labels of an example. With one label y, a class c
    is found with probability 1 - (1 - p^K)^L (Theorem 1), p being that of a collision of w_y and
    w_c in one hash.

    Args, errors: as `IndexSampler`.

    References:
        Daghaghi et al. 2021, section 2, Theorem 1.
    """

    def queries(self, hidden: tf.Tensor, labels: Labels) -> tf.Tensor:
        return self.rows(tf.where(labels.mask, labels.ids, tf.constant(-1, tf.int64)))
