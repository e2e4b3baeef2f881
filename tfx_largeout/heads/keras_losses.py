# SPDX-License-Identifier: Apache-2.0
"""Keras's own losses behind a head: those that want probabilities are refused."""

from __future__ import annotations

import inspect
from typing import Any

import keras

from tfx_largeout.keras_internals import (
    in_train_step,
    is_functional,
    last_layer,
    options_of_function,
)
from tfx_largeout.statistics import SoftmaxStatistics


def losses_of(kinds: tuple[type, ...]) -> list[str]:
    """Returns the names of the losses that Keras knows whose `trains_on` is one of some kinds."""
    known = keras.saving.get_custom_objects().values()
    losses = [x for x in known if isinstance(x, type) and issubclass(x, keras.Loss)]
    return sorted({x.__name__ for x in losses if getattr(x, "trains_on", None) in kinds})


def refuse_loss_of_probabilities(head: Any, model: Any) -> None:
    """Refuses, in a training step, a loss of Keras that would take logits for probabilities.

    Training would go on without a word, to a worse end: Keras clips what is no probability. A model
    of which it is not seen that it ends in the head, or whose step is its own, is let be.
    """
    loss = _only(getattr(model, "loss", None))
    is_step = loss is not None and is_functional(model) and (in_train_step() or model.run_eagerly)
    if not is_step or not trains_as_keras_does(model) or last_layer(model) is not head:
        return
    if _wants_probabilities(loss):
        name = getattr(loss, "__name__", None) or (loss if isinstance(loss, str) else None)
        named = ", ".join(losses_of(head.gives))
        same = "the same loss with from_logits=True, or " if SoftmaxStatistics in head.gives else ""
        raise ValueError(
            f"the loss must be one of logits, which {type(head).__name__} {head.name!r} gives; got "
            f"{name or type(loss).__name__} of probabilities. Take {same}a loss of tlo.losses: "
            f"{named}."
        )


def trains_as_keras_does(model: Any) -> bool:
    """Says whether a step of `fit` takes one gradient, and then the optimizer's step."""
    return all(
        getattr(getattr(model, name), "__func__", None) is getattr(keras.Model, name)
        for name in ("train_step", "compute_loss")
    )


def _only(loss: Any) -> Any:
    """Returns the loss of the one output of a model, however it was given."""
    parts = list(loss.values()) if isinstance(loss, dict) else loss
    return parts[0] if isinstance(parts, (list, tuple)) and len(parts) == 1 else loss


def _wants_probabilities(loss: Any) -> bool:
    if isinstance(loss, str):
        loss = keras.losses.get(loss)
    if inspect.isfunction(loss) or inspect.isclass(loss):
        argument = inspect.signature(loss).parameters.get("from_logits")
        return argument is not None and argument.default is False
    return options_of_function(loss).get("from_logits") is False
