# SPDX-License-Identifier: Apache-2.0
"""A context in which heads leave out their logits."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar

_GIVES_LOGITS = ContextVar("gives_logits", default=True)


@contextlib.contextmanager
def without_logits() -> Iterator[None]:
    """A context in which heads give `[..., 0]` in place of logits, with what rides on them.

    A graph that is written to a file then has nothing of W that nobody reads.
    """
    token = _GIVES_LOGITS.set(False)
    try:
        yield
    finally:
        _GIVES_LOGITS.reset(token)


def gives_logits() -> bool:
    """Says whether heads compute logits here."""
    return _GIVES_LOGITS.get()
