# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's registry of custom gradients, which keeps what their functions hold.

The optimizers of Keras go through a `tf.custom_gradient`, and so do heads that update themselves:
TensorFlow keeps the function, and the traced step and the model with it, as long as the process
lives (docs/reliability.md, "Several models in one process").
"""

from __future__ import annotations

from tensorflow.python.framework import ops


def custom_gradients():
    """The names of what is registered."""
    names = ops.gradient_registry._registry
    return {name for name in names if name.startswith("CustomGradient-")}


def forget_custom_gradients():
    """Lets go of the models that were trained."""
    for name in custom_gradients():
        del ops.gradient_registry._registry[name]
