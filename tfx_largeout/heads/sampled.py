# SPDX-License-Identifier: Apache-2.0
"""SampledHead: a dense layer that trains on candidate classes, and touches only their rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.heads.candidate_head import CandidateHead, CandidateResiduals
from tfx_largeout.heads.cosine_logits import CosineLogits
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.row_updating import RowUpdatingHead
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.samplers import Candidates, Sampler
from tfx_largeout.statistics import CandidateStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SampledHead(RowUpdatingHead, CandidateHead, CosineLogits):
    """A dense layer o = W h + b whose training step computes S candidate classes, not all C.

    For sampled softmax and similar losses. Forward, a sampler draws candidates, and the loss (an
    estimator of the likelihood) gets the logits of labels and candidates. Backward, the head
    updates their rows of W and b with a separate row optimizer. No part of a step costs O(C),
    except for the upkeep of an index, if the head has one.

    ```python
    head = SampledHead(num_classes, samplers.Unigram(counts, 1000), optimizers.RowAdam(1e-3))
    model.compile("adam", loss=losses.ComplementarySum())  # "adam" trains the hidden layers
    ```

    Evaluation is exact, over all classes in bounded memory.

    Cost: a training step O(B (K + S) D) time; memory: W, b and the optimizer's slots.

    Args:
        num_classes: The number of classes C, at least 2.
        sampler: Draws the candidates: `samplers.Uniform`, `LogUniform`, `Unigram`, `Bernoulli`, ...
        optimizer: A `RowOptimizer` for this head alone; the model has another optimizer.
            `head.optimizer` has its learning rate and its count of steps. The rate follows the rate
            of the model's optimizer: see `model_rate`.
        use_bias, kernel_initializer, bias_initializer, cosine_scale, learn_scale: As `DenseHead`.
        explicit_classes: Ids of classes that are candidates in every step, with an expected count
            of 1 (C_n in the paper, without the labels). Default none.
        seed: The seed of the candidates, which depend on it and on the number of the step. Default
            None: drawn at construction, and kept in the configuration.
        initial_log_partition: The initial value for losses that learn log Z. Default 0.
        index: Hash tables or codes of the rows of W, which the head builds before its first draw,
            keeps up to date in each step, and saves. Samplers such as `LSHEmbedding` or `MIDX` ask
            it for candidates, and `TopK(head, k, index=head.index)` asks hash tables for the best
            classes; other samplers do not use it. It serves no other head. Default None:
            `sampler.default_index()` if the sampler needs an index, else none.
        **kwargs: `model_rate`, `device`, `name`, `dtype`, `trainable`, as `SelfUpdatingHead`.

    Raises:
        TypeError: `sampler` is not a sampler, `index` is not an index; as `RowUpdatingHead`.
        ValueError: An argument is out of range; as `RowUpdatingHead`. When the head is built:
            `index` serves another head.
        NotImplementedError: The sampler can't use the index: see `LSHEmbedding`.
        tf.errors.InvalidArgumentError: In a training step: h or a gradient is not finite. Nothing
            is changed then, except for an index, which may have been built.

    References:
        Barber, Botev 2016, Dealing with a large number of classes.
    """

    trainable_kernel: ClassVar[bool] = False
    spreads_classes: ClassVar[bool] = True
    has_replicas: ClassVar[bool] = True

    def __init__(
        self,
        num_classes: int,
        sampler: Sampler,
        optimizer: RowOptimizer,
        use_bias: bool | None = None,
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
        self.set_sampler(sampler, explicit_classes, seed, index)
        self.initial_log_partition = number_argument("initial_log_partition", initial_log_partition)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.build_optimizer([self.kernel, self.bias])
        self.replicate()

    def as_statistics(self, *arguments: Any) -> CandidateStatistics:
        scale = None if self.scale is None else self.workers.by_group(self.scale)
        return super().as_statistics(*arguments)._replace(scale=scale)

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        of_rows = self._step(BackwardPass(hidden, labels, residuals, gradients), update)
        return tf.cast(of_rows, hidden.dtype)

    def update_weights(self, *gone: Any) -> tf.Tensor:
        return self._step(BackwardPass(*gone), True, gradient=False)

    def _step(self, gone: BackwardPass, update: bool, gradient: bool = True) -> tf.Tensor:
        batch = self.row_gradients(*gone).without_zeros()
        return self.update_rows(self.kernel, self.bias, batch, update, gradient)

    def steps_apart(self, residuals: CandidateResiduals) -> bool:
        # With separate candidates, and with replicas, both go over the same entries.
        are_shared = residuals.candidates.ids.shape.rank == 1
        return self.workers.pick(False, are_shared and self.replicated is None)

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        ids = gone.residuals.candidates.ids
        if ids.shape.rank == 1:  # only for this pass
            ids = tf.broadcast_to(ids, tf.shape(gone.gradients[1]))
        return gone.hidden, gone.labels.ids, ids, *gone.gradients

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        hidden, label_ids, ids, *gradients = parts
        labels = Labels(label_ids)
        residuals = CandidateResiduals(Candidates.certain(ids, labels), None)
        return BackwardPass(hidden, labels, residuals, tuple(gradients))

    def after_update(self, labels: Labels, residuals: CandidateResiduals) -> None:
        if self.index is None:
            return
        touched = [tf.reshape(ids, [-1]) for ids in (labels.ids, residuals.candidates.ids)]
        self.index.update(self.kernel, self.bias, self.rows.of(tf.concat(touched, axis=0)))
        self.index.note(labels)
