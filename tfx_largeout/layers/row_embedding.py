# SPDX-License-Identifier: Apache-2.0
"""RowEmbedding: an embedding that reads the rows of its words alone."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.keras_internals import without_autocast
from tfx_largeout.saving.array_initializer import get_initializer


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowEmbedding(keras.layers.Embedding):
    """A `keras.layers.Embedding` for tables that a `RowOptimizer` updates in place.

    Keras's own reads the table as a tensor, and TensorFlow copies it for the update of some rows
    beside that, in each step. Here the rows are gathered from the variable, and a step costs
    nothing for the others. The gradient of a call is a `tf.IndexedSlices` with one slice for each
    id, however often it is looked up.

    Cost: O(T D) for T lookups.

    Args:
        input_dim, output_dim, **kwargs: As `keras.layers.Embedding`; `embeddings_initializer` may
            be an array. With LoRA a call is Keras's.

    Call arguments:
        inputs: Ids in [0, `input_dim`), of any shape.

    Raises:
        tf.errors.InvalidArgumentError: On a CPU: an id is out of range.
    """

    def __init__(
        self,
        input_dim: int,
        output_dim: int,
        embeddings_initializer: Any = "uniform",
        **kwargs: Any,
    ) -> None:
        initializer = get_initializer(embeddings_initializer)
        super().__init__(input_dim, output_dim, embeddings_initializer=initializer, **kwargs)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The rows of the ids, in the compute dtype."""
        if self.lora_enabled:
            return super().call(inputs)
        ids: Any = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int64)
        with without_autocast():  # that of a model would cast the whole table
            # One slice an id: the optimizers of Keras take a repeated id for several gradients.
            unique_ids, places = tf.unique(tf.reshape(ids, [-1]))
            rows = tf.gather(self.embeddings.value, unique_ids)
        places = tf.ensure_shape(tf.reshape(places, tf.shape(ids)), ids.shape)
        return tf.cast(tf.gather(rows, places), self.compute_dtype)
