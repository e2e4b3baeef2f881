# SPDX-License-Identifier: Apache-2.0
"""A Functional or Sequential model with other layers in some places."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from tfx_largeout.keras_internals import (
    calls_forgotten,
    flat_layers,
    graph_of,
    is_functional,
    outputs_with,
)


def swap_layers(model: keras.Model, swapped: Mapping[Any, Any]) -> keras.Model:
    """Returns a model with other layers in the places of some; all the rest is shared.

    Models within the model, which is Functional or Sequential and built, become other models
    likewise. The result is not compiled. `swapped` says which layer takes the place of a layer;
    None: nothing does.
    """
    done = dict(swapped)

    def in_place_of(layer: Any) -> Any:
        if (
            layer not in done
            and is_functional(layer)
            and not done.keys().isdisjoint(flat_layers(layer))
        ):
            done[layer] = swap_layers(layer, swapped)
        return done.get(layer, layer)

    if isinstance(model, keras.Sequential):
        kept = [in_place_of(layer) for layer in model.layers]
        layers = [graph_of(model).inputs[0], *(layer for layer in kept if layer is not None)]
        return keras.Sequential(layers, name=model.name)

    def operation_in_place_of(operation: Any) -> Any:
        other = in_place_of(operation)
        return _unchanged if other is None else other

    outputs = outputs_with(model, operation_in_place_of)
    return keras.Model(model.input, outputs, name=model.name)


@contextlib.contextmanager
def swaps_forgotten(model: keras.Model) -> Iterator[None]:
    """A context at whose end the layers of a model forget the calls that were made in it.

    A layer remembers each graph of layers that it is in, and so keeps the weights of all other
    layers there in memory. What `swap_layers` has returned works on, but nothing is to be swapped
    in it.
    """
    with calls_forgotten(list(_operations(model))):
        yield


def _operations(model: keras.Model) -> Iterator[Any]:
    for operation in graph_of(model).operations:
        yield operation
        if is_functional(operation):
            yield from _operations(operation)


def graph_layers(model: keras.Model) -> list[Any]:
    """Returns the layers of a model and of the Functional and Sequential ones within it."""
    found = []
    for layer in model.layers:
        found += graph_layers(layer) if is_functional(layer) else [layer]
    return found


def _unchanged(inputs: Any, *_: Any, **__: Any) -> Any:
    return inputs
