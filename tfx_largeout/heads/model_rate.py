# SPDX-License-Identifier: Apache-2.0
"""ModelRate: lets the learning rate of a head follow that of the model's optimizer."""

from __future__ import annotations

import warnings
import weakref
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from tfx_largeout.arguments import number_or

HIGHEST = "highest"


class ModelRate:
    """What a self-updating head knows of the optimizer of the model that it is trained in.

    The head's own rate goes with a reference rate of the model. While the model's is lower, or
    higher, the head's is so by the same factor:

        factor = (the model's present rate) / (the reference)

    Args:
        head: Name of the head, for messages.
        reference: A positive number; `"highest"`: the highest rate in training so far; None: the
            factor is always 1.

    Raises:
        ValueError: `reference` is none of these.
    """

    def __init__(self, head: str, reference: Any) -> None:
        self.head = head
        self.reference = number_or("model_rate", reference, (HIGHEST, None), above=0)
        self._optimizer: Any = lambda: None
        self._warned = False

    def meet(self, optimizer: Any, highest: tf.Variable, kind: tf.Variable) -> None:
        """Takes notice of the optimizer of the model whose training step is traced or run.

        Args:
            optimizer: The optimizer, or None where a loop of the user's own trains.
            highest: The head's weight that keeps the highest rate, `[]`; 0 if there was none yet.
            kind: Its weight that keeps the class of the optimizer, `[]` int64; 0 likewise.

        Raises:
            ValueError: There is a rate to follow, and the optimizer has none, as `MultiOptimizer`.
        """
        if optimizer is self._optimizer():
            return
        follows = optimizer is not None and self.reference is not None
        if follows and not hasattr(optimizer, "learning_rate"):
            raise ValueError(
                f"model_rate of head {self.head!r} must be None with an optimizer that has no "
                f"learning rate of its own to follow; got {self.reference!r} with "
                f"{type(optimizer).__name__}"
            )
        self._optimizer = (lambda: None) if optimizer is None else weakref.ref(optimizer)
        with tf.init_scope():
            known = kind.numpy()  # empty while the first trace of an unbuilt model makes weights
            if optimizer is not None and known.size and known not in (0, _kind_of(optimizer)):
                highest.assign(0.0)  # the rates of two methods don't compare

    def factor(self, highest: tf.Variable) -> tf.Tensor | None:
        """Returns the factor of the head's rate in the present step, `[]` float32; None for 1."""
        if self._optimizer() is None or self.reference is None:
            return None
        present = self._present()
        if self.reference != HIGHEST:
            return present / self.reference
        return tf.math.divide_no_nan(present, tf.maximum(present, highest))

    def note(self, highest: tf.Variable, kind: tf.Variable) -> None:
        """Keeps the rate of a step that was taken; warns, once, of a warm-up without the head."""
        optimizer = self._optimizer()
        if optimizer is None or self.reference != HIGHEST:
            return
        present = self._present()

        def tell() -> tf.Tensor:
            told = tf.numpy_function(self._warn, [highest > 0], tf.int32)
            with tf.control_dependencies([told]):
                highest.assign(present)
                kind.assign(_kind_of(optimizer))
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
                f"{self.head!r} was trained with, so that the head takes no part in the rise. To "
                "let it warm up with the model, give it model_rate=..., the model's rate at which "
                "its own learning rate holds; to keep it apart, model_rate=None.",
                RuntimeWarning,
                stacklevel=2,
            )
        return np.int32(0)


def _kind_of(optimizer: Any) -> int:
    """Returns a number above 0 that stands for the class of an optimizer."""
    return 1 + zlib.crc32(type(optimizer).__name__.encode())
