# SPDX-License-Identifier: Apache-2.0
"""Lets a model that was trained go: TensorFlow would keep it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorflow.python.framework import ops


@contextlib.contextmanager
def custom_gradients_forgotten() -> Iterator[None]:
    """A context at whose end TensorFlow forgets the custom gradients that were traced in it.

    It keeps the function of each as long as the process lives, and all that the function holds, W
    among it (docs/reliability.md). What was traced before goes on to work; graphs of models that
    were trained in the context can't be differentiated again.

    No public name does it: `gradient_registry._registry`.
    """
    registered = getattr(ops.gradient_registry, "_registry", {})
    before = set(registered)
    try:
        yield
    finally:
        for name in set(registered) - before:
            if name.startswith("CustomGradient-"):
                del registered[name]
