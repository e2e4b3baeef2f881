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
    """What a self-updating head knows of the optimizer of the model that it is trained in.

    The head's own rate goes with a reference rate of the model, `head.model_rate`: a number,
    `"highest"` (the highest rate in training so far), or None. While the model's is lower, or
    higher, the head's is so by the same factor, which is 1 with None:

        factor = (the model's present rate) / (the reference)

    Two weights of the head keep what is known: `highest_model_rate`, 0 if there was none yet, and
    `model_optimizer`, which stands for the class of the optimizer, 0 likewise.
    """

    def __init__(self, head: Any) -> None:
        # TensorFlow keeps functions that a graph calls, such as `_warn`, for good.
        self._head_behind = weakref.ref(head)
        self._optimizer: Any = lambda: None
        self._warned = False

    @property
    def _head(self) -> Any:
        return self._head_behind()

    def meet(self, optimizer: Any) -> None:
        """Takes notice of the optimizer whose step the head's belongs to; None: there is none.

        Raises:
            ValueError: There is a rate to follow, and the optimizer has none, as `MultiOptimizer`.
        """
        known, reference = self._head.model_optimizer.value, self._head.model_rate
        if optimizer is self._optimizer() or not isinstance(known, tf.Variable):
            return  # there are no variables while Keras only finds out shapes
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
                # The rates of two methods don't compare.
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
        """Keeps the rate of a step that was taken; warns, once, of a warm-up without the head."""
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

        # Few ops stand outside of the rare case: each takes as long as a small op of the step.
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
    """Returns a number above 0 that stands for the class of an optimizer."""
    return 1 + zlib.crc32(type(optimizer).__name__.encode())
