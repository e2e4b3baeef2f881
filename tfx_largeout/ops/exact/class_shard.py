# SPDX-License-Identifier: Apache-2.0
"""Which classes of a layer a matrix has the rows of."""

from __future__ import annotations

from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.run_time_checks import Check


class ClassShard(NamedTuple):
    """A shard of the classes of a layer: row r of its matrices is class first + stride r.

    Attributes:
        first: The class of row 0, a number or a scalar tensor.
        stride: From the class of one row to that of the next, at least 1; a number or a scalar
            tensor.
        num_classes: How many classes the layer has, a number or a scalar tensor. Default None: as
            many as there are rows, so that `ClassShard()` is a layer that is not divided.
    """

    first: Any = 0
    stride: Any = 1
    num_classes: Any = None

    def tensors(self, num_rows: Any) -> ClassShard:
        """Returns the same in int64 scalars, on the host, for a matrix with so many rows."""
        num_classes = num_rows if self.num_classes is None else self.num_classes
        with tf.device("CPU:0"):
            numbers = [tf.cast(x, tf.int64) for x in (self.first, self.stride, num_classes)]
        return ClassShard(*numbers)

    def check(self, num_rows: Any) -> Check:
        """Returns a check that every row is a class of the layer. For `tensors`."""
        num_rows = tf.cast(num_rows, tf.int64)
        last = (self.num_classes - 1 - self.first) // tf.maximum(self.stride, 1)
        fits = (self.first < self.num_classes) & (last >= num_rows - 1)
        rule = (
            "first_class, class_stride and num_classes must be such that each row r is the class "
            "first_class + class_stride r in [0, num_classes); got"
        )
        return Check(
            (self.first >= 0)
            & (self.stride >= 1)
            & (self.num_classes >= 0)
            & (fits | (num_rows == 0)),
            lambda: [rule, *self, "for rows", num_rows],
        )

    def class_of(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns the ids of rows. For `tensors`."""
        return self.first + self.stride * rows

    def row_of(self, ids: tf.Tensor, num_rows: Any) -> tf.Tensor:
        """Returns the rows of classes, -1 for padding and those of other shards. For `tensors`."""
        stride = tf.maximum(tf.cast(self.stride, tf.int64), 1)  # `check` refuses others
        offset = ids - self.first
        row = offset // stride
        is_here = (offset >= 0) & (offset % stride == 0) & (row < tf.cast(num_rows, tf.int64))
        return tf.where(is_here, row, -1)
