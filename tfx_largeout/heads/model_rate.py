# SPDX-License-Identifier: Apache-2.0
"""ModelRate: lets the learning rate of a head follow the rate of the model's optimizer."""

from __future__ import annotations

import warnings
import weakref
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

HIGHEST = "highest"


class ModelRate:
    """What a self-updating head knows about the optimizer of its model.

    The head's rate is multiplied by a factor that compares the model's rate with a reference,
    `head.model_rate`: a number, `"highest"` (the highest rate in training so far), or None (the
    factor is 1):

        factor = (the model's present rate) / (the reference)

    Two weights of the head store this: `highest_model_rate` and `model_optimizer`, a number for the
    class of the optimizer. Both are 0 at first.
    """

    def __init__(self, head: Any) -> None:
        # TensorFlow never frees functions that a graph calls, such as `_warn`.
        self._head_behind = weakref.ref(head)
        self._optimizer: Any = lambda: None
        self._warned = False

    @property
    def _head(self) -> Any:
        return self._head_behind()

    def meet(self, optimizer: Any) -> None:
        """Stores the optimizer with whose step the head takes its own; None: there is none.

        Raises:
            ValueError: The head follows the model's rate, but the optimizer has none
                (`MultiOptimizer`).
        """
        known, reference = self._head.model_optimizer.value, self._head.model_rate
        if optimizer is self._optimizer() or not isinstance(known, tf.Variable):
            return  # no variables exist while Keras infers shapes
        follows = optimizer is not None and reference is not None
        if follows and not hasattr(optimizer, "learning_rate"):
            raise ValueError(
                f"model_rate of head {self._head.name!r} must be None with an optimizer that has "
                f"no learning rate to follow; got {reference!r} with "
                f"{type(optimizer).__name__}"
            )
        self._optimizer = (lambda: None) if optimizer is None else weakref.ref(optimizer)
        with tf.init_scope():
            known = known.numpy()  # empty while the first trace of an unbuilt model makes weights
            if optimizer is not None and known.size and known not in (0, _kind_of(optimizer)):
                # The rates of two methods can't be compared.
                self._head.highest_model_rate.value.assign(0.0)

    def factor(self) -> tf.Tensor | None:
        """Returns the factor of the head's rate in the present step, `[]` float32; None for 1."""
        reference = self._head.model_rate
        if self._optimizer() is None or reference is None:
            return None
        present = self._present()
        if reference != HIGHEST:
            return present / reference
        highest = self._head.highest_model_rate.value
        return tf.math.divide_no_nan(present, tf.maximum(present, highest))

    def note(self) -> None:
        """Stores the rate of a taken step; warns once if the head does not follow a warm-up."""
        optimizer, highest = self._optimizer(), self._head.highest_model_rate.value
        if optimizer is None or self._head.model_rate != HIGHEST:
            return
        present = self._present()

        def tell() -> tf.Tensor:
            told = tf.numpy_function(self._warn, [highest > 0], tf.int32)
            with tf.control_dependencies([told]):
                highest.assign(present)
                self._head.model_optimizer.value.assign(_kind_of(optimizer))
            return told

        # Few ops are outside of the rare branch, since each costs as much as a small op of the
        # step.
        tf.cond(present > highest, tell, lambda: tf.constant(0))

    def _present(self) -> tf.Tensor:
        return tf.cast(tf.convert_to_tensor(self._optimizer().learning_rate), tf.float32)

    def _warn(self, has_a_past: bool) -> np.int32:
        if has_a_past and not self._warned:
            self._warned = True
            warnings.warn(
                "the learning rate of the model's optimizer has risen above all that head "
                f"{self._head.name!r} was trained with, so that the head takes no part in the "
                "rise. To let it warm up with the model, give it model_rate=..., the model's rate "
                "for which the head's learning rate is meant; to keep it apart, model_rate=None.",
                RuntimeWarning,
                stacklevel=2,
            )
        return np.int32(0)


def _kind_of(optimizer: Any) -> int:
    """Returns a number above 0 that identifies the class of an optimizer."""
    return 1 + zlib.crc32(type(optimizer).__name__.encode())
