# SPDX-License-Identifier: Apache-2.0
"""Heads whose W is the table of an input embedding, which the model's optimizer trains."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import full_name, number_argument
from tfx_largeout.devices import HOST
from tfx_largeout.distribute.data_parallel import adds_up
from tfx_largeout.heads.candidate_head import CandidateHead, CandidateResiduals
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.softmax_head import SoftmaxHead
from tfx_largeout.heads.update_switch import UpdateSwitch
from tfx_largeout.indexes.base import Index
from tfx_largeout.keras_internals import (
    applying_optimizer,
    batches_applied,
    calling_model,
)
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize
from tfx_largeout.ops.candidates.candidate_gradients import (
    GradientSums,
    candidate_gradients,
    candidate_rows,
)
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.row_gradients import RowGradients
from tfx_largeout.ops.exact.soft_cap import soft_capped, soft_capped_sums
from tfx_largeout.ops.exact.softmax_gradients import softmax_gradients
from tfx_largeout.ops.rows.variable_rows import bare_variable
from tfx_largeout.samplers import Sampler
from tfx_largeout.saving import warn_of_lost_tie
from tfx_largeout.statistics import (
    CandidateStatistics,
    MeanLogitStatistics,
    only_first_derivative,
)


class TiedHead(KernelHead):
    """A head o = W h + b whose W is the table of an input embedding, as in language models.

    A class is a word, or an item, of the input, and its row of the table serves both uses. There is
    one table, with one optimizer state: the model's. The gradient of a row is the sum of two parts,
    from the lookups and from the head:

    - For a `RowOptimizer`, `FusedAdam` and Keras's SGD both parts are slices of rows. The head
      makes no tensor of the table's size.
    - For other optimizers of a compiled model, and for clipping by Keras, the head's part is `[C,
      D]`: they treat slices of the same row as separate gradients.

    `forward` is as in a self-updating head; a subclass implements `named` and, unless it trains by
    `row_gradients`, `gradients`.

    Args:
        embedding: A `keras.layers.Embedding` of C words and width D.
        use_bias, bias_initializer: As `DenseHead`.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer.
    """

    initial_log_partition: float = 0.0

    def __init__(
        self,
        embedding: keras.layers.Embedding,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        **kwargs: Any,
    ) -> None:
        if not isinstance(embedding, keras.layers.Embedding):
            raise TypeError(f"embedding must be a keras.layers.Embedding; got {embedding!r}")
        if not getattr(embedding, "tie_weights", True):
            raise ValueError(
                "embedding must have tie_weights=True, as its table is W; got tie_weights=False. "
                "For a separate W take a SampledHead or an ExactSoftmaxHead."
            )
        super().__init__(
            embedding.input_dim, use_bias=use_bias, bias_initializer=bias_initializer, **kwargs
        )
        self.embedding = embedding
        cap = getattr(embedding, "logit_soft_cap", None)
        if cap is not None:
            self.soft_cap = number_argument("logit_soft_cap of embedding", cap, above=0)
        self.update_switch = UpdateSwitch()
        self.gives_slices = True

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if input_shape[-1] not in (None, self.embedding.output_dim):
            raise ValueError(
                "the hidden activations must be as wide as the embedding, "
                f"{self.embedding.output_dim}; got width {input_shape[-1]}"
            )
        super().build(input_shape)
        self.gradient_anchor = self.add_weight(
            name="gradient_anchor",
            shape=(),
            initializer=keras.initializers.Constant(self.initial_log_partition),
            dtype="float32",
            constraint=_AfterStep(self),
        )
        with tf.device(HOST):
            self.draws = self.add_state("draws", dtype="int64")
        self._sums = GradientSums(self.kernel, self.bias)

    def call(
        self, inputs: tf.Tensor, training: bool | None = None, exclude: Any = None
    ) -> tf.Tensor:
        optimizer = getattr(calling_model(self), "optimizer", None)
        self.gives_slices = optimizer is None or adds_up(optimizer)
        warn_of_lost_tie(self, "embedding", self.embedding, training)
        return super().call(inputs, training, exclude)

    def add_kernel(self) -> None:
        """Adds nothing: W belongs to the embedding."""
        if not self.embedding.built:
            self.embedding.build()
        dtype = keras.backend.standardize_dtype(self.kernel.dtype)
        if dtype != self.variable_dtype:
            raise ValueError(
                f"the embedding must have weights of the head's dtype, {self.variable_dtype}; got "
                f"{dtype}"
            )

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`; W is the table. Counts the slices of the named rows, and the merged slices.

        For an optimizer that needs a dense gradient there is another one, of the lookups, or a copy
        of the table, from which rows are gathered. A gradient of all rows is computed in blocks
        first.
        """
        memory = super().memory_of_step(width, step, workers)
        number, table = self.num_named(step), self.weights_of(width)[0].num_bytes
        if number is None:
            return memory._replace(activations=memory.activations + 2 * table)
        if not (step.takes_slices and step.adds_up):
            return memory._replace(activations=memory.activations + table)
        slices = 8 * min(number, self.num_classes) * width
        return memory._replace(gradients=0, activations=memory.activations + slices)

    def num_named(self, step: StepSize) -> int | None:
        """Returns the largest number of rows that `named` returns; None: all."""
        raise NotImplementedError

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
        """How many forward passes there were in training."""
        return self.draws.value

    @property
    def unsaved_variables(self) -> list[tf.Variable]:
        """Variables that are not saved: they serve `without_update`, or are empty."""
        return [self.update_switch.state, *self._sums.variables]

    def without_update(self, draw: int = 0) -> contextlib.AbstractContextManager[None]:
        """As `Head`: in this context draws are not counted. See `SelfUpdatingHead`."""
        return self.update_switch.off(draw)

    def step_and_draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the seed of the present step's draws: see `seed_of_step`."""
        return self.draws.value, self.update_switch.draw

    def named(self, labels: Labels, residuals: Any) -> list[tf.Tensor] | None:
        """Returns labels and candidates as in `row_gradients`; None: all rows have a gradient."""
        raise NotImplementedError

    def gradients(
        self, hidden: tf.Tensor, labels: Labels, residuals: Any, gradients: tuple[tf.Tensor, ...]
    ) -> RowGradients:
        """Returns the gradients of h and of rows of W and b. Arguments as in a `BackwardPass`."""
        batch = self.row_gradients(hidden, labels, residuals, gradients)
        return candidate_gradients(self.kernel, self.bias, self._sums, *batch)

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind not in self.gives or not training:
            return super().statistics(kind, hidden, labels, training)
        # A forward pass has only the gradient defined below.
        given = self.forward(kind, tf.stop_gradient(hidden), labels)
        values, residuals = tf.nest.map_structure(_without_gradient, given)
        named = self.named(labels, residuals)
        rows = None if named is None else candidate_rows(named)
        with tf.control_dependencies([*values]):
            self.update_switch.either(lambda: self.count_pass(labels, rows), lambda: tf.constant(0))

        @tf.custom_gradient
        def run(hidden: tf.Tensor, anchor: tf.Tensor, *lent: tf.Tensor) -> Any:
            def backward_pass(*gradients: tf.Tensor) -> tuple[tf.Tensor, ...]:
                found = self.gradients(hidden, labels, residuals, gradients[:-1])
                of_hidden = tf.cast(found.hidden, hidden.dtype)
                of_hidden = only_first_derivative(full_name(self), of_hidden, hidden, anchor, *lent)
                of_lent = (found.kernel, found.bias)[: len(lent)]
                cast = (tf.cast(g, x.dtype) for g, x in zip(of_lent, lent, strict=True))
                return of_hidden, gradients[-1], *cast

            return (*map(tf.identity, values), tf.identity(anchor)), backward_pass

        anchor = tf.convert_to_tensor(self.gradient_anchor)
        *values, anchor = run(hidden, anchor, *self._lent(rows))
        return self.as_statistics(kind, labels, tuple(values), residuals, anchor)

    def after_step(self, optimizer: Any) -> None:
        """Called when an optimizer has taken a step, or a part of it."""
        return  # AutoGraph can't convert a method without a statement

    def count_pass(self, labels: Labels, rows: tf.Tensor) -> tf.Tensor:
        """Counts a forward pass in training, which may change these rows."""
        self.draws.value.assign_add(1)
        return tf.constant(0)

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        for name in ("num_classes", "kernel_initializer"):  # the embedding's
            del config[name]
        return config

    def _lent(self, rows: tf.Tensor | None) -> list[tf.Tensor]:
        """Returns the tensors for the gradient of W and b: rows, or all."""
        if not self.trainable:
            return []
        tables = [bare_variable(weight) for weight in self.weights_with_rows]
        if rows is None:
            self.gives_slices = False
            return [table.read_value() for table in tables]
        if self.gives_slices:  # the gather of a variable reads only these rows
            return [tf.gather(table, rows) for table in tables]
        return [tf.gather(_with_dense_gradient(table.read_value()), rows) for table in tables]


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TiedSampledHead(TiedHead, CandidateHead):
    """A `SampledHead` whose W is the table of an input embedding, as in language models.

    A class is a word of the input, and its row of the table serves both uses. As in a
    `SampledHead`, a training step computes labels and candidates, with the same losses. But here
    the model's optimizer takes the step, because the gradient of a row has two parts that must be
    added first: one from the lookups, one from labels and candidates. Both name their rows, and a
    `RowOptimizer` adds them and updates each of these rows once:

    ```python
    embedding = layers.RowEmbedding(num_words, 256)
    hidden = keras.layers.LSTM(256)(embedding(inputs))
    head = TiedSampledHead(embedding, samplers.LogUniform(1000))
    model = keras.Model(inputs, head(hidden))
    model.compile(optimizers.RowAdam(1e-3), loss=losses.SampledSoftmax())
    ```

    A `RowAdam` is Adam for all the other weights. `FusedAdam` and Keras's SGD add up the parts as
    well. For Keras's other optimizers, and where they clip gradients, the head makes the gradient
    of the whole table, O(C D) in each step. In a custom loop with a model that is not compiled they
    treat the parts of a row as several gradients, and a warning says so. A `.keras` file keeps the
    tie; `keras.models.clone_model` does not, because it clones each layer separately.

    Cost: a training step O(B (T + K + S) D) for T lookups per example, and the optimizer's step.
    Memory: O((B K + S) D) and the rows that are named.

    Args:
        embedding: A `keras.layers.Embedding` of C words and of the width D of h: best a
            `layers.RowEmbedding`, as Keras's layer makes each step O(C D). The model calls it on
            its inputs. Its table and a bias are the head's weights. With a
            `keras.layers.ReversibleEmbedding`, `logit_soft_cap` caps the logits here, too, bias
            included, and `reverse_dtype` is the dtype of the logits (statistics are float32 in any
            case); then there is no `to_dense` and no `export`.
        sampler: Draws the candidates, as in a `SampledHead`.
        use_bias, bias_initializer: As `DenseHead`.
        explicit_classes, seed, initial_log_partition: As `SampledHead`.
        index: As `SampledHead`. It follows labels and candidates of each step. Rows changed only by
            lookups, or by an optimizer that changes all rows, are updated in it when they are
            labels or candidates again (in an `InvertedMultiIndex`: in its next round).
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer. A head that is not
            `trainable` leaves W to the lookups.

    Raises:
        TypeError: `embedding`, `sampler` or `index` has another type.
        ValueError: An argument is out of range; the embedding has `tie_weights=False`. When the
            head is built, or used: h is not as wide as the embedding; the embedding has LoRA or
            quantized weights, or another dtype than the head; `index` serves another head.
        RuntimeError: The classes would be spread over several workers.

    References:
        Press, Wolf 2017, Using the output embedding to improve language models.
    """

    def __init__(
        self,
        embedding: keras.layers.Embedding,
        sampler: Sampler,
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        explicit_classes: Sequence[int] = (),
        seed: int | None = None,
        initial_log_partition: float = 0.0,
        index: Index | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embedding, use_bias=use_bias, bias_initializer=bias_initializer, **kwargs)
        self.set_sampler(sampler, explicit_classes, seed, index)
        self.initial_log_partition = number_argument("initial_log_partition", initial_log_partition)
        self._waiting = None if self.index is None else _WaitingRows(self.num_classes)

    def num_named(self, step: StepSize) -> int | None:
        number, own = self.sampler.num_candidates(step.examples)
        return step.examples * step.labels + number * (step.examples if own else 1)

    def named(self, labels: Labels, residuals: CandidateResiduals) -> list[tf.Tensor]:
        return [labels.ids, residuals.candidates.ids]

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> CandidateStatistics:
        capped = tuple(soft_capped(value, self.soft_cap) for value in values)
        return super().as_statistics(kind, labels, capped, residuals, anchor)

    @property
    def kept_variables(self) -> list[tf.Variable]:
        """The rows kept for the next step of the optimizer: state, but not weights."""
        return [] if self._waiting is None else [self._waiting.ids]

    def after_step(self, optimizer: Any) -> None:
        index, waiting = self.index, self._waiting
        if index is None or waiting is None:
            return

        def follow() -> tf.Tensor:
            index.update(self.kernel, self.bias, waiting.take())
            return tf.constant(0)

        num_parts = getattr(optimizer, "gradient_accumulation_steps", None) or 1
        is_due = tf.equal((batches_applied(optimizer) + 1) % num_parts, 0)
        tf.cond(is_due, follow, lambda: tf.constant(0))

    def count_pass(self, labels: Labels, rows: tf.Tensor) -> tf.Tensor:
        if self.index is not None and self._waiting is not None:
            self.index.note(labels)
            self._waiting.add(rows)
        return super().count_pass(labels, rows)


class _WaitingRows:
    """The rows of forward passes whose step the optimizer has not taken yet."""

    def __init__(self, num_classes: int) -> None:
        self._most = 2 * num_classes
        with tf.init_scope():
            nothing = tf.zeros([0], tf.int64)
            self.ids = tf.Variable(nothing, trainable=False, shape=[None], name="waiting_rows")

    def add(self, rows: tf.Tensor) -> None:
        """Adds rows; duplicates may stay."""
        every = tf.concat([self.ids.read_value(), rows], axis=0)
        is_long = tf.size(every) > self._most  # if no step follows
        self.ids.assign(tf.cond(is_long, lambda: tf.unique(every)[0], lambda: every))

    def take(self) -> tf.Tensor:
        """Returns the rows, and drops them."""
        rows = self.ids.read_value()
        with tf.control_dependencies([rows]):
            self.ids.assign(rows[:0])
        return rows


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TiedExactSoftmaxHead(TiedHead, SoftmaxHead):
    """An `ExactSoftmaxHead` whose W is the table of an input embedding.

    The loss equals the full softmax's, as in a Keras model that multiplies by the transposed
    table. The gradient is as in an `ExactSoftmaxHead`: unbiased and of few rows with
    `backward="selected"`, exact `[C, D]` with `"all"`. The model's optimizer takes one step with
    the sum of this gradient and of the lookups' gradient: see `TiedSampledHead`.

    ```python
    embedding = layers.RowEmbedding(num_words, 64)
    hidden = keras.layers.GRU(64)(embedding(inputs))
    model = keras.Model(inputs, TiedExactSoftmaxHead(embedding)(hidden))
    model.compile(optimizers.RowAdam(1e-3), loss=losses.SoftmaxCrossentropy())
    ```

    With `backward="all"`, or `num_selected` C, and any optimizer whose step with a dense gradient
    is Keras's (`RowSGD`, `RowAdagrad`, `RowAdam`, `FusedAdam`, and Keras's optimizers), the steps
    equal the steps of the Keras model.

    Cost: a training step 2 B C D FLOP for the pass; backward, O(B S D), or 6 B C D FLOP for all;
    and what the optimizer does. Memory: as `ExactSoftmaxHead`, and the rows that are named, or
    O(C D) for all.

    Args:
        embedding, use_bias, bias_initializer: As `TiedSampledHead`. A `logit_soft_cap` needs
            `backward="all"`.
        num_selected, backward, products, seed: As `ExactSoftmaxHead`.
        **kwargs: As `TiedSampledHead`.

    Raises:
        TypeError, ValueError, RuntimeError: As `TiedSampledHead`. ValueError: The embedding caps
            logits, without `backward="all"` or with `products="bfloat16"`.

    References:
        Press, Wolf 2017, Using the output embedding to improve language models.
    """

    def __init__(
        self,
        embedding: keras.layers.Embedding,
        num_selected: int | None = None,
        backward: str = "selected",
        products: str = "float32",
        use_bias: bool = True,
        bias_initializer: Any = "zeros",
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(embedding, use_bias=use_bias, bias_initializer=bias_initializer, **kwargs)
        self.set_softmax(num_selected, backward, products, seed)
        if self.soft_cap is not None and (backward, products) != ("all", "float32"):
            raise ValueError(
                'backward must be "all", and products "float32", where the embedding has a '
                f"logit_soft_cap; got {backward!r} and {products!r}, with "
                f"logit_soft_cap={self.soft_cap}"
            )

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        if self.soft_cap is not None:
            values = self._capped(kind, hidden, labels, self.soft_cap)
            return values, values[1]
        values, residuals = super().forward(kind, hidden, labels)
        return values, values[1] if self.backward_over == "all" else residuals

    def num_named(self, step: StepSize) -> int | None:
        number = self.num_selected
        return None if number is None else step.examples * (step.labels + number)

    def named(self, labels: Labels, residuals: Any) -> list[tf.Tensor] | None:
        return None if self.backward_over == "all" else self.names_of_rows(labels, residuals)

    def gradients(
        self, hidden: tf.Tensor, labels: Labels, residuals: Any, gradients: tuple[tf.Tensor, ...]
    ) -> RowGradients:
        if self.backward_over == "selected":
            found = super().gradients(hidden, labels, residuals, gradients)
            of_hidden = self.exact_hidden_gradient(found.hidden, residuals, gradients)
            return found._replace(hidden=of_hidden)
        target_gradient, log_z_gradient, *mean_gradient = gradients
        return softmax_gradients(
            self.kernel,
            self.bias,
            tf.cast(hidden, self.statistics_dtype),
            labels.ids,
            residuals,  # log Z
            target_gradient,
            log_z_gradient,
            *mean_gradient,
            soft_cap=self.soft_cap,
            products=self.products,
        )

    def _capped(
        self, kind: type, hidden: tf.Tensor, labels: Labels, cap: float
    ) -> tuple[tf.Tensor, ...]:
        wide, nothing = self._wide(hidden), tf.zeros([0], tf.int64)
        linear = candidate_logits(self.kernel, self.bias, wide, labels.ids, nothing).true_logits
        log_partition, mean = soft_capped_sums(wide, self.kernel, self.bias, cap)
        values = soft_capped(linear, cap), log_partition
        return (*values, mean) if kind is MeanLogitStatistics else values


class _AfterStep(keras.constraints.Constraint):
    """Tells a head that an optimizer took a step, and which one, as the step may be wrong.

    Keras calls the constraint of a weight when an optimizer has taken its step with it.
    """

    def __init__(self, head: TiedHead) -> None:
        self._head = head

    def __call__(self, value: Any) -> Any:
        optimizer = applying_optimizer()
        if optimizer is not None:
            if self._head.gives_slices and not adds_up(optimizer):
                warnings.warn(
                    f"{type(self._head).__name__} needs an optimizer that adds up the gradients of "
                    "a row before its step: a row optimizer, FusedAdam, or Keras's SGD without "
                    "clipping; others take too long steps. Compile the model that is called with "
                    f"the optimizer, which then gets what it needs. Got {type(optimizer).__name__}",
                    RuntimeWarning,
                    stacklevel=2,
                )
            self._head.after_step(optimizer)
        return tf.convert_to_tensor(value)


@tf.custom_gradient
def _with_dense_gradient(table: tf.Tensor) -> Any:
    return tf.identity(table), tf.convert_to_tensor


def _without_gradient(value: Any) -> Any:
    return value if value is None else tf.stop_gradient(value)
