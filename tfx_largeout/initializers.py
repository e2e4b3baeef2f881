# SPDX-License-Identifier: Apache-2.0
"""Initializers of biases."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfx_largeout.class_counts import (
    check_length,
    class_counts,
    smoothed,
    smoothing_argument,
)
from tfx_largeout.saving import pack_array


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LogFrequency(keras.initializers.Initializer):
    """A bias that starts at the log frequency of each class.

    b_c = log((n_c + a) / sum_d (n_d + a)),  where a is the smoothing

    At the start W h is near 0, so the softmax equals the class frequencies. With a bias of 0,
    training must first learn these, class by class; with a sampled loss that takes epochs. Samplers
    that follow the model, such as `MIDX`, draw by frequency from the first step on. The loss was
    lower with it in all our measurements; P@1 is not always better (docs/guides/choose.md).

        bias = tlo.initializers.LogFrequency(train.label_counts())
        head = tlo.heads.SampledHead(C, sampler, row_optimizer, bias_initializer=bias)

    In a saved model the counts are compressed.

    Args:
        counts: `[C]` numbers n_c, finite and at least 0, such as `label_counts()` of a
            `SparseExamples`.
        smoothing: a, at least 0. Default None: 0 if all counts are positive; else half of the
            smallest positive count, so that an unseen class is rarer than any seen one.

    Raises:
        TypeError: `counts` are not numbers.
        ValueError: A count is negative or not finite, or 0 with a smoothing of 0. At the call: the
            shape is not `[C]`.
    """

    def __init__(self, counts: Any, smoothing: float | None = None) -> None:
        self.counts = class_counts(counts)
        self.smoothing = smoothing_argument(smoothing)
        smoothed(self.counts, self.smoothing)  # raises if a logarithm is not finite

    def __call__(self, shape: Any, dtype: Any = None) -> tf.Tensor:
        """Returns b, `[C]`."""
        if len(shape) != 1:
            raise ValueError(f"shape must be [C], as a bias has it; got {tuple(shape)}")
        check_length(self.counts, shape[0])
        counts = smoothed(self.counts, self.smoothing)
        log_shares = np.log(counts) - np.log(counts.sum(dtype=np.float64))
        return tf.cast(log_shares, dtype or keras.config.floatx())

    def get_config(self) -> dict[str, Any]:
        return {"counts": pack_array(self.counts), "smoothing": self.smoothing}
