# SPDX-License-Identifier: Apache-2.0
"""to_keras: a trained model without this package."""

from __future__ import annotations

import json
from typing import Any

import keras

from tfx_largeout.heads.base import Head
from tfx_largeout.heads.dense_weights import DenseWeights
from tfx_largeout.heads.factored_weights import FactoredWeights
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.keras_internals import graph_of, is_functional
from tfx_largeout.layers.row_embedding import RowEmbedding
from tfx_largeout.layers.sparse_dense import SparseDense
from tfx_largeout.models.swap_layers import graph_layers, inner, swap_layers

_OF_KERAS = {SparseDense: keras.layers.Dense, RowEmbedding: keras.layers.Embedding}
_LINEAR = (KernelHead.flat_logits, FactoredWeights.flat_logits)
_PACKAGE = __name__.split(".")[0]


def to_keras(model: keras.Model) -> keras.Model:
    """Returns a model of Keras's own layers alone: its file loads where this package is not.

    Each head becomes the `Dense` layer that `head.to_dense()` returns, and gives its logits; each
    `SparseDense` a `Dense` with its weights, which takes sparse inputs as well; each `RowEmbedding`
    an `Embedding`. They keep their names. All other layers are shared with `model`, which stays as
    it is; the weights of these are copied, and that of a `TiedSampledHead` is tied no more. The
    result is not compiled.

    ```python
    tlo.to_keras(model).save("model.keras")
    ```

    Cost: as `head.to_dense()`.

    Args:
        model: Functional or Sequential, built, also with several heads, or with such models in it.

    Raises:
        TypeError: `model` is not Functional or Sequential; or a layer of this package has no equal
            in Keras: a `HierarchicalSoftmaxHead`, whose logits are not W h + b, `TopK`, a subclass
            of one with a `call` or logits of its own; or a layer of Keras has, say, an initializer
            of this package.
        ValueError: `model` is not built.
        RuntimeError: The classes are spread over several workers.
    """
    if not is_functional(model):
        raise TypeError(
            "model must be a Functional or Sequential model, whose layers can be known; got "
            f"{type(model).__name__} {getattr(model, 'name', model)!r}. In a model with a call of "
            "its own, put head.to_dense() in the place of the head."
        )
    graph_of(model)
    layers = dict.fromkeys(graph_layers(model))  # one that is shared comes up twice
    ours = (Head, *_OF_KERAS)
    plain = {layer: _plain(layer) for layer in layers if isinstance(layer, ours)}
    result = swap_layers(model, plain)
    for layer in inner(result):
        if type(layer).__module__.split(".")[0] == _PACKAGE:
            raise _no_equal(layer)
    if f'"{_PACKAGE}' in json.dumps(result.get_config(), default=str):
        raise TypeError(
            "model must have nothing of this package but layers; got an initializer, a regularizer "
            "or the like in the configuration of another layer"
        )
    return result


def _no_equal(layer: Any) -> TypeError:
    return TypeError(
        "each layer of model must be one of Keras or have an equal there; got "
        f"{type(layer).__name__} {layer.name!r}"
    )


def _plain(layer: Any) -> keras.layers.Layer:
    if isinstance(layer, Head):
        if isinstance(layer, DenseWeights) and type(layer).flat_logits not in _LINEAR:
            raise _no_equal(layer)
        return layer.to_dense(name=layer.name)
    if type(layer) not in _OF_KERAS:  # a subclass, which may do something else
        raise _no_equal(layer)
    # Initializers may be of this package, and have done their work.
    config = {
        name: "zeros" if name.endswith("_initializer") else value
        for name, value in layer.get_config().items()
    }
    plain = _OF_KERAS[type(layer)].from_config(config)
    plain.build((None, layer.get_weights()[0].shape[0]))
    plain.set_weights(layer.get_weights())
    return plain
