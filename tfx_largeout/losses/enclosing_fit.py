# SPDX-License-Identifier: Apache-2.0
"""What a training method of Keras was called with, for errors that only its call can explain."""

from __future__ import annotations

import inspect
from typing import Any

import keras

_METHODS = ("fit", "train_on_batch")


def enclosing_fit() -> dict[str, Any] | None:
    """Returns the arguments of the innermost `fit` or `train_on_batch` of a model that is running.

    Keras hands neither a layer nor a loss what it was called with. It is called while a step is
    traced, not in each step.

    Returns:
        The local variables of the method, `self` among them; None outside of these methods.
    """
    frame = inspect.currentframe()
    while frame is not None:
        if frame.f_code.co_name in _METHODS and isinstance(frame.f_locals.get("self"), keras.Model):
            return frame.f_locals
        frame = frame.f_back
    return None
