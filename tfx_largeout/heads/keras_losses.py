# SPDX-License-Identifier: Apache-2.0
"""Keras's own losses of a model that ends in a head: those that want probabilities are refused."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from tfx_largeout.keras_internals import is_functional, last_layer, options_of_function


def refuse_loss_of_probabilities(head: Any, model: Any) -> None:
    """Refuses a loss of Keras that would take logits for probabilities.

    Training would go on without a word, to a worse end: Keras clips what is no probability.

    Args:
        head: The head that is called.
        model: The model that calls it; None outside of models. Only where it is seen that the
            model ends in the head is anything refused.

    Raises:
        ValueError: The model was compiled with such a loss.
    """
    loss = getattr(model, "loss", None)
    if loss is None or not is_functional(model) or last_layer(model) is not head:
        return
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    wants = options_of_function(loss).get("from_logits")
    if wants is None and inspect.isfunction(loss):
        argument = inspect.signature(loss).parameters.get("from_logits")
        wants = None if argument is None else argument.default
    if wants is False:
        name = getattr(loss, "__name__", None) or type(loss).__name__
        raise ValueError(
            f"the loss must have from_logits=True, as {type(head).__name__} {head.name!r} gives "
            f"logits; got {name} of probabilities. Take tlo.losses.SoftmaxCrossentropy(), or "
            "keras.losses.SparseCategoricalCrossentropy(from_logits=True)."
        )
