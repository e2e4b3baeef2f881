# SPDX-License-Identifier: Apache-2.0
"""Logits of all classes: a warning where they need much memory, and a context without them."""

from __future__ import annotations

import contextlib
import math
import warnings
import weakref
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import full_name

_MOST_BYTES = 2**30
_GIVES_LOGITS = ContextVar("gives_logits", default=True)


@contextlib.contextmanager
def without_logits() -> Iterator[None]:
    """A context in which heads return `[..., 0]` instead of logits, with the `HeadOutput`.

    An exported graph then does not contain an unused W.
    """
    token = _GIVES_LOGITS.set(False)
    try:
        yield
    finally:
        _GIVES_LOGITS.reset(token)


def gives_logits() -> bool:
    """Says whether heads compute logits here."""
    return _GIVES_LOGITS.get()


def watch_logits(head: Any, model: Any, hidden: tf.Tensor) -> None:
    """Warns, once for each head, where its logits take more than 1 GiB.

    This covers a call outside of a graph, one batch of `predict`, and all batches that `predict`
    keeps. The latter are counted as they come, because their number may be unknown.
    """
    if tf.executing_eagerly():
        _warn_if_many(head, math.prod(hidden.shape[:-1]))
    if not isinstance(model, keras.Model) or not getattr(model, "predict_function", None):
        return
    function = model.predict_function
    if not isinstance(function, _Watched):
        model.predict_function = _Watched(function, head)
    rows, outputs = hidden.shape[:-1].num_elements(), getattr(model, "outputs", None) or []
    name = getattr(getattr(function, "python_function", None), "__name__", None)
    is_predict = not tf.executing_eagerly() and tf.compat.v1.get_default_graph().name == name
    if is_predict and rows and any(each.shape[-1] == head.num_classes for each in outputs):
        _warn_if_many(head, rows)  # a first batch, which may be the only one


class _Watched:
    """A model's `predict_function` that counts how many of the logits it returned are kept."""

    def __init__(self, function: Any, head: Any) -> None:
        self._function = function
        self._head = head
        self._rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._function, name)

    def __call__(self, data: Any) -> Any:
        outputs = self._function(data)
        for tensor in keras.tree.flatten(outputs):
            if isinstance(tensor, tf.Tensor) and tensor.shape[-1:] == [self._head.num_classes]:
                rows = math.prod(tensor.shape[:-1])
                self._rows += rows
                weakref.finalize(tensor, self._forget, rows).atexit = False
        _warn_if_many(self._head, self._rows)
        return outputs

    def _forget(self, rows: int) -> None:
        self._rows -= rows


def _warn_if_many(head: Any, rows: int) -> None:
    size = rows * head.num_classes * tf.as_dtype(head.logits_dtype).size
    if size <= _MOST_BYTES or head.has_warned_of_logits:
        return
    head.has_warned_of_logits = True
    warnings.warn(
        f"{full_name(head)} returns all logits: {rows:,} rows (so far) of C={head.num_classes:,} "
        f"classes are {size / 1e9:.1f} GB. For the best classes of each row use "
        "tlo.top_k_model(model, k), which never makes the others.",
        RuntimeWarning,
        stacklevel=2,
    )
