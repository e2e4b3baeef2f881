# SPDX-License-Identifier: Apache-2.0
"""A step of a head alone, without a model."""

from __future__ import annotations

import tensorflow as tf


def take_step(head, loss, hidden, labels, weights=None):
    """Returns the loss and its gradient with respect to h."""
    with tf.GradientTape() as tape:
        tape.watch(hidden)
        value = loss(labels, head(hidden, training=True), weights)
    gradient = tape.gradient(value, hidden)
    head.take_step()
    return value, gradient
