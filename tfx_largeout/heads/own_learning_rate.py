# SPDX-License-Identifier: Apache-2.0
"""OwnLearningRate: the learning rate of a head that takes its steps without an optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import number_argument


class OwnLearningRate:
    """A variable that callbacks can set, or a schedule over the head's own count of steps.

    Args:
        value: A number above 0, a `keras.optimizers.schedules.LearningRateSchedule`, or what
            `config` returned.

    Raises:
        ValueError: `value` is none of these.
    """

    def __init__(self, value: Any) -> None:
        self.schedule: Any = None
        self.variable: Any = None
        if isinstance(value, dict):
            value = keras.optimizers.schedules.deserialize(value)
        if isinstance(value, keras.optimizers.schedules.LearningRateSchedule):
            self.schedule = value
        else:
            self.first = number_argument("learning_rate", value, above=0)

    def build(self, add: Callable[[Any], Any]) -> None:
        """Makes the variable, if there is to be one.

        Args:
            add: Makes a scalar variable from an initializer.
        """
        if self.schedule is None:
            # Not `Constant`, which goes through float32.
            self.variable = add(lambda _, dtype: tf.constant(self.first, dtype))

    def at(self, step: Any) -> Any:
        """Returns the variable (before it is made, a number), or the schedule's value at a step."""
        if self.schedule is not None:
            return self.schedule(step)
        return self.first if self.variable is None else self.variable

    def set(self, value: Any) -> None:
        """Sets the variable.

        Raises:
            ValueError: The value is not a number above 0.
            TypeError: There is a schedule.
        """
        if self.schedule is not None:
            raise TypeError(
                "learning_rate can't be set on a head that was made with a "
                f"LearningRateSchedule; got {value!r}"
            )
        value = number_argument("learning_rate", value, above=0)
        if self.variable is None:
            self.first = value
        else:
            self.variable.assign(value)

    @property
    def config(self) -> Any:
        """The argument, for JSON."""
        if self.schedule is None:
            return self.first
        return keras.optimizers.schedules.serialize(self.schedule)
