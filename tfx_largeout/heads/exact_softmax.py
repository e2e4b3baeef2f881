# SPDX-License-Identifier: Apache-2.0
"""ExactSoftmaxHead: the full softmax, trained without its logits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.heads.kept_passes import BackwardPass
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.row_updating import RowUpdatingHead, named_rows, refuse_built
from tfx_largeout.heads.update_switch import seed_argument, seed_of_step
from tfx_largeout.labels import Labels
from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.exact.logit_blocks import PRODUCTS
from tfx_largeout.ops.exact.shared_gradient import CandidateGradients, shared_gradient
from tfx_largeout.ops.exact.softmax_selection import (
    SoftmaxSelection,
    num_selected_argument,
    softmax_selection,
)
from tfx_largeout.ops.exact.softmax_update import softmax_update
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.run_time_checks import after
from tfx_largeout.statistics import MeanLogitStatistics, SoftmaxStatistics

_DEFAULT_SELECTED = 256
_BACKWARD = ("selected", "all")


@keras.saving.register_keras_serializable(package="tfx_largeout")
class ExactSoftmaxHead(RowUpdatingHead, KernelHead):
    """A dense layer o = W h + b with the exact softmax loss, trained without its logits.

    Forward, one pass over W gives log Z of all classes exactly: the loss is that of the full
    softmax. Its gradient is dL/do_ic = a_i p_ic + t_ic, with a_i = dL/d log Z_i, p_ic =
    exp(o_ic) / Z_i, and t_ic not 0 at labels alone.

    - `backward="selected"`: the pass also keeps entries of the softmax at random: (i, c) with
      probability min(1, S p_ic), and then with the weight max(p_ic, 1 / S), whose expectation is
      p_ic. Backward, the kept entries stand for p_ic and the labels are exact. So the gradient has
      the expectation of the full softmax's, and touches at most S rows an example in expectation,
      besides those of its labels. It is importance sampling from the softmax itself, which samplers
      with an index approximate. The gradient by the mean of all logits, as of label smoothing, is
      exact in dL/dh; about max(B, S) rows that are drawn evenly have it for all, without bias.
    - `backward="all"`: the exact gradient of every class. Logits are computed again, a block of
      rows at a time, and the rows of a block are updated while they are in the caches.

    The head updates its rows with its own optimizer.

    ```python
    head = ExactSoftmaxHead(num_classes, optimizers.RowAdam(1e-3))
    model.compile("adam", loss=losses.SoftmaxCrossentropy())  # "adam" trains what lies below
    ```

    Neither the logits `[B, C]` nor a gradient `[C, D]` is ever built. For a loss of the mean
    logit a step reads W once more.

    Cost: a training step 2 B C D FLOP for the pass; backward, O(B S D), or 6 B C D FLOP for all.
    Memory: W, b and the optimizer's slots; besides, O(B (D + T S log C)) on T threads, or for all
    O(B D) for up to 64 sums (at most 32 MiB, or 8 of them), and some MiB a thread.

    Args:
        num_classes: The number of classes C, at least 2.
        optimizer: As `SampledHead`.
        num_selected: S, at most C: how many classes of an example are expected to be kept at most.
            More make the gradient less noisy; with S = C it is exact. Default None: 256, or C. For
            `backward="selected"` alone.
        backward: `"selected"` (default) or `"all"`.
        products: The numbers that are multiplied in the passes over all classes of a training
            step. Default `"float32"`. With `"bfloat16"`, the factors (W and h, and for
            `backward="all"` dL/do) are rounded to it first, a relative error of 2^-8 at most, while
            sums, W itself and all else stay float32. That is faster on AMD's processors with
            AVX512-BF16, and was slower on Intel's; on others it is slower.
        use_bias, kernel_initializer, bias_initializer: As `DenseHead`.
        seed: The seed of the choice, which is a function of it, of the number of the step, of the
            place in the batch and of the class. Default None: drawn here, and kept in the
            configuration.
        **kwargs: `model_rate`, `name`, `dtype`, `trainable`, as `SelfUpdatingHead`.

    Raises:
        TypeError: As `RowUpdatingHead`.
        ValueError: An argument is out of range; `num_selected` beside `backward="all"`; as
            `RowUpdatingHead`.
        tf.errors.InvalidArgumentError: In a training step: h, log Z or a gradient is not finite.
            Nothing is changed then.
    """

    gives: ClassVar[tuple[type, ...]] = (SoftmaxStatistics, MeanLogitStatistics)
    trainable_kernel: ClassVar[bool] = False
    spreads_classes: ClassVar[bool] = True

    def __init__(
        self,
        num_classes: int,
        optimizer: RowOptimizer,
        num_selected: int | None = None,
        backward: str = "selected",
        products: str = "float32",
        use_bias: bool = True,
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
        self.backward_over = choice_argument("backward", backward, _BACKWARD)
        if self.backward_over == "all" and num_selected is not None:
            raise ValueError(
                f'num_selected must be None where backward="all"; got {num_selected!r}'
            )
        self.num_selected = num_selected
        if self.backward_over == "selected":
            if num_selected is None:
                num_selected = min(_DEFAULT_SELECTED, self.num_classes)
            self.num_selected = num_selected_argument(num_selected, self.num_classes)
        self.products = choice_argument("products", products, PRODUCTS)
        self.seed = seed_argument(seed)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        refuse_built(self.optimizer)
        super().build(input_shape)
        self.build_optimizer([self.kernel, self.bias])

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        seed = seed_of_step(self.seed, self.optimizer.iterations.value, self.draw)
        selection = softmax_selection(
            self.kernel,
            self.bias,
            tf.cast(hidden, self.statistics_dtype),
            labels.ids,
            self.num_selected or 0,
            seed,
            shard=self.rows.shard,
            products=self.products,
        )
        log_z = self.workers.log_sum_exp(selection.logsumexp, f"{self.name}/log_z")
        log_z = _finite("log Z of the logits", log_z)
        targets = self.workers.sum(selection.target_logits, f"{self.name}/targets")
        selection = self.rows.thinned(selection, log_z, self.num_selected or 0)
        selection = selection._replace(target_logits=targets, logsumexp=log_z)
        if kind is SoftmaxStatistics:
            return (targets, log_z), (selection, seed, None)
        mean_kernel = self.rows.mean(self.kernel)
        mean = _finite("the mean of the logits", self._mean_logit_by(mean_kernel, hidden))
        return (targets, log_z, mean), (selection, seed, mean_kernel)

    def backward(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
        update: bool,
    ) -> tf.Tensor:
        wide = tf.cast(hidden, self.statistics_dtype)
        step = self._step_on_all if self.backward_over == "all" else self._step_on_selected
        gone = BackwardPass(wide, labels, residuals, gradients)
        return tf.cast(step(gone, update), hidden.dtype)

    def pack(self, gone: BackwardPass) -> tuple[tf.Tensor, ...]:
        selection = gone.residuals[0]
        return gone.hidden, gone.labels.ids, *selection, *gone.gradients

    def unpack(self, parts: Sequence[tf.Tensor]) -> BackwardPass:
        hidden, label_ids, *rest = parts
        number = len(SoftmaxSelection._fields)
        selection, gradients = rest[:number], rest[number:]
        has_mean = len(gradients) == 3
        seed = seed_of_step(self.seed, self.optimizer.iterations.value, self.draw)
        mean_kernel = self.rows.mean(self.kernel) if has_mean else None
        residuals = (SoftmaxSelection(*selection), seed, mean_kernel)
        return BackwardPass(hidden, Labels(label_ids), residuals, tuple(gradients))

    def _step_on_all(self, gone: BackwardPass, update: bool) -> tf.Tensor:
        selection, *_ = gone.residuals
        target_gradient, log_z_gradient, *mean_gradient = gone.gradients
        return softmax_update(
            self.kernel,
            self.bias,
            self.slots_of(self.kernel),
            self.slots_of(self.bias),
            gone.hidden,
            self.rows.of(gone.labels.ids),
            selection.logsumexp,
            target_gradient,
            log_z_gradient,
            self.optimizer.rule,
            self.present_rate,
            # The op divides by the number of rows that are here.
            mean_gradient=self.rows.share * mean_gradient[0] if mean_gradient else None,
            products=self.products,
            update=update,
        )

    def _step_on_selected(self, gone: BackwardPass, update: bool) -> tf.Tensor:
        hidden, (selection, seed, mean_kernel) = gone.hidden, gone.residuals
        target_gradient, log_z_gradient, *of_mean_logit = gone.gradients
        of_example = log_z_gradient[:, tf.newaxis]
        target_p = tf.exp(selection.target_logits - selection.logsumexp[:, tf.newaxis])
        of_labels = target_gradient + of_example * target_p
        of_selected = of_example * selection.probabilities
        batch = CandidateGradients(
            hidden,
            named_rows(self.rows.of(gone.labels.ids), of_labels),
            named_rows(self.rows.of(selection.ids), of_selected),
            of_labels,
            of_selected,
        )
        if mean_kernel is None:
            return self.update_rows(self.kernel, self.bias, batch, update)
        mean_gradient = _finite("the gradient of the mean logit", *of_mean_logit)
        sizes = self.num_classes, self.num_selected or self.num_classes
        shared = shared_gradient(hidden, mean_gradient, *sizes, seed)
        every = batch.above(shared._replace(candidates=self.rows.of(shared.candidates)))
        hidden_gradient = self.update_rows(self.kernel, self.bias, every, update)
        # What was drawn is for the rows alone. The part of h is exact, and summed over workers.
        of_mean = mean_gradient[:, tf.newaxis] * mean_kernel / self.workers.size
        return hidden_gradient[: tf.shape(hidden)[0]] + of_mean

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> Any:
        sizes = (self.num_classes,) if kind is MeanLogitStatistics else ()
        return kind(labels, *values, *sizes)

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "backward": self.backward_over}


def _finite(name: str, values: tf.Tensor) -> tf.Tensor:
    with after([check_finite(name, values)]):
        return tf.identity(values)
