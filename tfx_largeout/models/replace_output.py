# SPDX-License-Identifier: Apache-2.0
"""replace_output: replaces a model's last Dense layer by a head; to_keras: the reverse."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

import keras
import numpy as np

from tfx_largeout.heads.base import Head
from tfx_largeout.heads.dense_weights import DenseWeights
from tfx_largeout.heads.factored_weights import FactoredWeights
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.heads.tied import TiedHead
from tfx_largeout.keras_internals import (
    calls_forgotten,
    flat_layers,
    graph_of,
    is_functional,
    made_by,
    operations_of,
    outputs_with,
    own_weights,
)
from tfx_largeout.layers import RowEmbedding, SparseDense

# Properties of a Dense layer that a head can't take over.
_OPTIONS_OF_DENSE = (
    "kernel_regularizer",
    "bias_regularizer",
    "activity_regularizer",
    "kernel_constraint",
    "bias_constraint",
    "quantization_mode",
)
_OF_KERAS = {SparseDense: keras.layers.Dense, RowEmbedding: keras.layers.Embedding}
_LINEAR = (KernelHead.flat_logits, FactoredWeights.flat_logits)
_PACKAGE = __name__.split(".")[0]


def replace_output(model: keras.Model, head: Head) -> keras.Model:
    """Returns a model that ends in a head, with the W and b of the replaced Dense layer.

    The Dense layer must be the last layer, or the last before softmax and linear activations. A
    softmax, in it or in a later layer, is removed: a head returns logits, and the losses of heads
    take logits. So the exact loss does not change.

    ```python
    head = tlo.heads.SampledHead(C, tlo.samplers.LogUniform(1000), tlo.optimizers.RowAdam(1e-3))
    model = tlo.replace_output(model, head)
    model.compile("adam", loss=tlo.losses.ComplementarySum())
    ```

    All other layers are shared with `model`, which does not change; W and b are copied, and the
    head is trainable if the Dense layer is. The result is not compiled. `tlo.to_keras` is the
    reverse.

    Cost: a copy of W, and temporarily one more. The shared layers keep the Dense layer in memory as
    long as the result lives: save and load the result to drop it.

    Args:
        model: Functional or Sequential, built, with one output. It may end in a nested model of
            these kinds.
        head: A new head whose logits are W h + b, for as many classes as the Dense layer has units,
            with a bias if that has one (b is 0 where it has none).

    Raises:
        TypeError: `model` is not Functional or Sequential: the use of a Dense layer in a custom
            `call` is not known; or it has a custom `train_step` or `compute_loss`. `head` is not a
            head, or its logits are not W h + b.
        ValueError: `model` is not built, has several outputs, does not end in a Dense layer, or
            uses the Dense layer more than once; the Dense layer has another activation, shares its
            weights with another layer, or has a regularizer, a constraint or quantized weights,
            which would be lost; `head` is already built, has another number of classes, lacks the
            bias, or has the W of an embedding.
    """
    dense, activations = output_layers(model)
    if not isinstance(head, Head):
        raise TypeError(f"head must be a head; got {head!r}")
    if not isinstance(head, DenseWeights):
        raise TypeError(
            "head must be one whose logits are W h + b, as in a Dense layer; got "
            f"{_described(head)}"
        )
    if isinstance(head, KernelHead):
        head.refuse_cosines("replace_output")
    _check_head(head, dense)
    kernel = keras.ops.convert_to_numpy(dense.kernel)
    bias = np.zeros(dense.units, kernel.dtype) if dense.bias is None else dense.bias
    result = swap_layers(model, {dense: head, **dict.fromkeys(activations)})
    head.trainable = dense.trainable
    head.set_dense_weights(kernel.T, bias if head.use_bias else None)
    return result


def to_keras(model: keras.Model) -> keras.Model:
    """Returns a model with only Keras layers: its file loads without this package.

    Each head becomes the `Dense` layer of `head.to_dense()`, with the same logits; each
    `SparseDense` a `Dense`, which also takes sparse inputs; each `RowEmbedding` an `Embedding`.
    They keep their names, and their weights are copied; the table of a `TiedSampledHead` is no
    longer tied. All other layers are shared with `model`, which does not change. The result is not
    compiled.

    ```python
    tlo.to_keras(model).save("model.keras")
    ```

    Cost: as `head.to_dense()`. The shared layers keep the result in memory as long as `model`
    lives.

    Args:
        model: Functional or Sequential, built; it may have several heads and nested models.

    Raises:
        TypeError: `model` is not Functional or Sequential; or a layer of this package has no equal
            in Keras: a `HierarchicalSoftmaxHead`, whose logits are not W h + b, `TopK`, a subclass
            of a head with a custom `call` or logits; or a Keras layer has a part of this package,
            such as an initializer.
        ValueError: `model` is not built.
        RuntimeError: The classes are spread over several workers.
    """
    _check_functional(model, "put head.to_dense() in place of the head.")
    graph_of(model)
    layers = dict.fromkeys(graph_layers(model))  # a shared layer occurs twice
    ours = (Head, *_OF_KERAS)
    plain = {layer: _plain(layer) for layer in layers if isinstance(layer, ours)}
    result = swap_layers(model, plain)
    for layer in flat_layers(result):
        if type(layer).__module__.split(".")[0] == _PACKAGE:
            raise _no_equal(layer)
    if f'"{_PACKAGE}' in json.dumps(result.get_config(), default=str):
        raise TypeError(
            "model must have nothing of this package but layers; got an initializer, a regularizer "
            "or the like in the configuration of another layer"
        )
    return result


def swap_layers(model: keras.Model, swapped: Mapping[Any, Any]) -> keras.Model:
    """Returns a model in which some layers are replaced; all others are shared.

    The model must be Functional or Sequential and built; layers in nested models are replaced, too.
    The result is not compiled. `swapped` maps a layer to its replacement; None: remove it.
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
    """A context after which the layers of a model drop the calls made within it.

    A layer keeps references to each graph of layers it is in, and so to the weights of all other
    layers there. The result of `swap_layers` still works, but its layers can't be swapped again.
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


def output_layers(model: keras.Model) -> tuple[keras.layers.Dense, list[Any]]:
    """Returns a model's last Dense layer, and the activations after it.

    Raises:
        TypeError, ValueError: A head can't replace it: see `replace_output`.
    """
    _check_functional(
        model,
        "make the head where the Dense layer is made, and after a first call take the weights over "
        "by head.set_dense_weights(np.transpose(dense.kernel), dense.bias).",
    )
    for own in ("train_step", "compute_loss"):
        if getattr(type(model), own) is not getattr(keras.Model, own):
            raise TypeError(
                f"model must have no custom {own}, which would be lost; got {_described(model)}"
            )
    dense, activations = _ending(model)
    _check_dense(model, dense, activations)
    return dense, activations


def _check_functional(model: Any, instead: str) -> None:
    if not is_functional(model):
        raise TypeError(
            "model must be a Functional or Sequential model, whose layers can be known; got "
            f"{_described(model)}. In a model with a custom call, {instead}"
        )


def _ending(model: keras.Model) -> tuple[keras.layers.Dense, list[Any]]:
    """Returns a model's last Dense layer, and the activations after it."""
    if len(graph_of(model).outputs) != 1:
        raise ValueError(
            f"model must have one output; got {len(graph_of(model).outputs)} outputs of "
            f"{_described(model)}"
        )
    activations: list[Any] = []
    layer: Any = None
    for layer in _backwards(model):
        if type(layer) is keras.layers.Dense:
            return layer, activations
        if not _is_activation(layer):
            break
        activations.append(layer)
    raise ValueError(
        "model must end in a keras.layers.Dense with separate weights, or in one and a softmax "
        f"behind it; got {_described(model)}, which ends in {_described(layer)}"
    )


def _backwards(model: keras.Model) -> Iterator[Any]:
    """Yields the layers of a model from the last one backwards, while there is only one before."""
    tensor = graph_of(model).outputs[0]
    while True:
        layer, tensors = made_by(tensor)
        if is_functional(layer) and len(graph_of(layer).outputs) == 1:
            yield from _backwards(layer)
        else:
            yield layer
        if len(tensors) != 1:
            return
        tensor = tensors[0]


def _is_activation(layer: Any) -> bool:
    """Returns whether a layer is linear without weights, or a softmax over the classes."""
    if type(layer) is keras.layers.Softmax:
        return layer.axis == -1
    return type(layer) is keras.layers.Activation and (
        layer.activation in (keras.activations.linear, keras.activations.softmax)
    )


def _check_dense(model: keras.Model, dense: keras.layers.Dense, behind: list[Any]) -> None:
    activations = [getattr(layer, "activation", keras.activations.softmax) for layer in behind]
    activations.append(dense.activation)
    others = [each for each in activations if each is not keras.activations.linear]
    if others not in ([], [keras.activations.softmax]):
        names = [each.__name__ for each in others]
        raise ValueError(
            "the Dense layer in which model ends must have no activation, or one softmax; got "
            f"{names} of {_described(dense)}"
        )
    for option in _OPTIONS_OF_DENSE:
        value = getattr(dense, option)
        if value is not None:
            raise ValueError(
                f"the Dense layer in which model ends must have no {option}, which a head does not "
                f"have; got {option}={value!r} of {_described(dense)}"
            )
    for layer in (dense, *behind):
        uses = _uses(model, layer)
        if uses != 1:
            raise ValueError(
                "model must use the layers in which it ends once; got "
                f"{uses} uses of {_described(layer)}"
            )
    own = {id(weight) for weight in dense.weights}
    for layer in flat_layers(model):
        weights = own_weights(layer)
        if layer is not dense and not own.isdisjoint(map(id, weights)):
            raise ValueError(
                "the Dense layer in which model ends must not share weights; got "
                f"{_described(dense)}, which shares some with {_described(layer)}"
            )


def _check_head(head: DenseWeights, dense: keras.layers.Dense) -> None:
    if isinstance(head, TiedHead):
        raise ValueError(
            f"head must have a separate W; got {_described(head)}, whose W is the table of "
            f"{_described(head.embedding)}"
        )
    if head.built:
        raise ValueError(
            f"head must be new, as it gets other weights; got {_described(head)}, which is built"
        )
    if head.num_classes != dense.units:
        raise ValueError(
            f"head must have as many classes as {_described(dense)} has units, {dense.units}; got "
            f"num_classes={head.num_classes}"
        )
    if dense.use_bias and not head.use_bias:
        raise ValueError(
            f"head must have a bias, use_bias=True, as {_described(dense)} has one; got "
            "use_bias=False"
        )


def _uses(model: keras.Model, layer: Any) -> int:
    """Returns how often a layer is used in a model, including nested models."""
    operations = operations_of(model)
    within = sum(_uses(operation, layer) for operation in operations if is_functional(operation))
    return operations.count(layer) + within


def _described(layer: Any) -> str:
    return f"{type(layer).__name__} {getattr(layer, 'name', layer)!r}"


def _no_equal(layer: Any) -> TypeError:
    return TypeError(
        f"each layer of model must be one of Keras or have an equal there; got {_described(layer)}"
    )


def _plain(layer: Any) -> keras.layers.Layer:
    if isinstance(layer, Head):
        if isinstance(layer, DenseWeights) and type(layer).flat_logits not in _LINEAR:
            raise _no_equal(layer)
        return layer.to_dense(name=layer.name)
    if type(layer) not in _OF_KERAS:  # a subclass may behave differently
        raise _no_equal(layer)
    # Initializers may be of this package: they are no longer needed.
    config = {
        name: "zeros" if name.endswith("_initializer") else value
        for name, value in layer.get_config().items()
    }
    plain = _OF_KERAS[type(layer)].from_config(config)
    plain.build((None, layer.get_weights()[0].shape[0]))
    plain.set_weights(layer.get_weights())
    return plain
