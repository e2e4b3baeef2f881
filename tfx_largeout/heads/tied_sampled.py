# SPDX-License-Identifier: Apache-2.0
"""TiedSampledHead: trains on candidate classes, with the table of an input embedding for its W."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.heads.candidate_head import CandidateHead
from tfx_largeout.heads.update_switch import UpdateSwitch
from tfx_largeout.keras_internals import applying_optimizer
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import hits_of
from tfx_largeout.ops.exact.soft_cap import soft_capped
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.optimizers import FusedAdam
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.samplers import Sampler
from tfx_largeout.statistics import CandidateStatistics

_ADDING_UP = (RowOptimizer, FusedAdam, keras.optimizers.SGD)  # the gradients of a row


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TiedSampledHead(CandidateHead):
    """A dense layer o = W h + b whose W is the table of an input embedding, as in language models.

    A class is a word of the input, and its row of the table serves both uses. As in a
    `SampledHead`, a training step looks at labels and candidates, and any of its losses will do.
    But here the model's optimizer takes the step, since the gradient of a row has two parts that
    must be added up first: that of the lookups, and that of labels and candidates. Both name their
    rows, and a `RowOptimizer` merges them and updates each of these rows once:

    ```python
    embedding = layers.RowEmbedding(num_words, 256)
    hidden = keras.layers.LSTM(256)(embedding(inputs))
    head = TiedSampledHead(embedding, samplers.LogUniform(1000))
    model = keras.Model(inputs, head(hidden))
    model.compile(optimizers.RowAdam(1e-3), loss=losses.SampledSoftmax())
    ```

    A `RowAdam` is Adam for all the other weights. `FusedAdam` and Keras's SGD add up the parts as
    well. Keras's other optimizers do not: they take a row that is named twice for one with two
    small gradients, square each, and their steps are too long; training with one warns. A file of
    the model keeps the tie; `keras.models.clone_model` does not, as it clones each layer by itself.

    Cost: a training step O(B (T + K + S) D) for T lookups an example, and what the optimizer does.
    Memory: O((B K + S) D), or O(B S D) for candidates of each example's own.

    Args:
        embedding: A `keras.layers.Embedding` of C words and width D, that of h: best a
            `layers.RowEmbedding`, as Keras's own makes each step O(C D). The model calls it on its
            inputs. Its table and a bias are the head's weights. Of a
            `keras.layers.ReversibleEmbedding`, `logit_soft_cap` caps the logits here, too, bias
            included, and `reverse_dtype` is that of the logits (statistics are float32 in any
            case); then there is no `to_dense` and no `export`.
        sampler: Draws the candidates, as in a `SampledHead`. None that needs an index: tables over
            the rows can't follow an optimizer that is not the head's.
        use_bias, bias_initializer: As `DenseHead`.
        explicit_classes, seed, initial_log_partition: As `SampledHead`.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer. A head that is not
            `trainable` leaves W to the lookups.

    Raises:
        TypeError: `embedding` is no Embedding, `sampler` is no sampler.
        ValueError: An argument is out of range; the sampler needs an index; the embedding has
            `tie_weights=False`. When the head is built, or used: h is not as wide as the embedding,
            that has LoRA or quantized weights, or weights of another dtype than the head.
        RuntimeError: The classes would be spread over several workers.

    References:
        Press, Wolf 2017, Using the output embedding to improve language models.
    """

    gives: ClassVar[tuple[type, ...]] = (CandidateStatistics,)

    def __init__(
        self,
        embedding: keras.layers.Embedding,
        sampler: Sampler,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        explicit_classes: Sequence[int] = (),
        seed: int | None = None,
        initial_log_partition: float = 0.0,
        **kwargs: Any,
    ) -> None:
        if not isinstance(embedding, keras.layers.Embedding):
            raise TypeError(f"embedding must be a keras.layers.Embedding; got {embedding!r}")
        if not getattr(embedding, "tie_weights", True):
            raise ValueError(
                "embedding must have tie_weights=True, as its table is W; got tie_weights=False. "
                "For a W of its own take a SampledHead."
            )
        super().__init__(
            embedding.input_dim, use_bias=use_bias, bias_initializer=bias_initializer, **kwargs
        )
        self.set_sampler(sampler, explicit_classes, seed)
        if sampler.needs_index:
            raise ValueError(f"sampler must need no index; got {sampler!r}, which does")
        self.embedding = embedding
        cap = getattr(embedding, "logit_soft_cap", None)
        if cap is not None:
            self.soft_cap = number_argument("logit_soft_cap of embedding", cap, above=0)
        self.initial_log_partition = float(initial_log_partition)
        self.update_switch = UpdateSwitch()

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if input_shape[-1] != self.embedding.output_dim:
            raise ValueError(
                "the hidden activations must be as wide as the embedding, "
                f"{self.embedding.output_dim}; got width {input_shape[-1]}"
            )
        self.sampler.build(self.num_classes)
        super().build(input_shape)
        self.log_partition = self.add_weight(
            name="log_partition",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_log_partition),
            dtype="float32",
            constraint=_AddsUp(),
        )
        self.draws = self.add_state("draws", dtype="int64")

    def add_kernel(self) -> None:
        """Adds nothing: W is that of the embedding."""
        if not self.embedding.built:
            self.embedding.build()
        dtype = keras.backend.standardize_dtype(self.kernel.dtype)
        if dtype != self.variable_dtype:
            raise ValueError(
                f"the embedding must have weights of the head's dtype, {self.variable_dtype}; got "
                f"{dtype}"
            )

    @property
    def kernel(self) -> Any:
        """W `[C, D]`: the table of the embedding."""
        if self.embedding.lora_enabled or self.embedding.quantization_mode is not None:
            raise ValueError(
                "embedding must have one table of floats; got one with LoRA or quantized weights, "
                f"{self.embedding!r}"
            )
        return self.embedding.embeddings

    @property
    def logits_dtype(self) -> str:
        """As `Head`: `reverse_dtype`, if the embedding has one."""
        own = getattr(self.embedding, "reverse_dtype", None)
        return self.compute_dtype if own is None else keras.backend.standardize_dtype(own)

    @property
    def step_number(self) -> Any:
        """How many batches of candidates have been drawn."""
        return self.draws.value

    @property
    def unsaved_variables(self) -> list[tf.Variable]:
        """Variables that need no saving: they bear on `without_update`."""
        return [self.update_switch.state]

    def without_update(self, draw: int = 0) -> contextlib.AbstractContextManager[None]:
        """As `Head`: in this context draws are not counted. See `SelfUpdatingHead`."""
        return self.update_switch.off(draw)

    def step_and_draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """As `CandidateHead`."""
        return self.draws.value, self.update_switch.draw

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind is not CandidateStatistics or not training:
            return super().statistics(kind, hidden, labels, training)
        drawn = self.candidates(hidden, labels)
        with tf.control_dependencies([drawn.ids]):
            self.update_switch.either(self._count, lambda: tf.constant(0))
        wide = tf.cast(hidden, self.statistics_dtype)
        there = drawn.ids >= 0
        logits = tf.where(there, self._logits_at(wide, tf.maximum(drawn.ids, 0)), 0)
        targets = tf.where(labels.mask, self._logits_at(wide, labels.safe_ids), 0)
        anchor = tf.cast(tf.convert_to_tensor(self.log_partition), wide.dtype)
        return CandidateStatistics(
            labels,
            targets + 0 * anchor,  # so that it has a gradient with losses that leave it alone
            logits,
            drawn.ids,
            hits_of(labels.ids, drawn.ids, tf.shape(logits)),
            # A choice has no gradient, even where a sampler looks at h and W.
            tf.stop_gradient(tf.cast(drawn.true_log_expected, wide.dtype)),
            tf.stop_gradient(tf.cast(drawn.log_expected, wide.dtype)),
            anchor,
            self.num_classes,
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in ("num_classes", "kernel_initializer"):  # those of the embedding
            del config[name]
        return config

    def _count(self) -> tf.Tensor:
        self.draws.value.assign_add(1)
        return tf.constant(0)

    def _logits_at(self, hidden: tf.Tensor, ids: tf.Tensor) -> tf.Tensor:
        """Returns o at `ids` `[S]` or `[N, n]`; their rows alone get a gradient."""
        rows = self._rows_at(self.kernel, ids)
        if ids.shape.rank == 1:
            logits = tf.matmul(hidden, rows, transpose_b=True)
        else:
            logits = tf.linalg.matvec(rows, hidden)
        if self.bias is not None:
            logits += self._rows_at(self.bias, ids)
        return soft_capped(logits, self.soft_cap)

    def _rows_at(self, weight: Any, ids: tf.Tensor) -> tf.Tensor:
        # A gather from the variable itself: its value is never read as a whole.
        rows = tf.gather(bare_variable(weight), ids)
        rows = rows if self.trainable else tf.stop_gradient(rows)
        return tf.cast(rows, self.statistics_dtype)


class _AddsUp(keras.constraints.Constraint):
    """Warns of an optimizer that takes the parts of a row for several gradients.

    Keras calls the constraint of a weight when an optimizer has taken its step with it.
    """

    def __call__(self, value: Any) -> Any:
        optimizer = applying_optimizer()
        if optimizer is not None and not isinstance(optimizer, _ADDING_UP):
            warnings.warn(
                "a TiedSampledHead needs an optimizer that adds up the gradients of a row before "
                "its step: a row optimizer, FusedAdam, or Keras's SGD; Keras's others take too "
                f"long steps. Got {type(optimizer).__name__}",
                RuntimeWarning,
                stacklevel=2,
            )
        return tf.convert_to_tensor(value)
