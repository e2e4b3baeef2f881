# SPDX-License-Identifier: Apache-2.0
"""SparseDense: a Dense layer whose cost depends on the nonzeros of its input, not on its width."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.saving.array_initializer import get_initializer


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SparseDense(keras.layers.Layer):
    """Dense for K-sparse inputs, with a gradient of the touched rows only.

    `y = activation(sum_k v_k kernel[i_k] + bias)` over the K nonzeros `(i_k, v_k)` of an example.
    The result is that of `keras.layers.Dense` on the same input made dense. The gradient of the
    kernel is a `tf.IndexedSlices` with one slice for each feature that occurs in the batch.

    Cost: O(K D) an example, forward and gradient; independent of the input width V. The optimizer
    decides about the update: the row optimizers follow the slices, `RowRMSprop` with the steps of
    Adam without momentum. Keras's Adam moves all V rows, which may take longer than all the rest
    of a step; `FusedAdam` does the same in less time. A regularizer or constraint on the kernel
    costs O(V D).

    Args:
        units: Number of outputs, D.
        activation: As in `keras.layers.Dense`. Default: none.
        use_bias: Whether to add a bias.
        kernel_initializer: Initializer of `kernel [V, D]`.
        bias_initializer: Initializer of `bias [D]`.
        kernel_regularizer: Regularizer of the kernel.
        bias_regularizer: Regularizer of the bias.
        activity_regularizer: Regularizer of the output.
        kernel_constraint: Constraint of the kernel.
        bias_constraint: Constraint of the bias.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Call arguments:
        inputs: A `tf.SparseTensor [B, V]` of any numeric dtype, with its entries in any order;
            entries at the same place add up. In a functional model it comes from
            `keras.Input([V], sparse=True)`. A dense tensor `[..., V]` gives the same by a matrix
            product.

    Returns:
        `[B, D]`, or `[..., D]`, in the layer's compute dtype. An example without nonzeros gives
        `activation(bias)`. Sums over nonzeros are made in float32 (float64 where the kernel is
        float64) and then cast. (Under a mixed policy a `Sequential` model rounds the values of
        its input before any layer sees them; a functional model does not.)

    Raises:
        ValueError: `units` is not a positive integer, the width of the input is unknown or not
            that of the kernel, or a sparse input is not a matrix.

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
        kernel_regularizer: Any = None,
        bias_regularizer: Any = None,
        activity_regularizer: Any = None,
        kernel_constraint: Any = None,
        bias_constraint: Any = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(activity_regularizer=activity_regularizer, autocast=False, **kwargs)
        self.units = integer_argument("units", units, at_least=1)
        self.activation = keras.activations.get(activation)
        self.use_bias = use_bias
        self.kernel_initializer = get_initializer(kernel_initializer)
        self.bias_initializer = get_initializer(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.input_spec = keras.layers.InputSpec(min_ndim=2)
        self.supports_masking = True
        self.supports_jit = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        """Creates the weights for inputs of the given shape."""
        width = input_shape[-1]
        if width is None:
            raise ValueError(f"inputs must have a known width V; got the shape {input_shape}")
        self.kernel = self.add_weight(
            name="kernel",
            shape=(width, self.units),
            initializer=self.kernel_initializer,
            regularizer=self.kernel_regularizer,
            constraint=self.kernel_constraint,
            autocast=False,  # a cast of the whole kernel would cost O(V D) a step
        )
        self.bias = None
        if self.use_bias:
            self.bias = self.add_weight(
                name="bias",
                shape=(self.units,),
                initializer=self.bias_initializer,
                regularizer=self.bias_regularizer,
                constraint=self.bias_constraint,
            )
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: width})

    def call(self, inputs: tf.SparseTensor | tf.Tensor) -> tf.Tensor:
        """The outputs for a batch."""
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
        dtype = tf.float64 if self.kernel.dtype == "float64" else tf.float32
        rows, ids = tf.unstack(inputs.indices, axis=1)
        # One slice an id: the optimizers of Keras take a repeated id for several small gradients.
        unique_ids, places = tf.unique(ids, out_idx=tf.int64)
        # Gather from the tf.Variable, not from its value: only rows that are needed are read.
        kernel_rows = tf.cast(tf.gather(self.kernel.value, unique_ids), dtype)
        compact = tf.SparseTensor(
            tf.stack([rows, places], axis=1),
            tf.cast(inputs.values, dtype),
            tf.stack([inputs.dense_shape[0], tf.size(unique_ids, tf.int64)]),
        )
        outputs = tf.sparse.sparse_dense_matmul(compact, kernel_rows)
        return tf.ensure_shape(outputs, [inputs.shape[0], self.units])

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        """`[..., D]` for `[..., V]`."""
        return (*input_shape[:-1], self.units)

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments."""
        config = super().get_config()
        config.update(
            units=self.units,
            activation=keras.activations.serialize(self.activation),
            use_bias=self.use_bias,
            kernel_initializer=keras.initializers.serialize(self.kernel_initializer),
            bias_initializer=keras.initializers.serialize(self.bias_initializer),
            kernel_regularizer=keras.regularizers.serialize(self.kernel_regularizer),
            bias_regularizer=keras.regularizers.serialize(self.bias_regularizer),
            activity_regularizer=keras.regularizers.serialize(self.activity_regularizer),
            kernel_constraint=keras.constraints.serialize(self.kernel_constraint),
            bias_constraint=keras.constraints.serialize(self.bias_constraint),
        )
        return config
