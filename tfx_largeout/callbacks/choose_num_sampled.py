# SPDX-License-Identifier: Apache-2.0
"""choose_num_sampled: the smallest S whose gradient is close to the exact one."""

from __future__ import annotations

import contextlib
import logging
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import (
    at_most_classes,
    integer_argument,
    integers_argument,
    number_argument,
)
from tfx_largeout.callbacks.probe import ProbedBatch, output_of, require_head_loss
from tfx_largeout.distribute.workers import require_alone
from tfx_largeout.heads.candidate_head import CandidateHead
from tfx_largeout.heads.large_logits import without_logits

_STANDARD_ERRORS = 2  # safety margin below the tolerance


class GradientError(NamedTuple):
    """The error of a sampled gradient: see `choose_num_sampled`."""

    error: float
    standard_error: float

    def meets(self, tolerance: float) -> bool:
        """Returns whether it is below a tolerance by two standard errors."""
        return self.error + _STANDARD_ERRORS * self.standard_error <= tolerance


def choose_num_sampled(
    model: keras.Model,
    x: Any,
    y: Any,
    tolerance: float,
    sizes: Sequence[int] | None = None,
    draws: int = 8,
) -> tuple[int, dict[str, Any]]:
    """Returns the smallest number of candidates S whose gradient is close to the exact one.

        error(S)^2 = mean_draws sum_n |g_n - g*_n|^2 / sum_n |g*_n|^2 <= tolerance^2

    where g_n is the gradient of the training loss of example n with respect to h, with S candidates
    and no margin, and g*_n the gradient of the softmax cross-entropy over all classes. This is the
    error of one step, bias and noise together: 0 is exact, and 1 means that the error is as large
    as the gradient. It falls with 1 / sqrt(S). `Probe` measures the same gradients.

    The error must be below the tolerance by two standard errors, over examples and draws, so that
    this also holds on other examples of the same kind. Copies of the head's sampler with other S
    are tried in rising order until one passes. The choice is logged by `logging` at the level INFO.
    It depends on the arguments, the weights, the head's seed and the number of its step. Nothing is
    changed, except that an index that was never built is built.

    ```python
    num_sampled, found = choose_num_sampled(model, x[:256], y[:256], tolerance=0.3)
    head.set_num_sampled(num_sampled)
    model.make_train_function(force=True)
    ```

    The right S depends on W: it is different for untrained and trained weights.

    Cost: O(N C D) for the exact gradient, and a forward and backward pass per draw and S.

    Args:
        model: Compiled with a loss of candidates, its last layer a `SampledHead` or a
            `TiedSampledHead` with a sampler that has `num_sampled`. Not a `TFSampler`, as its draws
            can't be repeated.
        x: Inputs of N examples, such as 256. If candidates are shared, use the N of training.
        y: Their labels. Examples without labels, or left out by a Keras mask, don't count.
        tolerance: Above 0.
        sizes: Values of S to try. Default None: 10, 20, 50, 100, ... up to C.
        draws: The number of draws for each S, at least 2. Default 8.

    Returns:
        S, and statistics: `num_sampled`, `error` and `standard_error` of it, and `errors`, the
        errors of all S that were tried.

    Raises:
        TypeError: The model has another head, sampler or loss.
        ValueError: An argument is out of range, or no S in `sizes` meets the tolerance.
        RuntimeError: The classes are spread over several workers.
    """
    asked_by = "choose_num_sampled"
    tolerance = number_argument("tolerance", tolerance, above=0)
    draws = integer_argument("draws", draws, at_least=2)
    require_alone(asked_by)
    require_head_loss(model, asked_by)
    with without_logits():
        logits = model(x, training=False)
        head: Any = output_of(logits, CandidateHead, "a SampledHead", asked_by).head
    if sizes is None:
        sizes = _round_sizes(head.num_classes)
    sizes = integers_argument("sizes", sizes, at_least=1)
    at_most_classes("each of sizes", sizes[-1], head.num_classes)
    with without_logits():
        batch = ProbedBatch.of(model, x, y, asked_by)
    errors: dict[int, GradientError] = {}
    for num_sampled in sizes:
        with _sampling(head, num_sampled):
            gradients = [batch.drawn(draw)[1] for draw in range(1, draws + 1)]
        errors[num_sampled] = _error(tf.stack(gradients), batch.exact_gradient)
        if errors[num_sampled].meets(tolerance):
            break
    num_sampled, found = list(errors.items())[-1]
    if not found.meets(tolerance):
        raise ValueError(
            f"tolerance must be one that some S meets by two standard errors; got {tolerance:g}, "
            f"and S = {num_sampled} has an error of {found.error:.3g} +- {found.standard_error:.2g}"
        )
    statistics = {"num_sampled": num_sampled, **found._asdict()}
    logging.getLogger(__name__).info("choose_num_sampled: %s", statistics)
    return num_sampled, {**statistics, "errors": errors}


def _round_sizes(num_classes: int) -> list[int]:
    """Returns 10, 20, 50, 100, ... and C."""
    powers = range(1, len(str(num_classes)))
    rounds = {factor * 10**power for power in powers for factor in (1, 2, 5)}
    return sorted({*(size for size in rounds if size < num_classes), num_classes})


@contextlib.contextmanager
def _sampling(head: CandidateHead, num_sampled: int) -> Iterator[None]:
    """A context in which a head draws another number of candidates."""
    before = head.sampler
    head.sampler = before.resized(num_sampled, head.num_classes)
    try:
        yield
    finally:
        head.sampler = before


def _error(drawn: tf.Tensor, exact: tf.Tensor) -> GradientError:
    """Returns the error of gradients `[draws, N, D]`, and its standard error.

    error^2 is a ratio of sums over examples. Its variance is the sum of the variance over examples,
    by the delta method, and the variance over draws, which share candidates.
    """
    squares = tf.reduce_sum((drawn - exact) ** 2, axis=-1).numpy().astype(np.float64)
    lengths = tf.reduce_sum(exact**2, axis=-1).numpy().astype(np.float64)
    total, of_examples = lengths.sum(), squares.mean(axis=0)
    if not total:
        return GradientError(math.inf if of_examples.any() else 0.0, 0.0)
    ratio, of_draws = of_examples.sum() / total, squares.sum(axis=1) / total
    num_draws, num_examples = squares.shape
    variance = of_draws.var(ddof=1) / num_draws
    if num_examples > 1:
        residuals = of_examples - ratio * lengths
        variance += num_examples / (num_examples - 1) * (residuals**2).sum() / total**2
    error = math.sqrt(ratio)
    return GradientError(error, math.sqrt(variance) / (2 * error) if error else 0.0)
