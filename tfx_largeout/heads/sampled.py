# SPDX-License-Identifier: Apache-2.0
"""SampledHead: a dense layer that trains on candidate classes, and touches only their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.distribute.workers import require_alone
from tfx_largeout.heads.candidate_head import CandidateHead
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.row_updating import RowUpdatingHead, named_rows, refuse_built
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.exact.shared_gradient import CandidateGradients
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.samplers import Candidates, Sampler
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SampledHead(RowUpdatingHead, CandidateHead):
    """A dense layer o = W h + b whose training step looks at S candidate classes, not at all C.

    Forward, a sampler draws candidates, and the loss (an estimator of the likelihood) gets the
    logits of labels and candidates. Backward, the head updates their rows of W and b with its own
    row-sparse optimizer. Nothing in a step has a cost of O(C), but for the upkeep of an index, if
    the head has one.

    ```python
    head = SampledHead(num_classes, samplers.Unigram(counts, 1000), optimizers.RowAdam(1e-3))
    model.compile("adam", loss=losses.ComplementarySum())  # "adam" trains what lies below
    ```

    Evaluation is exact, over all classes in bounded memory.

    Cost: a training step O(B (K + S) D) time; memory: W, b and the optimizer's slots.

    Args:
        num_classes: The number of classes C, at least 2.
        sampler: Draws the candidates: `samplers.Uniform`, `LogUniform`, `Unigram`, `Bernoulli`, ...
        optimizer: A `RowOptimizer` of its own, not that of the model. `head.optimizer` has its
            learning rate and its count of steps. The rate follows the model's: see `model_rate`.
        use_bias, kernel_initializer, bias_initializer: As `DenseHead`.
        explicit_classes: Ids of classes that are candidates in every step, with expected count 1:
            those that a sum over classes takes explicitly (C_n in the paper, beyond the labels).
            Default none.
        seed: The seed of the candidates, which are a function of it and of the number of the step.
            Default None: drawn here, and kept in the configuration.
        initial_log_partition: The value from which losses that learn log Z start. Default 0.
        index: Hash tables or codes of the rows of W, which the head builds before its first draw,
            keeps up to date in each step, and saves. Samplers such as `LSHEmbedding` or `MIDX` ask
            it for candidates, and `TopK(head, k, index=head.index)` hash tables for the best
            classes; other samplers leave it alone. It serves no other head. Default None:
            `sampler.default_index()` if the sampler needs an index, else none.
        **kwargs: `model_rate`, `name`, `dtype`, `trainable`, as `SelfUpdatingHead`.

    Raises:
        TypeError: `sampler` is no sampler, `index` is no index; as `RowUpdatingHead`.
        ValueError: An argument is out of range; as `RowUpdatingHead`. When the head is built:
            `index` serves another head.
        NotImplementedError: The sampler can't use the index: see `LSHEmbedding`.
        tf.errors.InvalidArgumentError: In a training step: h or a gradient is not finite. Nothing
            is changed then, but for an index, which may have been built.

    References:
        Barber, Botev 2016, Dealing with a large number of classes.
    """

    gives: ClassVar[tuple[type, ...]] = (CandidateStatistics,)
    trainable_kernel: ClassVar[bool] = False
    spreads_classes: ClassVar[bool] = True

    def __init__(
        self,
        num_classes: int,
        sampler: Sampler,
        optimizer: RowOptimizer,
        use_bias: bool = True,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        explicit_classes: Sequence[int] = (),
        seed: int | None = None,
        initial_log_partition: float = 0.0,
        index: Index | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes,
            optimizer=optimizer,
            use_bias=use_bias,
            kernel_initializer=kernel_initializer,
            bias_initializer=bias_initializer,
            **kwargs,
        )
        self.set_sampler(sampler, explicit_classes, seed)
        self.index = _index_for(sampler, index)
        self.initial_log_partition = float(initial_log_partition)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if self.index is not None and self.index.built:
            raise ValueError(f"index must serve no other head; got {self.index!r}, which is built")
        # Whatever may be refused is, before anything is made.
        if self.sampler.looks_at_weights and not self.sampler.spreads_classes:
            require_alone(f"a head whose candidates depend on W, by {self.sampler!r},")
        if self.index is not None and not self.index.spreads_classes:
            require_alone(f"a head with an index of all classes, {self.index!r},")
        refuse_built(self.optimizer)
        if self.index is not None and input_shape[-1] is not None:
            self.index.check_shape(self.num_classes, input_shape[-1])
        self.sampler.build(self.num_classes)
        super().build(input_shape)
        self.build_optimizer([self.kernel, self.bias])
        if self.index is not None:
            self.index.spread(self.rows)
            self.index.build(tuple(self.kernel.shape))

    def step_and_draw(self) -> tuple[tf.Tensor, tf.Tensor]:
        """As `CandidateHead`."""
        return self.optimizer.iterations.value, self.draw

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        drawn = self.candidates(hidden, labels)
        ids, log_expected = self.rows.own(drawn.ids, drawn.log_expected)
        candidates = drawn._replace(ids=ids, log_expected=log_expected)
        values = candidate_logits(
            self.kernel,
            self.bias,
            tf.cast(hidden, self.statistics_dtype),
            self.rows.of(labels.ids),
            self.rows.of(ids),
        )
        true_logits = self.workers.sum(values.true_logits, f"{self.name}/true_logits")
        return (true_logits, values.candidate_logits), (candidates, values.hits)

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        (candidates, _), (true_gradient, candidate_gradient) = residuals, gradients
        rows = self.rows.of(candidates.ids)
        if candidates.ids.shape.rank == 2:  # of each example's own
            rows = named_rows(rows, candidate_gradient)
        batch = CandidateGradients(
            tf.cast(hidden, self.statistics_dtype),
            named_rows(self.rows.of(labels.ids), true_gradient),
            rows,
            true_gradient,
            candidate_gradient,
        )
        return tf.cast(self.update_rows(self.kernel, self.bias, batch, update), hidden.dtype)

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        ids = gone.residuals[0].ids
        if ids.shape.rank == 1:  # shared by this pass alone
            ids = tf.broadcast_to(ids, tf.shape(gone.gradients[1]))
        return gone.hidden, gone.labels.ids, ids, *gone.gradients

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        hidden, label_ids, ids, *gradients = parts
        labels = Labels(label_ids)
        residuals = (Candidates.certain(ids, labels), None)
        return BackwardPass(hidden, labels, residuals, tuple(gradients))

    def after_update(self, labels: Labels, residuals: Any) -> None:
        if self.index is None:
            return
        candidates, _ = residuals
        touched = [tf.reshape(ids, [-1]) for ids in (labels.ids, candidates.ids)]
        self.index.update(self.kernel, self.bias, self.rows.of(tf.concat(touched, axis=0)))
        self.index.note(labels)

    def start_from(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        super().start_from(kernel, bias)
        if self.index is not None:
            self.index.start_anew()  # built from the new W before the next draw

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> CandidateStatistics:
        true_logits, logits = values
        candidates, hits = residuals
        return CandidateStatistics(
            labels,
            true_logits,
            logits,
            candidates.ids,
            hits,
            tf.cast(candidates.true_log_expected, logits.dtype),
            tf.cast(candidates.log_expected, logits.dtype),
            tf.cast(anchor, logits.dtype),
            self.num_classes,
            self.workers,
        )

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self.index is not None:  # the head builds it when it is itself built
            config["index"].pop("build_config", None)
        return config


def _index_for(sampler: Sampler, index: Index | None) -> Index | None:
    """Returns the index of a head: that which was given, or the one that its sampler needs."""
    if index is not None and not isinstance(index, Index):
        raise TypeError(f"index must be an Index or None; got {index!r}")
    if index is None and sampler.needs_index:
        index = sampler.default_index()
    sampler.check_index(index)
    return index
