# SPDX-License-Identifier: Apache-2.0
"""ExactSoftmaxHead: the full softmax, trained without its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.heads.cosine_logits import CosineLogits
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.row_updating import RowUpdatingHead
from tfx_largeout.heads.softmax_head import SoftmaxHead, at_most_1
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize, sum_of
from tfx_largeout.ops.exact.softmax_gradients import softmax_gradients
from tfx_largeout.ops.exact.softmax_selection import SoftmaxSelection
from tfx_largeout.ops.exact.softmax_update import softmax_update
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.statistics import MarginStatistics


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ExactSoftmaxHead(RowUpdatingHead, SoftmaxHead, CosineLogits):
    """A dense layer o = W h + b with the exact softmax loss, trained without its logits.

    Forward, one pass over W computes log Z exactly: the loss equals the full softmax loss. Its
    gradient is dL/do_ic = a_i p_ic + t_ic, with a_i = dL/d log Z_i, p_ic = exp(o_ic) / Z_i, and
    t_ic different from 0 at labels only.

    - `backward="selected"`: the pass also keeps entries (i, c) of the softmax at random, with
      probability min(1, S p_ic) and weight max(p_ic, 1 / S), so that the expectation is p_ic.
      Backward, the kept entries replace p_ic; the labels are exact. So the gradient is unbiased,
      and touches at most S rows per example in expectation, besides the rows of its labels. This is
      importance sampling from the softmax itself. The gradient of a term in the mean of all logits,
      as in label smoothing, is exact in dL/dh; for W it is unbiased, through about max(B, S)
      uniformly drawn rows.
    - `backward="all"`: the exact gradient of every class. Logits are computed again, one block of
      rows at a time, and each block is updated while it is in the caches.

    The head updates its rows with a separate optimizer.

    ```python
    head = ExactSoftmaxHead(num_classes, optimizers.RowAdam(1e-3))
    model.compile("adam", loss=losses.SoftmaxCrossentropy())  # "adam" trains the hidden layers
    ```

    Neither the logits `[B, C]` nor a gradient `[C, D]` is ever built. A loss of the mean logit
    reads W once more per step.

    Cost: a training step 2 B C D FLOP for the pass; backward O(B S D), or 6 B C D FLOP with
    `"all"`. Memory: W, b and the optimizer's slots; besides, O(B (D + T S log C)) on T threads;
    with `"all"` up to 64 partial sums of O(B D) (at most 32 MiB, or 8 sums), and some MiB per
    thread.

    Args:
        num_classes: The number of classes C, at least 2.
        optimizer: As `SampledHead`.
        num_selected: S, at most C: the largest expected number of classes kept per example. A
            larger S makes the gradient less noisy; S = C makes it exact. Default None: min(256, C).
            Only for `backward="selected"`.
        backward: `"selected"` (default) or `"all"`.
        products: The dtype of the factors multiplied in a training step's passes over all classes.
            Default `"float32"`. With `"bfloat16"`, the factors (W and h, and for `backward="all"`
            dL/do) are rounded first, with a relative error of at most 2^-8; sums, W itself and
            everything else stay float32. Faster on AMD processors with AVX512-BF16; slower on
            Intel and on other processors.
        use_bias, kernel_initializer, bias_initializer, cosine_scale, learn_scale: As `DenseHead`.
        seed: The seed of the choice of entries, which depends on the seed, the number of the step,
            the position in the batch and the class. Default None: drawn at construction, and kept
            in the configuration.
        **kwargs: `model_rate`, `device`, `name`, `dtype`, `trainable`, as `SelfUpdatingHead`.

    Raises:
        TypeError: As `RowUpdatingHead`.
        ValueError: An argument is out of range; `num_selected` with `backward="all"`; as
            `RowUpdatingHead`.
        tf.errors.InvalidArgumentError: In a training step: h, log Z or a gradient is not finite.
            Nothing is changed then.
    """

    gives: ClassVar[tuple[type, ...]] = (*SoftmaxHead.gives, MarginStatistics)
    trainable_kernel: ClassVar[bool] = False
    spreads_classes: ClassVar[bool] = True
    has_replicas: ClassVar[bool] = True

    def __init__(
        self,
        num_classes: int,
        optimizer: RowOptimizer,
        num_selected: int | None = None,
        backward: str = "selected",
        products: str = "float32",
        use_bias: bool | None = None,
        kernel_initializer: Any = "glorot_uniform",
        bias_initializer: Any = "zeros",
        seed: int | None = None,
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
        self.set_softmax(num_selected, backward, products, seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        super().build(input_shape)
        self.build_optimizer([self.kernel, self.bias])
        self.replicate()

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `SoftmaxHead`; with replicas and `backward="all"` also the gradient of all rows."""
        memory = super().memory_of_step(width, step, workers)
        if self.num_selected is not None:
            return memory
        times = self.workers.replicas.pick(0, 3)  # as computed, in one tensor, and summed
        of_rows = times * sum_of(self.weights_of(width, workers), "weights")
        return memory._replace(gradients=memory.gradients + of_rows)

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        if kind is MarginStatistics:
            self.require_cosines(kind)
        return super().forward(kind, hidden, labels)

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> Any:
        if kind is not MarginStatistics:
            return super().as_statistics(kind, labels, values, residuals, anchor)
        targets, rest = _without_targets(*values)
        return MarginStatistics(labels, targets, rest, self.workers.by_group(self.scale))

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        gone = BackwardPass(hidden, labels, residuals, gradients)
        step = self._step_on_all if self.backward_over == "all" else self._step_on_selected
        return tf.cast(step(gone, update), hidden.dtype)

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        selection = gone.residuals[0]
        return gone.hidden, gone.labels.ids, *selection, *gone.gradients

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        hidden, label_ids, *rest = parts
        number = len(SoftmaxSelection._fields)
        selection, gradients = rest[:number], rest[number:]
        has_mean = len(gradients) == 3
        mean_kernel = self.rows.mean(self.kernel) if has_mean else None
        residuals = (SoftmaxSelection(*selection), self.present_seed, mean_kernel)
        return BackwardPass(hidden, Labels(label_ids), residuals, tuple(gradients))

    def _step_on_all(self, gone: BackwardPass, update: bool) -> tf.Tensor:
        selection, *_ = gone.residuals
        target_gradient, log_z_gradient, *mean_gradient = gone.gradients
        of_examples = (
            tf.cast(gone.hidden, self.statistics_dtype),
            self.rows.of(gone.labels.ids),
            selection.logsumexp,
            target_gradient,
            log_z_gradient,
        )
        # The ops divide by the number of rows on this worker.
        mean = self.rows.share * mean_gradient[0] if mean_gradient else None
        if update and self.replicated is not None:
            found = softmax_gradients(
                self.kernel, self.bias, *of_examples, mean, products=self.products
            )
            return self.take_step_by(self.replicated.sum_of_all(found))
        return softmax_update(
            self.kernel,
            self.bias,
            self.slots_of(self.kernel),
            self.slots_of(self.bias),
            *of_examples,
            self.rule_of(self.kernel),
            self.present_rate,
            mean_gradient=mean,
            products=self.products,
            update=update,
        )

    def _step_on_selected(self, gone: BackwardPass, update: bool) -> tf.Tensor:
        batch = self.row_gradients(*gone).without_zeros()
        of_rows = self.update_rows(self.kernel, self.bias, batch, update)
        return self.exact_hidden_gradient(of_rows, gone.residuals, gone.gradients)


@tf.custom_gradient
def _without_targets(targets: tf.Tensor, log_rest: tf.Tensor) -> Any:
    """Returns both unchanged, with the gradient of a sum that leaves out the targets.

    A step uses dL/do_c = a min(1, e^{o_c} / Z) for all c, and adds the gradient of each target. The
    target's share of the first term is subtracted here.
    """

    def gradient(of_targets: tf.Tensor, of_rest: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        part = of_rest[:, tf.newaxis] * at_most_1(targets, log_rest)
        return of_targets - part, of_rest

    return (tf.identity(targets), tf.identity(log_rest)), gradient
