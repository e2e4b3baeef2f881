# SPDX-License-Identifier: Apache-2.0
"""Losses that tell labels from candidates: logistic regressions and ranking."""

from __future__ import annotations

import math
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import choice_argument, flag_argument, number_argument, number_or
from tfx_largeout.losses.base import PROBABILITIES
from tfx_largeout.losses.candidate_loss import (
    CandidateLoss,
    corrected_candidates,
    corrected_labels,
    mean_over_negatives,
    sum_over_candidates,
)
from tfx_largeout.statistics import CandidateStatistics

_LEARNED = "learned"
_LIKELIHOOD_MARGIN = "log(C-1)"


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NoiseContrastive(CandidateLoss):
    """Noise-contrastive estimation: logistic regression that tells labels from candidates.

    loss = mean_{y in Y} softplus(-(o_y - z - log E_y)) + sum_{d} softplus(o_d - z - log E_d)

    z stands for log Z. e^{o_c - z} / (e^{o_c - z} + E_c) is the probability that class c is the
    label and not one of the candidates. The noise ranges over all classes, so d runs over all
    candidates, hits too. `tf.nn.nce_loss` for one label per example, z = 0.

    With more candidates the optimum approaches the likelihood's, if z = log Z: one z for all
    examples can be right only for a self-normalizing model.

    Args:
        log_partition: z: a finite number, or `"learned"`: a weight of the head. Default 0.
        remove_accidental_hits: Whether hits are left out, as in TensorFlow's option of this name.
            Default False.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `log_partition` is neither.

    Deviations:
        The paper's z differs from example to example; here it is one number.

    References:
        Barber and Botev 2016, eq. 30 and 31. Gutmann and Hyvärinen 2010, Noise-contrastive
        estimation.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(
        self, log_partition: float | str = 0.0, remove_accidental_hits: bool = False, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.log_partition = number_or("log_partition", log_partition, (_LEARNED,))
        self.remove_accidental_hits = flag_argument(
            "remove_accidental_hits", remove_accidental_hits
        )

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        z = statistics.log_partition if self.log_partition == _LEARNED else self.log_partition
        missed = statistics.labels.mean(tf.math.softplus(z - corrected_labels(statistics)))
        if self.log_partition == _LEARNED:
            z = statistics.workers.share(z, "log_partition")
        believed = tf.math.softplus(corrected_candidates(statistics) - z)
        noise = (
            statistics.negatives if self.remove_accidental_hits else statistics.candidate_ids >= 0
        )
        return missed + sum_over_candidates(statistics, noise, believed)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class NegativeSampling(CandidateLoss):
    """Negative sampling: logistic regression of labels against negatives, uncorrected.

    loss = mean_{y in Y} softplus(-o_y) + mean_{d in N(x)} softplus(o_d)

    Its optimum is not the likelihood's: learned logits are lowered by the log of the class's
    expected count. Known from word2vec.

    Args:
        negatives: `"mean"` (default, eq. 45): all negatives together weigh as much as the label;
            derivatives stay in [-1, 1]. `"sum"` (eq. 43): each negative does. Without negatives
            both are 0.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `negatives` is neither.

    References:
        Barber and Botev 2016, eq. 43 to 45. Mikolov and others 2013, Distributed representations of
        words and phrases and their compositionality.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(self, negatives: str = "mean", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.negatives = choice_argument("negatives", negatives, ("mean", "sum"))

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        raised = statistics.labels.mean(tf.math.softplus(-statistics.true_logits))
        lowered = tf.math.softplus(statistics.candidate_logits)
        if self.negatives == "mean":
            return raised + mean_over_negatives(statistics, lowered)
        return raised + sum_over_candidates(statistics, statistics.negatives, lowered)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class GeneralizedBCE(CandidateLoss):
    """Generalised binary cross-entropy, gBCE: negative sampling without its overconfidence.

    loss = mean_{y in Y} beta softplus(-o_y) + sum_{d in N(x)} softplus(o_d)

    beta = alpha (t (1 - 1/alpha) + 1/alpha),  alpha = |N(x)| / (C - |Y|)

    With few negatives sigmoid(o) is too large for the best classes, so they are hard to tell apart:
    the label is always used, another class only with the sampling rate alpha. The power beta of
    sigmoid(o_y) corrects this: with t = 1 (beta = alpha) the optimum of sigmoid(o_y) is the label's
    probability; with t = 0 (beta = 1) the loss is `NegativeSampling("sum")`; with all classes as
    negatives it is the binary cross-entropy for any t. alpha counts the candidates without hits.
    This holds for uniform candidates; for others, logits are lowered by the log of the expected
    count.

    Args:
        calibration: t, in [0, 1]. Default 0.75, which the paper recommends.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `calibration` is not a number in [0, 1].

    Deviations:
        The paper divides by 1 + |N(x)|, which optimizers such as Adam do not notice.

    References:
        Petrov and Macdonald 2023, gSASRec: reducing overconfidence in sequential recommendation
        trained with negative sampling, eq. 11 and section 4.
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(self, calibration: float = 0.75, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.calibration = number_argument("calibration", calibration, at_least=0, at_most=1)

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        labels, negatives = statistics.labels, statistics.negatives
        dtype = statistics.candidate_logits.dtype
        number = sum_over_candidates(statistics, negatives, tf.ones(tf.shape(negatives), dtype))
        others = statistics.num_classes - tf.cast(labels.counts, dtype)
        rate = tf.math.divide_no_nan(number, others)
        beta = 1 - self.calibration * (1 - rate)
        raised = beta * labels.mean(tf.math.softplus(-statistics.true_logits))
        lowered = tf.math.softplus(statistics.candidate_logits)
        return raised + sum_over_candidates(statistics, negatives, lowered)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class SampledLogistic(CandidateLoss):
    """A logistic regression per class (one against all), negative classes by sampling.

    loss = sum_{y in Y} softplus(-o_y) + sum_{d in N(x)} softplus(o_d) / E_d

    The loss and its gradient are unbiased estimates of the loss over all classes, sum_{y in Y}
    softplus(-o_y) + sum_{c not in Y} softplus(o_c), and of its gradient, since the loss is linear
    in the sampled terms. A derivative may be as large as 1 / E. The labels are summed, as each
    class is a separate regression. With `class_weights` v the first sum is sum_y v_y
    softplus(-o_y), and the second one is multiplied by the mean of v over the labels.

    Args:
        importance_weights: Whether negatives are divided by E. Default True. False: each weighs 1;
            then it estimates a loss in which the negatives of class c weigh E_c.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    References:
        `tf.nn.sigmoid_cross_entropy_with_logits` summed over classes, which it estimates.
    """

    sums_over_workers: ClassVar[bool] = True

    def __init__(self, importance_weights: bool = True, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.importance_weights = flag_argument("importance_weights", importance_weights)

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        labels, terms = statistics.labels, tf.math.softplus(-statistics.true_logits)
        raised = tf.cast(labels.counts, terms.dtype) * labels.mean(terms)
        lowered = tf.math.softplus(statistics.candidate_logits)
        if self.importance_weights:
            lowered *= tf.exp(-statistics.candidate_log_expected)
        return raised + sum_over_candidates(statistics, statistics.negatives, lowered)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class Ranking(CandidateLoss):
    """The label's logit should exceed the logit of each negative by a margin.

    loss = mean_{y in Y} mean_{d in N(x)} l(o_y - o_d - margin)

    with l(t) = softplus(-t) = -log sigmoid(t), or the hinge max(0, -t). With a margin of log(C-1)
    the logistic loss is `ComplementarySum` with a single uniform negative, averaged over the
    negatives. An example without negatives has a loss of 0. Expected counts are not used.

    Cost: O(N K S) time and memory.

    Args:
        margin: `"log(C-1)"` (default) or a finite number.
        kind: `"logistic"` (default) or `"hinge"`.
        **kwargs: As `HeadLoss`: `reduction`, `ignore_class`, `class_weights`, ...

    Raises:
        ValueError: `margin` or `kind` is none of these.

    References:
        Barber and Botev 2016, eq. 32 to 42. Collobert and Weston 2008 (hinge, margin 1).
    """

    sums_over_workers: ClassVar[bool] = True
    takes_values: ClassVar[str | None] = PROBABILITIES

    def __init__(
        self, margin: float | str = _LIKELIHOOD_MARGIN, kind: str = "logistic", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.margin = number_or("margin", margin, (_LIKELIHOOD_MARGIN,))
        self.kind = choice_argument("kind", kind, ("logistic", "hinge"))

    def from_statistics(self, statistics: CandidateStatistics) -> tf.Tensor:
        margin = self.margin
        if margin == _LIKELIHOOD_MARGIN:
            margin = math.log(statistics.num_classes - 1)
        true_logits = statistics.workers.share(statistics.true_logits, "true_logits")
        lead = true_logits[:, :, tf.newaxis] - statistics.candidate_logits[:, tf.newaxis]
        penalty = tf.math.softplus if self.kind == "logistic" else tf.nn.relu
        return statistics.labels.mean(mean_over_negatives(statistics, penalty(margin - lead)))
