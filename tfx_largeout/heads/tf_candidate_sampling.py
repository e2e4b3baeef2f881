# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's candidate sampling losses `tf.nn.sampled_softmax_loss` and `nce_loss` as heads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, flag_argument, integer_argument
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.labels import Labels
from tfx_largeout.memory import StepMemory, StepSize
from tfx_largeout.samplers.tf_sampler import (
    callable_of,
    named_function,
    plain_options,
)
from tfx_largeout.saving import check_registered
from tfx_largeout.statistics import PerExampleLoss

_LOOK_AT_TARGETS = ("learned_unigram",)


class TFCandidateSamplingHead(KernelHead):
    """A dense layer that trains through an unmodified candidate sampling loss of `tf.nn`.

    Weights, logits and exact evaluation are as in `DenseHead`. The gradient of the kernel is
    `tf.IndexedSlices` over the rows of the targets and candidates. Of Keras's optimizers, only SGD
    without momentum takes time in proportion to these rows, and only SGD adds up repeated slices of
    a row; Adam visits every row, and does not add them up.

    Cost: a training step O((B T + S) D + B S D), plus what the optimizer does.

    Args:
        num_classes: The number of classes C, at least 2.
        num_sampled: S, the number of candidate classes drawn for a batch, 1 <= S, and S <= C if
            they are `unique`.
        num_true: T, the number of labels per example that a step uses. Default 1. `tf.nn` needs
            exactly T labels per example: from n labels, T are taken in turn from a random start, so
            that each label is used equally often; labels repeat if n < T.
        sampler: `"log_uniform"` (default, as in TensorFlow: ids by falling frequency),
            `"uniform"`, `"learned_unigram"`, `"fixed_unigram"`, or a callable with the arguments
            of `tf.random.log_uniform_candidate_sampler` that returns its triple (to be saved in
            a `.keras` file it must be registered with Keras).
        sampler_options: Further arguments of the sampler, such as `{"unigrams": counts,
            "distortion": 0.75}` for `"fixed_unigram"`. Default none.
        unique: Whether the candidates of a batch are all different. Default True.
        remove_accidental_hits: Whether a candidate that is also a target is left out.
        seed: The seed of the sampler and of the choice of labels. Default None: not reproducible.
        **kwargs: As for `DenseHead`.

    Raises:
        ValueError: An argument is out of range.

    Deviations:
        `tf.nn` does not support different numbers of labels per example: see `num_true`.
    """

    gives: ClassVar[tuple[type, ...]] = (PerExampleLoss,)
    # The loss `[N]`: the unmodified function of `tf.nn`.
    sampled_loss: ClassVar[Callable[..., tf.Tensor]]

    def __init__(
        self,
        num_classes: int,
        num_sampled: int,
        num_true: int = 1,
        sampler: str | Callable[..., Any] = "log_uniform",
        sampler_options: dict[str, Any] | None = None,
        unique: bool = True,
        remove_accidental_hits: bool = True,
        seed: int | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(num_classes, **kwargs)
        self.num_sampled = integer_argument("num_sampled", num_sampled, at_least=1)
        self.num_true = integer_argument("num_true", num_true, at_least=1)
        if unique:
            what = " for unique candidates"
            at_most_classes("num_sampled", self.num_sampled, self.num_classes, why=what)
        self.sampler = named_function("sampler", sampler)
        self.sampler_options = plain_options(sampler_options)
        self.unique = flag_argument("unique", unique)
        self.remove_accidental_hits = flag_argument(
            "remove_accidental_hits", remove_accidental_hits
        )
        self.seed = seed

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        if kind is not PerExampleLoss or not training:
            return super().statistics(kind, hidden, labels, training)
        targets = self._choose_targets(labels)
        if self.bias is None:
            biases = tf.zeros([self.num_classes], self.kernel.dtype)
        else:
            biases = self.bias.value
        values = self.sampled_loss(
            weights=self.kernel.value,
            biases=biases,
            labels=targets,
            inputs=tf.cast(hidden, self.kernel.dtype),
            num_sampled=self.num_sampled,
            num_classes=self.num_classes,
            num_true=self.num_true,
            sampled_values=self._sample(targets, labels),
            remove_accidental_hits=self.remove_accidental_hits,
        )
        return PerExampleLoss(labels, tf.cast(values, tf.float32))

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """As `Head`: logits of candidates, and the gradient of W for the optimizer."""
        memory = super().memory_of_step(width, step, workers)
        if step.takes_slices:
            memory = memory._replace(gradients=0)
        rows = step.examples * self.num_true + self.num_sampled
        logits = 16 * step.examples * (self.num_sampled + self.num_true)
        return memory._replace(activations=logits + 8 * rows * width)

    def get_config(self) -> dict[str, Any]:
        check_registered("sampler", self.sampler)
        return super().get_config()

    def _choose_targets(self, labels: Labels) -> tf.Tensor:
        """Returns `[N, T]` int64: T labels of each example, in turn from a random start."""
        counts = tf.maximum(labels.counts, 1)
        # Labels first, padding last: padding may stand anywhere in a row.
        order = tf.argsort(tf.cast(~labels.mask, tf.int32), axis=-1, stable=True)
        packed = tf.gather(labels.safe_ids, order, batch_dims=1)
        # There may be no columns.
        packed = tf.concat([packed, tf.zeros_like(counts)[:, tf.newaxis]], axis=1)
        start = tf.random.uniform(tf.shape(counts), 0, 2**31 - 1, tf.int64, seed=self.seed)
        turn = (start[:, tf.newaxis] + tf.range(self.num_true, dtype=tf.int64)) % counts[:, None]
        return tf.gather(packed, turn, batch_dims=1)

    def _sample(self, targets: tf.Tensor, labels: Labels) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        places = None
        if self.sampler in _LOOK_AT_TARGETS or callable(self.sampler):
            # The target of an example without labels must not train.
            places = tf.where(labels.counts > 0)
        ids, true_expected, sampled_expected = callable_of(self.sampler)(
            true_classes=targets if places is None else tf.gather_nd(targets, places),
            num_true=self.num_true,
            num_sampled=self.num_sampled,
            unique=self.unique,
            range_max=self.num_classes,
            seed=self.seed,
            **self.sampler_options,
        )
        dtype = self.kernel.dtype
        if places is not None:
            ones = tf.ones_like(targets, true_expected.dtype)
            true_expected = tf.tensor_scatter_nd_update(ones, places, true_expected)
        return ids, tf.cast(true_expected, dtype), tf.cast(sampled_expected, dtype)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFSampledSoftmaxHead(TFCandidateSamplingHead):
    """A dense layer that trains through `tf.nn.sampled_softmax_loss`: a peer to compare with.

    The loss is the softmax over the targets and S candidates, each logit lowered by the log of the
    class's expected count. Compile the model with `losses.TFCandidateSamplingLoss()`.

    Args and errors: as `TFCandidateSamplingHead`; `remove_accidental_hits` is True by default, as
    in `tf.nn`.

    References:
        Jean, Cho, Memisevic, Bengio 2015, On Using Very Large Target Vocabulary for Neural Machine
        Translation.
    """

    sampled_loss = staticmethod(tf.nn.sampled_softmax_loss)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFNCEHead(TFCandidateSamplingHead):
    """A dense layer that trains through `tf.nn.nce_loss`: a peer to compare with.

    The loss is logistic: targets against S candidates drawn from the sampler, each logit lowered
    by the log of the class's expected count. Compile the model with
    `losses.TFCandidateSamplingLoss()`.

    Args and errors: as `TFCandidateSamplingHead`, but `remove_accidental_hits` is False by default,
    as in `tf.nn`.

    References:
        Gutmann, Hyvarinen 2010, Noise-contrastive estimation: A new estimation principle for
        unnormalized statistical models.
    """

    sampled_loss = staticmethod(tf.nn.nce_loss)

    def __init__(
        self,
        num_classes: int,
        num_sampled: int,
        remove_accidental_hits: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(
            num_classes, num_sampled, remove_accidental_hits=remove_accidental_hits, **kwargs
        )
