# SPDX-License-Identifier: Apache-2.0
"""TFSampler: TensorFlow's candidate samplers, and functions with the same interface."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, flag_argument, integer_argument
from tfx_largeout.labels import Labels
from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.samplers.base import Candidates, OutputWeights, Sampler
from tfx_largeout.saving import check_registered

TF_SAMPLERS: dict[str, Callable[..., Any]] = {
    "log_uniform": tf.random.log_uniform_candidate_sampler,
    "uniform": tf.random.uniform_candidate_sampler,
    "learned_unigram": tf.random.learned_unigram_candidate_sampler,
    "fixed_unigram": tf.random.fixed_unigram_candidate_sampler,
}


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TFSampler(Sampler):
    """Candidates from a function like `tf.random.log_uniform_candidate_sampler`.

    The function gets the arguments of `tf.random.log_uniform_candidate_sampler` by name, except
    `seed`, and returns (ids `[S]`, expected counts of the labels, expected counts of the ids). It
    is called with one label per row, `[n, 1]`, for the n labels of the batch, padding left out.

    TensorFlow's samplers keep a state inside the op: `seed` of `sample` has no effect on them, and
    the same seed does not give the same candidates. For reproducible runs from the start of a
    process, pass a seed in `options`. `Uniform`, `LogUniform` and `Unigram` are stateless, and as
    fast.

    Args:
        function: `"log_uniform"`, `"uniform"`, `"learned_unigram"` or `"fixed_unigram"`, for
            `tf.random.*_candidate_sampler`, or a callable. To be saved with a model it must be one
            of these functions or be registered with Keras.
        num_sampled: S, at least 1; at most C if `unique`.
        unique: Passed on. Default True.
        options: Further arguments of the function, such as `{"unigrams": counts, "distortion":
            0.75}` for `"fixed_unigram"`. Default none.

    Raises:
        ValueError: An argument is out of range. When saved: `function` is not registered.
        tf.errors.InvalidArgumentError: An expected count is not above 0 and finite. Raised when the
            graph runs.
    """

    def __init__(
        self,
        function: str | Callable[..., Any],
        num_sampled: int,
        unique: bool = True,
        options: dict[str, Any] | None = None,
    ) -> None:
        self.function = named_function("function", function)
        self.num_sampled = integer_argument("num_sampled", num_sampled, at_least=1)
        self.unique = flag_argument("unique", unique)
        self.options = plain_options(options)

    def tabulate(self, num_classes: int) -> None:
        if self.unique:
            at_most_classes(
                "num_sampled", self.num_sampled, num_classes, 0, " for unique candidates"
            )

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        places = tf.where(labels.mask)
        ids, true_expected, sampled_expected = callable_of(self.function)(
            true_classes=tf.gather_nd(labels.ids, places)[:, tf.newaxis],
            num_true=1,
            num_sampled=self.num_sampled,
            unique=self.unique,
            range_max=self.num_classes,
            **self.options,
        )
        true_log_expected = tf.reshape(_log_of_counts("labels", true_expected), [-1])
        return Candidates(
            tf.cast(ids, tf.int64),
            _log_of_counts("candidates", sampled_expected),
            tf.scatter_nd(places, true_log_expected, tf.shape(labels.ids, tf.int64)),
        )

    def get_config(self) -> dict[str, Any]:
        check_registered("function", self.function)
        return super().get_config()


def named_function(argument: str, function: Any) -> Any:
    """Returns the name of one of TensorFlow's functions; any other callable unchanged."""
    for name, known in TF_SAMPLERS.items():
        if function is known:
            return name
    if not callable(function) and function not in list(TF_SAMPLERS):
        raise ValueError(
            f"{argument} must be one of {sorted(TF_SAMPLERS)} or a callable; got {function!r}"
        )
    return function


def callable_of(function: str | Callable[..., Any]) -> Callable[..., Any]:
    """Returns the function with this name; a callable unchanged."""
    return TF_SAMPLERS[function] if isinstance(function, str) else function


def plain_options(options: dict[str, Any] | None) -> dict[str, Any]:
    """Returns options in a form for JSON: lists instead of arrays."""
    return {
        key: value.tolist() if isinstance(value, np.ndarray) else value
        for key, value in (options or {}).items()
    }


def _log_of_counts(of: str, expected: tf.Tensor) -> tf.Tensor:
    expected = tf.cast(expected, tf.float32)
    right = (expected > 0) & (expected < np.inf)
    check = Check(
        tf.reduce_all(right),
        lambda: [
            f"expected counts of {of} must be above 0 and finite: a class that is never drawn has "
            "no estimate; got",
            tf.boolean_mask(expected, ~right)[:1],
        ],
    )
    with after([check]):
        return tf.math.log(expected)
