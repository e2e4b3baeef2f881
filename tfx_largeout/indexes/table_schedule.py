# SPDX-License-Identifier: Apache-2.0
"""When the tables of an index are updated, and the clock that marks their age."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.devices import HOST
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.hash_tables import HashTables
from tfx_largeout.ops.rows.variable_rows import signed, unsigned

_TABLES_OF_SLICE = 2  # more would slow down a step, fewer would read W more often


class Turn(NamedTuple):
    """The tables that are updated in a step. All except the last three are float64 scalars.

    Attributes:
        due: The number of due tables, including this step's; a fraction is carried over.
        first: The first table to update.
        end: The table after the last; `first` if none is due.
        period: The number of steps in which all tables are updated.
        moved: The number of classes moved in this round so far, over all tables.
        tables: `[2]` int64: the first table, and the one after the last.
        begins_round: Whether tables are updated, starting with the first one.
        ends_round: Whether all tables are then updated.
    """

    due: tf.Tensor
    first: tf.Tensor
    end: tf.Tensor
    period: tf.Tensor
    moved: tf.Tensor
    tables: tf.Tensor
    begins_round: tf.Tensor
    ends_round: tf.Tensor

    @classmethod
    def of(cls, schedule: tf.Tensor, num_tables: int) -> Turn:
        """Returns the turn of the step after `schedule` `[4]`: due, first, period and moved."""
        with tf.device(HOST):
            due, first, period, moved = tf.unstack(schedule)
            due += num_tables / period
            is_time = due >= min(_TABLES_OF_SLICE, num_tables)
            most = tf.minimum(tf.floor(due), num_tables - first)
            end = first + tf.where(is_time, most, tf.zeros_like(due))
            tables = tf.cast(tf.stack([first, end]), tf.int64)
            begins, ends = is_time & (first == 0), end >= num_tables
        return cls(due, first, end, period, moved, tables, begins, ends)

    def after(
        self, rows: ClassRows, moved: tf.Tensor, growth: float, shortest: float, most: float
    ) -> tf.Tensor:
        """Returns the schedule after the step; the same on all workers.

        Args:
            rows: The rows of the tables.
            moved: The number of rows that moved in it.
            growth: The ratio of the next period and this one, or the inverse.
            shortest: The shortest period.
            most: The largest number of classes that may move in a round, over all tables and
                workers, for the period to grow. `math.inf`: it always grows.
        """
        if most < math.inf:
            moved = rows.workers.sum(moved, f"{rows.site}/moved")
        with tf.device(HOST):
            none = tf.zeros_like(self.due)
            total = self.moved + tf.cast(moved, self.moved.dtype)
            shorter = tf.maximum(self.period / growth, shortest)
            next_period = tf.where(total > most, shorter, self.period * growth)
            return tf.stack(
                [
                    self.due - (self.end - self.first),
                    tf.where(self.ends_round, none, self.end),
                    tf.where(self.ends_round, next_period, self.period),
                    tf.where(self.ends_round, none, total),
                ]
            )


def first_schedule(period: float) -> np.ndarray:
    """Returns the schedule before the first step: nothing is due; see `Turn.of`."""
    return np.array([0.0, 0.0, period, 0.0])


def renumber(tables: HashTables, clock: Any) -> tf.Tensor:
    """Renumbers all times from 0 when the clock overflows.

    Only whether a row was marked after a table was built matters. So all times between
    two consecutive tables get the same number.
    """
    built_at, touched_at = signed(tables.built_at.value), signed(tables.touched_at.value)
    built = tf.sort(built_at)
    tables.touched_at.assign(unsigned(2 * tf.searchsorted(built, touched_at, "left")))
    tables.built_at.assign(unsigned(2 * tf.searchsorted(built, built_at, "right") - 1))
    clock.assign(2 * tables.built_at.shape[0])
    return tf.constant(True)
