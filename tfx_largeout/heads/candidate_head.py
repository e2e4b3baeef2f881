# SPDX-License-Identifier: Apache-2.0
"""CandidateHead: the base of heads that are trained by a loss of candidates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.distribute.workers import require_alone
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.over_workers import refuse_replicas_of_classes, seed_of_group
from tfx_largeout.heads.update_switch import seed_argument, seed_of_step
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize, Weight
from tfx_largeout.ops.candidates.candidate_logits import candidate_logits
from tfx_largeout.ops.candidates.candidate_update import update_workspace
from tfx_largeout.ops.exact.shared_gradient import CandidateGradients
from tfx_largeout.samplers import Candidates, Sampler
from tfx_largeout.samplers.base import OutputWeights, with_certain
from tfx_largeout.statistics import CandidateStatistics


class CandidateResiduals(NamedTuple):
    """What the forward pass of a `CandidateHead` leaves for the backward pass."""

    candidates: Candidates
    hits: Any  # as in `CandidateStatistics`; None for a step alone


class CandidateHead(KernelHead):
    """A head with a sampler, which draws the candidates of each step."""

    gives: ClassVar[tuple[type, ...]] = (CandidateStatistics,)
    sampler: Sampler
    explicit_classes: tuple[int, ...]
    seed: int
    index: Index | None

    def set_sampler(
        self,
        sampler: Sampler,
        explicit_classes: Sequence[int],
        seed: int | None,
        index: Index | None,
    ) -> None:
        """Checks and stores the arguments."""
        if not isinstance(sampler, Sampler):
            raise TypeError(f"sampler must be a Sampler; got {sampler!r}")
        self.sampler = sampler
        self.explicit_classes = _class_ids(explicit_classes, self.num_classes)
        self.seed = seed_argument(seed)
        self.index = _index_for(sampler, index)

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        index = self.index
        if index is not None and index.built:
            raise ValueError(f"index must serve no other head; got {index!r}, which is built")
        # All checks come before anything is created.
        if self.sampler.looks_at_weights and not self.sampler.spreads_classes:
            require_alone(f"a head whose candidates depend on W, by {self.sampler!r},")
        if index is not None and not index.spreads_classes:
            require_alone(f"a head with an index of all classes, {index!r},")
        if self.sampler.looks_at_weights or index is not None:
            refuse_replicas_of_classes(f"a head with {type(index or self.sampler).__name__}")
        if index is not None and input_shape[-1] is not None:
            index.check_shape(self.num_classes, input_shape[-1])
        self.sampler.build(self.num_classes)
        super().build(input_shape)
        if index is not None:
            index.spread(self.rows)
            index.build(tuple(self.kernel.shape))

    def weights_of(self, width: int, workers: int = 1) -> list[Weight]:
        """As `Head`; includes the tables of the sampler and the index."""
        weights, classes = super().weights_of(width, workers), self.num_classes
        if self.sampler.bytes_a_class:
            weights.append(Weight((classes, self.sampler.bytes_a_class), "uint8", "index"))
        if self.index is not None:
            weights += self.index.weights_of(-(-classes // workers), width)
        return weights

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`: logits of candidates and their gradients, ids, and whether they are labels."""
        memory = super().memory_of_step(width, step, workers)
        number, own = self.sampler.num_candidates(step.examples)
        number += len(self.explicit_classes)
        of_pair = 27 if own else 13
        workspace = update_workspace(width, step, number, own)
        if self.index is not None:
            workspace += self.index.workspace(-(-self.num_classes // workers))
        return memory._replace(
            activations=step.examples * (of_pair * number + 12 * width), workspace=workspace
        )

    def set_num_sampled(self, num_sampled: int) -> None:
        """Changes the number of candidates S of the head's sampler.

        It is saved with the head. A training step that was traced before keeps the old number: call
        `model.make_train_function(force=True)`.

        Raises:
            TypeError: The sampler has no `num_sampled`.
            ValueError: S is out of range.
        """
        self.sampler = self.sampler.resized(num_sampled, self.num_classes)

    def candidates(self, hidden: tf.Tensor, labels: Labels) -> Candidates:
        """Returns the candidates of the present step, explicit classes first.

        If several workers share the classes, a sampler that finds candidates per example in W
        returns only classes whose rows are on this worker.
        """
        seed = seed_of_step(self.seed, *self.step_and_draw())
        if self.sampler.num_candidates(1)[1]:  # drawn per place in the batch
            seed = seed_of_group(seed, self.workers)
        if self.index is not None:
            self.index.build_once(self.kernel, self.bias)
        weights = OutputWeights(self.kernel, self.bias, self.index, self.rows)
        drawn = self.sampler.sample(hidden, labels, seed, weights)
        if not self.explicit_classes:
            return drawn
        explicit = tf.constant(sorted(self.explicit_classes), tf.int64)
        return with_certain(drawn, labels, explicit)

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
        residuals = CandidateResiduals(candidates, values.hits)
        return (true_logits, values.candidate_logits), residuals

    def row_gradients(
        self,
        hidden: tf.Tensor,
        labels: Labels,
        residuals: CandidateResiduals,
        gradients: tuple[tf.Tensor, ...],
    ) -> CandidateGradients:
        return CandidateGradients(
            tf.cast(hidden, self.statistics_dtype),
            self.rows.of(labels.ids),
            self.rows.of(residuals.candidates.ids),
            *gradients,
        )

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: CandidateResiduals,
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

    def start_from(self, kernel: np.ndarray, bias: np.ndarray | None) -> None:
        super().start_from(kernel, bias)
        if self.index is not None:
            self.index.start_anew()  # built from the new W before the next draw

    def get_config(self) -> dict[str, Any]:
        config = super().get_config()
        if self.index is not None:  # the head builds its index itself
            config["index"].pop("build_config", None)
        return config


def _index_for(sampler: Sampler, index: Index | None) -> Index | None:
    """Returns the given index of a head, or the default index of its sampler."""
    if index is not None and not isinstance(index, Index):
        raise TypeError(f"index must be an Index or None; got {index!r}")
    if index is None and sampler.needs_index:
        index = sampler.default_index()
    sampler.check_index(index)
    return index


def _class_ids(ids: Sequence[int], num_classes: int) -> tuple[int, ...]:
    """Returns ids as a tuple; raises ValueError if they are not a set of classes."""
    name = "explicit_classes"
    if not isinstance(ids, Iterable) or isinstance(ids, str) or getattr(ids, "ndim", 1) != 1:
        raise ValueError(f"{name} must be a sequence of class ids; got {ids!r}")
    result = tuple(integer_argument(f"each of {name}", c, at_least=0) for c in ids)
    for c in result:
        if c >= num_classes:
            raise ValueError(f"each of {name} must be less than num_classes={num_classes}; got {c}")
    if len(set(result)) < len(result):
        raise ValueError(f"{name} must not repeat a class; got {ids!r}")
    return result
