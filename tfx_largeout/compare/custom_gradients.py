# SPDX-License-Identifier: Apache-2.0
"""Lets a model that was trained go: TensorFlow would keep it.

Optimizers of Keras go through a `tf.custom_gradient`, as do heads that update themselves.
TensorFlow keeps the function of each as long as the process lives, and all that the function holds:
the traced step, and W with it (docs/reliability.md, "Several models in one process").
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from tensorflow.python.framework import ops


def custom_gradients() -> set[str]:
    """Returns the names of the custom gradients that TensorFlow keeps.

    No public name has them: `gradient_registry._registry`.
    """
    registered = getattr(ops.gradient_registry, "_registry", {})
    return {name for name in registered if name.startswith("CustomGradient-")}


@contextlib.contextmanager
def custom_gradients_forgotten() -> Iterator[None]:
    """A context at whose end TensorFlow forgets the custom gradients that were traced in it.

    What was traced before goes on to work; graphs of models that were trained in the context can't
    be differentiated again.
    """
    before = custom_gradients()
    try:
        yield
    finally:
        for name in custom_gradients() - before:
            del ops.gradient_registry._registry[name]
