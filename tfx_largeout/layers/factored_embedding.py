# SPDX-License-Identifier: Apache-2.0
"""FactoredEmbedding: looks up rows of the W of a FactoredHead, which trains them in its step."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import flag_argument, full_name, integer_argument
from tfx_largeout.heads.factored import FactoredHead
from tfx_largeout.saving import shared_config, warn_of_lost_tie, with_objects
from tfx_largeout.tensorflow_internals import tape_may_record


@keras.saving.register_keras_serializable(package="tfx_largeout")
class FactoredEmbedding(keras.layers.Layer):
    """An input embedding whose table is the W of a `FactoredHead`, as in language models.

    The head stores W = V U + 1 w^T; there is no other copy. A lookup returns rows of W. With U_i
    the gradient of the loss with respect to the looked up row i, the head takes one exact step with
    the sum:

        W <- (1 - eta lambda) W - eta (dL/dW + sum_i e_i U_i^T)

    Each e_i U_i^T is the gradient of an example with the hidden activations U_i, the label i, and
    its target logit as the loss, which fits the head's exact SGD step. So a step subtracts
    eta U_i U^-1 from V[i] and updates Q and W^T 1, O(D^2) per lookup.

    ```python
    head = heads.FactoredHead(num_words, 0.1)
    hidden = keras.layers.LSTM(64)(layers.FactoredEmbedding(head, 64)(inputs))
    model = keras.Model(inputs, head(hidden))
    model.compile("sgd", loss=losses.TaylorSoftmax())
    ```

    The head's learning rate also applies to the lookups. If the head is not `trainable`, W does not
    change; if the layer is not `trainable`, the gradient of its lookups is left out.

    Cost: O(T D^2) for T lookups, forward and in the step.

    Args:
        head: The `FactoredHead` of the model, with C words.
        output_dim: D, the width of the head's hidden activations.
        mask_zero: Whether the id 0 is padding, as in `keras.layers.Embedding`. Default False.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.

    Call arguments:
        inputs: Ids in [0, C), of any shape.

    Raises:
        TypeError: `head` is not a `FactoredHead`.
        ValueError: `output_dim` is not a positive integer; when the layer is built: the head was
            built for another width.
        RuntimeError: When the layer is built: the classes are spread over several workers.
        tf.errors.InvalidArgumentError: On a CPU: an id is out of range.

    References:
        Vincent, de Brébisson, Bouthillier 2015, section 2.2; Press, Wolf 2017.
    """

    def __init__(
        self, head: FactoredHead, output_dim: int, mask_zero: bool = False, **kwargs: Any
    ) -> None:
        # The table may have a wider dtype than the compute dtype; only looked up rows are cast.
        super().__init__(autocast=False, **kwargs)
        if not isinstance(head, FactoredHead):
            raise TypeError(f"head must be a FactoredHead; got {head!r}")
        self.head = head
        self.output_dim = integer_argument("output_dim", output_dim, at_least=1)
        self.mask_zero = flag_argument("mask_zero", mask_zero)
        self.supports_masking = self.mask_zero
        self.supports_jit = False

    def build(self, input_shape: Any = None) -> None:
        if not self.head.built:
            self.head.build((None, self.output_dim))
        if self.head.width != self.output_dim:
            raise ValueError(
                f"output_dim must be the width of the head, {self.head.width}; got "
                f"{self.output_dim}"
            )
        self.head.workers.refuse_several(
            f"{full_name(self)} must be built in a single process; got a head whose classes are "
            f"spread over {self.head.workers.size} workers"
        )

    def call(self, inputs: tf.Tensor, training: bool | None = None) -> tf.Tensor:
        """The rows of the ids, in the compute dtype."""
        warn_of_lost_tie(self, "head", self.head, training)
        if training is None:
            training = tape_may_record()
        ids = tf.reshape(tf.cast(inputs, tf.int64), [-1])
        rows = self.head.look_up(ids, self.compute_dtype, training and self.trainable)
        shape = tf.concat([tf.shape(inputs), [self.output_dim]], axis=0)
        static = inputs.shape.concatenate(self.output_dim)
        return tf.ensure_shape(tf.reshape(rows, shape), static)

    def compute_mask(self, inputs: Any, mask: Any = None) -> Any:
        """True where the id is not 0, with `mask_zero`."""
        return keras.ops.not_equal(inputs, 0) if self.mask_zero else None

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape, self.output_dim)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "head": shared_config(self.head),
            "output_dim": self.output_dim,
            "mask_zero": self.mask_zero,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> FactoredEmbedding:
        return cls(**with_objects(config))
