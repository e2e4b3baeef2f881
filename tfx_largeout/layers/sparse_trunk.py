# SPDX-License-Identifier: Apache-2.0
"""Layers whose cost depends on the entries of their input, not on its width."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import flag_argument, full_name, integer_argument
from tfx_largeout.keras_internals import without_autocast
from tfx_largeout.memory import Weight, refuse_what_is_too_large
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.saving import get_initializer


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SparseDense(keras.layers.Dense):
    """Dense for sparse inputs, with a gradient of the used rows only.

    `y = activation(sum_k v_k kernel[i_k] + bias)` over the n nonzeros `(i_k, v_k)` of an example.
    The result equals `keras.layers.Dense` on the same input made dense. The gradient of the
    kernel is a `tf.IndexedSlices` with one slice for each feature that occurs in the batch.

    Cost: O(n D) per example, forward and gradient; independent of the input width V. The cost of
    the update depends on the optimizer: row optimizers update only the rows of the slices,
    `RowRMSprop` with the steps of Adam without momentum. Keras's Adam updates all V rows, which may
    take longer than the rest of a step; `FusedAdam` does the same faster. A regularizer or
    constraint on the kernel costs O(V D).

    Args:
        units, activation, use_bias, kernel_initializer, bias_initializer, **kwargs: As
            `keras.layers.Dense`; the initializers may be arrays. With LoRA, Keras's call is used.

    Call arguments:
        inputs: A `tf.SparseTensor [B, V]` of any numeric dtype, with its entries in any order;
            entries at the same position are summed. In a functional model it comes from
            `keras.Input([V], sparse=True)`. A dense tensor `[..., V]` gives the same result by a
            matrix product.

    Returns:
        `[B, D]`, or `[..., D]`, in the layer's compute dtype. An example without nonzeros gives
        `activation(bias)`. Sums over nonzeros are computed in float32 (float64 where the kernel is
        float64) and then cast. (Under a mixed policy a `Sequential` model rounds the values of its
        input before any layer sees them; a functional model does not.)

    Raises:
        ValueError: `units` is not a positive integer, the width of the input is unknown or differs
            from the kernel's, or a sparse input is not a matrix.
        tf.errors.InvalidArgumentError: A wrong width is known only when the graph runs.

    References:
        Vincent, de Brébisson, Bouthillier 2015, section 2.2.
    """

    def __init__(
        self,
        units: int,
        activation: Any = None,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        *others: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            integer_argument("units", units, at_least=1),
            activation,
            flag_argument("use_bias", use_bias),
            get_initializer(kernel_initializer),
            get_initializer(bias_initializer),
            *others,
            autocast=False,
            **kwargs,
        )
        self.supports_jit = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the weights for inputs of the given shape."""
        if input_shape[-1] is None:
            raise ValueError(f"inputs must have a known width V; got the shape {input_shape}")
        _check_room(self, (input_shape[-1], self.units))
        super().build(input_shape)

    def call(self, inputs: tf.SparseTensor | tf.Tensor) -> tf.Tensor:
        """The outputs for a batch."""
        if self.lora_enabled:
            return super().call(inputs)
        if isinstance(inputs, tf.SparseTensor):
            outputs = self._sparse_product(inputs)
        else:
            kernel = tf.cast(self.kernel, self.compute_dtype)
            outputs = keras.ops.matmul(tf.cast(inputs, self.compute_dtype), kernel)
        if self.bias is not None:
            outputs += tf.cast(self.bias, outputs.dtype)
        return self.activation(tf.cast(outputs, self.compute_dtype))

    def _sparse_product(self, inputs: tf.SparseTensor) -> tf.Tensor:
        if inputs.shape.rank != 2:
            raise ValueError(f"a sparse input must be a matrix; got the shape {inputs.shape}")
        width = self.kernel.shape[0]
        rule = f"inputs must have {width} columns, as the kernel has rows; got"
        if inputs.shape[1] not in (None, width):
            raise ValueError(f"{rule} {inputs.shape[1]}")
        columns = inputs.dense_shape[1]
        known = inputs.shape[1] is not None
        with after([None if known else Check(tf.equal(columns, width), lambda: [rule, columns])]):
            rows, ids = tf.unstack(inputs.indices, axis=1)
        kernel_rows, places = _rows_of(self.kernel, ids, tf.int64)
        dtype = tf.float64 if self.variable_dtype == "float64" else tf.float32
        compact = tf.SparseTensor(
            tf.stack([rows, places], axis=1),
            tf.cast(inputs.values, dtype),
            tf.stack([inputs.dense_shape[0], tf.shape(kernel_rows, tf.int64)[0]]),
        )
        outputs = tf.sparse.sparse_dense_matmul(compact, tf.cast(kernel_rows, dtype))
        return tf.ensure_shape(outputs, [inputs.shape[0], self.units])


@keras.saving.register_keras_serializable(package="tfx_largeout")
class RowEmbedding(keras.layers.Embedding):
    """A `keras.layers.Embedding` for tables that a `RowOptimizer` updates in place.

    Keras's layer reads the table as a tensor, so that TensorFlow copies it in each step. Here rows
    are gathered from the variable, and other rows cost nothing. The gradient of a call is a
    `tf.IndexedSlices` with one slice per distinct id.

    Cost: O(T D) for T lookups.

    Args:
        input_dim, output_dim, **kwargs: As `keras.layers.Embedding`; `embeddings_initializer` may
            be an array. With LoRA, Keras's call is used.

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

    def build(self, input_shape: Any = None) -> None:
        """Creates the table."""
        _check_room(self, (self.input_dim, self.output_dim))
        super().build(input_shape)

    def call(self, inputs: tf.Tensor) -> tf.Tensor:
        """The rows of the ids, in the compute dtype."""
        if self.lora_enabled:
            return super().call(inputs)
        ids: Any = inputs if inputs.dtype in (tf.int32, tf.int64) else tf.cast(inputs, tf.int64)
        rows, places = _rows_of(self.embeddings, tf.reshape(ids, [-1]))
        places = tf.ensure_shape(tf.reshape(places, tf.shape(ids)), ids.shape)
        return tf.cast(tf.gather(rows, places), self.compute_dtype)


def _check_room(layer: keras.layers.Layer, shape: tuple[int, int]) -> None:
    """Raises an error for a table that does not fit into memory, before it is created."""
    owner = full_name(layer)
    smaller = ["dtype='bfloat16'", "fewer rows, as of ids that are hashed", "a lesser width"]
    refuse_what_is_too_large(owner, [Weight(shape, layer.variable_dtype)], lambda _: smaller)


def _rows_of(
    table: keras.Variable, ids: tf.Tensor, index_dtype: Any = tf.int32
) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns the distinct rows of ids `[n]`, and the position of each id in them."""
    # One slice per id: Keras's optimizers treat repeated ids as separate small gradients.
    unique_ids, places = tf.unique(ids, out_idx=index_dtype)
    with without_autocast():  # the model's autocast would cast the whole table
        # Gather from the tf.Variable, not from its value, to read only the needed rows.
        return tf.gather(table.value, unique_ids), places
