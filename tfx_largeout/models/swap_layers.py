# SPDX-License-Identifier: Apache-2.0
"""A Functional or Sequential model with other layers in some places."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
from keras.src.models.functional import Functional

_CALLS = (Functional.call, keras.Sequential.call)


def is_graph(layer: Any) -> bool:
    """Says whether a layer is a Functional or Sequential model without a `call` of its own."""
    return isinstance(layer, (Functional, keras.Sequential)) and type(layer).call in _CALLS


def graph_of(model: keras.Model) -> Functional:
    """Returns the graph of layers of a Functional or Sequential model.

    Raises:
        ValueError: The model is a Sequential one that does not know its input.
    """
    graph = model._functional if isinstance(model, keras.Sequential) else model
    if graph is None:
        raise ValueError(
            f"model must be built; got {model.name!r}, which is not. Call it on a batch, or begin "
            "it with a keras.Input."
        )
    return graph


def swap_layers(model: keras.Model, swapped: Mapping[Any, Any]) -> keras.Model:
    """Returns a model with other layers in the places of some; all the rest is shared.

    Models within the model that have some of them become other models likewise. The model is not
    compiled.

    Args:
        model: Functional or Sequential, built.
        swapped: Which layer takes the place of a layer; None: nothing does.
    """
    done = dict(swapped)

    def in_place_of(layer: Any) -> Any:
        if layer not in done and is_graph(layer) and not done.keys().isdisjoint(inner(layer)):
            done[layer] = swap_layers(layer, swapped)
        return done.get(layer, layer)

    if isinstance(model, keras.Sequential):
        kept = [in_place_of(layer) for layer in model.layers]
        layers = [graph_of(model).inputs[0], *(layer for layer in kept if layer is not None)]
        return keras.Sequential(layers, name=model.name)

    def operation_in_place_of(operation: Any) -> Any:
        other = in_place_of(operation)
        return _unchanged if other is None else other

    outputs = model._run_through_graph(model.input, operation_fn=operation_in_place_of)
    return keras.Model(model.input, outputs, name=model.name)


def inner(model: keras.Model) -> list[Any]:
    """Returns all layers in a model, of whatever depth."""
    return list(model._flatten_layers(include_self=False))


def _unchanged(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs
