# SPDX-License-Identifier: Apache-2.0
"""When the tables of an index are brought up to date, and the clock by which they are marked."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.indexes.base import HOST
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.hashing.hash_tables import HashTables
from tfx_largeout.ops.rows.variable_rows import signed, unsigned

_TABLES_OF_SLICE = 2  # more would hold up a step, fewer would read W more often


class Turn(NamedTuple):
    """Which tables are brought up to date in a step. All but the last three are scalars of float64.

    Attributes:
        due: How many tables are due, those of this step among them; a fraction stays.
        first: The first table whose turn it is.
        end: The one after the last; `first` if it is not yet time.
        period: The number of steps in which all tables have their turn.
        moved: How many classes have moved in this round so far, over all tables.
        tables: `[2]` int64: the first table, and the one after the last.
        begins_round: Whether there are tables whose turn it is, and the first is one.
        ends_round: Whether all tables have had their turn then.
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
        """Returns the schedule after the step; over several workers the same on all of them.

        Args:
            rows: Those that the tables are over.
            moved: How many of them moved in it.
            growth: The next period over this one, or this one over the next.
            shortest: What no period is below.
            most: How many classes may move in a round, over all tables and workers, for the period
                to grow. `math.inf`: it grows in any case.
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
    """Numbers all times anew, from 0, where the clock has come to its end.

    What counts is whether a row was marked after a table was built. That stays as it is: what lies
    between the times of two tables, in their order, gets one number.
    """
    built_at, touched_at = signed(tables.built_at.value), signed(tables.touched_at.value)
    built = tf.sort(built_at)
    tables.touched_at.assign(unsigned(2 * tf.searchsorted(built, touched_at, "left")))
    tables.built_at.assign(unsigned(2 * tf.searchsorted(built, built_at, "right") - 1))
    clock.assign(2 * tables.built_at.shape[0])
    return tf.constant(True)
