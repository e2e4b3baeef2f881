# SPDX-License-Identifier: Apache-2.0
"""LabelIntervals: estimates how often each class is a label, from the stream of batches."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument
from tfx_largeout.indexes.base import Index, filled
from tfx_largeout.labels import PADDING, Labels
from tfx_largeout.memory import Weight
from tfx_largeout.ops.rows.variable_rows import bare_variable, gather, scatter_update
from tfx_largeout.ops.sorted_search import is_in


class Arrivals(NamedTuple):
    """The distinct labels of a batch, and the estimate after this batch.

    Attributes:
        ids: `[n]` int64, in the order of occurrence; includes -1 if there is padding.
        places: The position in `ids` of each label, in the shape of the labels.
        intervals: `[n]` float32, B; undefined at padding.
        numbers: `[n]` int64, the number of batches with the label.
    """

    ids: tf.Tensor
    places: tf.Tensor
    intervals: tf.Tensor
    numbers: tf.Tensor


@keras.saving.register_keras_serializable(package="tfx_largeout")
class LabelIntervals(Index):
    """Estimates from the stream of batches how likely each class is among the labels of a batch.

    For each class c that is a label in step t (1 is the first), the n-th time:

        B_c <- (1 - a) B_c + a (t - A_c),  A_c <- t,  a = max(decay, 1/n)

    A_c is the last step in which c was a label. So B_c is the mean interval between such steps, and
    1/B_c an estimate of the probability that a batch has c. A class that was never a label has A =
    0. The batch of a step is part of the estimate for this step.

    It is the `index` of a head with the sampler `InBatch` (see there). It does not use W.

    Cost: O(n log n) per step with n labels in the batch; 20 bytes per class.

    Args:
        decay: The smallest weight of the latest interval in B, in (0, 1]. Default 0.01: B is the
            mean of all intervals up to the hundredth, then follows changes.
        **kwargs: `name`, as for any Keras layer.

    Raises:
        ValueError: `decay` is out of range.
        RuntimeError: When a head with it is built, over several workers.

    Deviations: The paper has a fixed a, so B keeps a part (1 - a)^n of its initial value. It uses a
        hash table of items; here classes have ids.

    References:
        Yi, Yang, Hong, Cheng, Heldt, Kumthekar, Zhao, Wei, Chi 2019, Sampling-bias-corrected neural
        modeling for large corpus item recommendations, algorithm 2.
    """

    follows_kernel: ClassVar[bool] = False

    def __init__(self, decay: float = 0.01, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decay = number_argument("decay", decay, above=0, at_most=1)

    def build(self, input_shape: tuple[int, int]) -> None:
        self._shape = input_shape[0], input_shape[1]  # the shape of W
        classes = input_shape[:1]
        self.intervals = self.add_derived("intervals", filled(classes, "float32"))
        self.last_steps = self.add_derived("last_steps", filled(classes, "int64"))
        self.numbers = self.add_derived("numbers", filled(classes, "int64"))
        self.clock = self.add_derived("clock", filled((), "int64"))
        super().build(input_shape)

    def weights_of(self, num_classes: int, width: int) -> list[Weight]:
        dtypes = ("float32", "int64", "int64")
        return [Weight((num_classes,), dtype, "index") for dtype in dtypes]

    def rebuild(self, kernel: Any, bias: Any = None) -> None:
        """Only builds it: the estimate does not depend on W."""
        self.kernel_of(kernel, build=True)

    def update(self, kernel: Any, bias: Any, touched: tf.Tensor) -> None:
        """Does nothing."""

    def arrivals(self, labels: Labels) -> Arrivals:
        """Returns the distinct labels of the next batch, with the estimate after it."""
        ids, places = tf.unique(tf.reshape(labels.ids, [-1]), tf.int64)
        rows = tf.maximum(ids, 0)
        numbers = 1 + self._at(self.numbers, rows)
        share = tf.maximum(1 / tf.cast(numbers, tf.float32), self.decay)
        interval = tf.cast(self._step() - self._at(self.last_steps, rows), tf.float32)
        before = self._at(self.intervals, rows)
        intervals = before + share * (interval - before)
        return Arrivals(ids, tf.reshape(places, tf.shape(labels.ids)), intervals, numbers)

    def earlier(self, num_batches: int, without: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the labels of the last batches, in rising order, and their B.

        Cost: O(C) comparisons.

        Args:
            num_batches: The number of batches.
            without: `[n]` int64, classes to leave out.
        """
        last = self.last_steps.value
        is_recent = (last > 0) & (last >= self._step() - num_batches)
        ids = tf.squeeze(tf.where(is_recent), axis=1)
        left_out = tf.sort(tf.concat([without, [tf.int64.max]], axis=0))
        ids = tf.boolean_mask(ids, ~is_in(left_out, ids))
        return ids, self._at(self.intervals, ids)

    def note(self, labels: Labels) -> None:
        """Counts a batch, and updates the estimate by its labels."""
        arrivals = self.arrivals(labels)
        is_label = arrivals.ids != PADDING
        ids, intervals, numbers = (
            tf.boolean_mask(part, is_label)
            for part in (arrivals.ids, arrivals.intervals, arrivals.numbers)
        )
        step = self._step()
        with tf.control_dependencies([intervals, numbers, step]):
            for weight, values in (
                (self.intervals, intervals),
                (self.numbers, numbers),
                (self.last_steps, tf.fill(tf.shape(ids), step)),
            ):
                scatter_update(bare_variable(weight), ids, values)
            bare_variable(self.clock).assign(step)

    def health(self, kernel: Any, bias: Any = None) -> dict[str, tf.Tensor]:
        """Returns the share of the classes that were a label at least once."""
        return {"seen": tf.reduce_mean(tf.cast(self.numbers.value > 0, tf.float32))}

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "decay": self.decay}

    def _step(self) -> tf.Tensor:
        """The number of the present step."""
        return self.clock.value + 1

    @staticmethod
    def _at(weight: Any, ids: tf.Tensor) -> tf.Tensor:
        return gather(bare_variable(weight), ids)
