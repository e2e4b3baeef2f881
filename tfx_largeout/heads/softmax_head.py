# SPDX-License-Identifier: Apache-2.0
"""SoftmaxHead: the base of heads that are trained by the exact softmax loss."""

from __future__ import annotations

from typing import Any, ClassVar

import tensorflow as tf

from tfx_largeout.arguments import choice_argument
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.over_workers import seed_of_group
from tfx_largeout.heads.update_switch import seed_argument, seed_of_step
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize
from tfx_largeout.ops.candidates.candidate_update import update_workspace
from tfx_largeout.ops.checks import check_finite
from tfx_largeout.ops.exact.logit_blocks import PRODUCTS
from tfx_largeout.ops.exact.shared_gradient import (
    CandidateGradients,
    num_samples_for,
    shared_gradient,
    systematic_samples,
)
from tfx_largeout.ops.exact.softmax_selection import (
    num_selected_argument,
    selection_workspace,
    softmax_selection,
)
from tfx_largeout.ops.exact.softmax_update import softmax_workspace
from tfx_largeout.run_time_checks import after
from tfx_largeout.statistics import MarginStatistics, MeanLogitStatistics, SoftmaxStatistics

_DEFAULT_SELECTED = 256
_BACKWARD = ("selected", "all")


class SoftmaxHead(KernelHead):
    """A head that computes log Z of all classes, and keeps entries of the softmax for its gradient.

    See `ExactSoftmaxHead`.
    """

    gives: ClassVar[tuple[type, ...]] = (SoftmaxStatistics, MeanLogitStatistics)

    def set_softmax(
        self, num_selected: int | None, backward: str, products: str, seed: int | None
    ) -> None:
        """Checks and stores the arguments."""
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

    @property
    def present_seed(self) -> tf.Tensor:
        """The seed of the present step, `[2]` int64."""
        return seed_of_group(seed_of_step(self.seed, *self.step_and_draw()), self.workers)

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`: the kept entries, about S per example, and the tensors made of them."""
        memory = super().memory_of_step(width, step, workers)
        if self.num_selected is None:
            activations = 0
            workspace = softmax_workspace(width, step)
        else:
            activations = 40 * self.num_selected
            workspace = max(
                selection_workspace(width, step, self.num_selected, self.num_classes),
                update_workspace(width, step, self.num_selected, own=True),
            )
        activations = step.examples * (activations + 12 * width)
        return memory._replace(activations=activations, workspace=workspace)

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        seed = self.present_seed
        selection = softmax_selection(
            self.kernel,
            self.bias,
            tf.cast(hidden, self.statistics_dtype),
            labels.ids,
            self.num_selected or 0,
            seed,
            shard=self.rows.shard,
            products=self.products,
            without_labels=kind is MarginStatistics,
        )
        log_z = self.workers.log_sum_exp(selection.logsumexp, f"{self.name}/log_z")
        log_z = _finite("log Z of the logits", log_z)
        targets = self.workers.sum(selection.target_logits, f"{self.name}/targets")
        selection = self.rows.thinned(selection, log_z, self.num_selected or 0)
        selection = selection._replace(target_logits=targets, logsumexp=log_z)
        if kind is not MeanLogitStatistics:
            return (targets, log_z), (selection, seed, None)
        mean_kernel = self.rows.mean(self.kernel)
        mean = _finite("the mean of the logits", self._mean_logit_by(mean_kernel, hidden))
        return (targets, log_z, mean), (selection, seed, mean_kernel)

    def names_of_rows(self, labels: Labels, residuals: Any) -> list[tf.Tensor]:
        """Returns the labels and candidates of `row_gradients`, without the mean logit's."""
        selection, seed, mean_kernel = residuals
        named = [labels.ids, selection.ids]
        if mean_kernel is None:
            return named
        drawn = self.num_selected or self.num_classes
        num_samples = num_samples_for(tf.shape(labels.ids)[0], drawn)
        return [*named, systematic_samples(self.num_classes, drawn, num_samples, seed)]

    def row_gradients(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: Any,
        gradients: tuple[tf.Tensor, ...],
    ) -> CandidateGradients:
        """As `KernelHead`: gradients of the rows of labels and kept entries.

        For a loss of the mean logit, the examples of `shared_gradient` are appended.
        """
        selection, seed, mean_kernel = residuals
        target_gradient, log_z_gradient, *of_mean_logit = gradients
        of_example = log_z_gradient[:, tf.newaxis]
        target_p = at_most_1(selection.target_logits, selection.logsumexp)
        wide = tf.cast(hidden, self.statistics_dtype)
        batch = CandidateGradients(
            wide,
            self.rows.of(labels.ids),
            self.rows.of(selection.ids),
            target_gradient + of_example * target_p,
            of_example * selection.probabilities,
        )
        if mean_kernel is None:
            return batch
        mean_gradient = _finite("the gradient of the mean logit", *of_mean_logit)
        sizes = self.num_classes, self.num_selected or self.num_classes
        shared = shared_gradient(wide, mean_gradient, *sizes, seed)
        return batch.above(shared._replace(candidates=self.rows.of(shared.candidates)))

    def exact_hidden_gradient(
        self, of_rows: tf.Tensor, residuals: Any, gradients: tuple[tf.Tensor, ...]
    ) -> tf.Tensor:
        """Returns dL/dh from the gradient for the examples of `row_gradients`."""
        *_, mean_kernel = residuals
        if mean_kernel is None:
            return of_rows
        # Random rows serve only the gradient of W. The part of dL/dh is exact, and summed over
        # workers.
        mean_gradient = gradients[-1][:, tf.newaxis]
        of_mean = mean_gradient * mean_kernel / self.workers.size
        return of_rows[: tf.shape(mean_gradient)[0]] + of_mean

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


def at_most_1(targets: tf.Tensor, log_z: tf.Tensor) -> tf.Tensor:
    """Returns e^o / Z of the targets, at most 1 (Z may leave them out)."""
    return tf.exp(tf.minimum(targets - log_z[:, tf.newaxis], 0))


def _finite(name: str, values: tf.Tensor) -> tf.Tensor:
    with after([check_finite(name, values)]):
        return tf.identity(values)
