# SPDX-License-Identifier: Apache-2.0
"""resize_classes: a trained model with more, fewer or other classes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from tfx_largeout.arguments import full_name
from tfx_largeout.callbacks.model_state import ModelState
from tfx_largeout.class_names import class_names, pack_names
from tfx_largeout.distribute.class_shard import owner_of_slot
from tfx_largeout.heads.base import Head
from tfx_largeout.heads.dense_weights import DenseWeights
from tfx_largeout.heads.tied import TiedHead
from tfx_largeout.keras_internals import (
    flat_layers,
    graph_of,
    is_functional,
    made_by,
    own_weights,
    rebuilt,
)
from tfx_largeout.layers.top_k import TopK, is_of
from tfx_largeout.models.class_change import ClassChange

_AVERAGE = "_average"  # Keras's name for the average of a weight over steps


def resize_classes(
    model: keras.Model,
    new_classes: int,
    keep: Any = None,
    *,
    new_rows: Any = None,
    new_bias: Any = None,
    new_counts: Any = None,
    new_class_weights: Any = None,
    new_names: Any = None,
    head: Any = None,
) -> keras.Model:
    """Returns a trained model for a changed set of classes: kept, removed and added ones.

    The m kept classes get the ids 0 to m - 1, followed by the new classes. The old model does not
    change, and shares nothing with the new one.

    ```python
    model = tlo.resize_classes(model, 2_010)                     # ten classes more than 2,000
    model = tlo.resize_classes(model, 500, keep=np.arange(500))  # the first 500 of them
    ```

    A kept class keeps its rows of W and b, bit for bit, and of the slots of optimizers (the head's,
    or the model's), including the update counts of `RowAdam`. The following are adapted, too:
    counts of samplers and of `LogFrequency`, `explicit_classes`, `first_id`, the class weights and
    the ignored class of losses, `label_counts` and `allow` of metrics (which allows no new class),
    and the names of a `TopK`. An index over W is rebuilt; an index of label statistics is adapted.
    All other weights, counts of steps, slots and seeds are copied, so that training can continue.
    The new model is compiled like the old one; sums of metrics start at 0. You must renumber labels
    yourself, and also the inputs of an embedding that is tied to the head.

    Slots of new classes start as in a new model. `RowAdam` counts the steps of each row; Keras's
    Adam does not, so its first steps with a new row are up to 3.2 times too long.

    Cost: another model, and O((C + C') D); for a `FactoredHead` O(C' D^2).

    Args:
        model: Functional or Sequential, built, with only layers that a `.keras` file can store;
            compiled or not. It may have nested models.
        new_classes: C', at least 2 and at least m.
        keep: Ids of the old classes that stay, in their new order, `[m]`. Default None: all.
        new_rows: Rows of W for the new classes, `[C' - m, D]`, such as centroids of features.
            Default None: from the head's initializer.
        new_bias: Likewise b, `[C' - m]`.
        new_counts: How often each new class occurs, `[C' - m]`, for all parts with counts. Default
            None: 0, which samplers and `LogFrequency` smooth.
        new_class_weights: The new classes' weights in losses, `[C' - m]`. Default None: 1.
        new_names: The new classes' names, strings; required if a `TopK` in the model has names.
            Default None.
        head: The head, or its name, if there are several. Default None: the only one.

    Returns:
        Another model.

    Raises:
        TypeError: `model` is not Functional or Sequential, or has a custom `compile`. The head is
            created in another layer's code, or has no rows of W: adding a class to the tree of a
            `HierarchicalSoftmaxHead` changes the probabilities of the others.
        ValueError: An argument is invalid; `model` is not built, has no head, or has several and
            `head` is None. There are accumulated gradients without a step. Another layer depends on
            the number of classes, or a `TopK` has a separate index, `allow` or `categories`. The
            model's optimizer has slots without rows of classes, such as `Adafactor`. An argument no
            longer fits, such as more candidates than classes.
        RuntimeError: The classes are spread over several workers. Use `tlo.save_model`, and resize
            the file's model in a single process; workers can load its file, each its rows.
    """
    layers = _layers_of(model)
    old = _head_argument(head, layers)
    change = ClassChange(old.num_classes, new_classes, keep)
    _check_model(model, layers, old)
    _set_arguments(change, old, new_rows, new_bias, new_counts, new_class_weights)
    named = _with_names(layers, old, change, new_names)
    _check_padding(layers, old, change)
    compiled: dict[str, Any] = {}

    def with_other_classes(config: dict[str, Any]) -> dict[str, Any]:
        compiled.update(config.pop("compile_config", None) or {})
        if not _has_config_of(old, config):
            raise TypeError(
                f"the head must be a layer that model's configuration has; got {full_name(old)}, "
                "which another layer makes in its code"
            )
        return _other_head(config, old, change, named)

    result = rebuilt(model, with_other_classes)
    new: Any = dict(zip(layers, flat_layers(result), strict=True))[old]
    first = len(change.keep)
    new.set_last_rows(first, *change.rows)
    if compiled:
        result.compile_from_config(_other_compile(compiled, model, old, change))
        if not result.compiled:
            raise TypeError(
                f"model must have Keras's compile, or a compile_from_config; got {full_name(model)}"
            )
    _take_state(model, result, old, change)
    new.after_other_rows(first)
    if getattr(old, "index", None) is not None:
        _take_index(old.index, new, change)
    return result


# What can be resized


def _layers_of(model: Any) -> list[Any]:
    if not is_functional(model):
        raise TypeError(
            "model must be a Functional or Sequential model, which can be made again with other "
            f"classes; got {type(model).__name__} {getattr(model, 'name', model)!r}. Of a model "
            "that wraps another one, as of top_k_model, hand over that one."
        )
    graph_of(model)  # checks that it is built
    return flat_layers(model)


def _head_argument(head: Any, layers: list[Any]) -> Any:
    heads = list(dict.fromkeys(layer for layer in layers if isinstance(layer, Head)))
    names = [layer.name for layer in heads]
    found = [each for each in heads if head is None or each is head or each.name == head]
    if not heads:
        raise ValueError("model must have a head; got one without. See tlo.replace_output")
    if len(found) != 1:
        raise ValueError(
            f"head must be one of the model's heads, {names}, or its name; got {head!r}"
        )
    old = found[0]
    if not isinstance(old, DenseWeights):
        raise TypeError(
            f"head must be one with a row of W for each class; got {full_name(old)}, in which a "
            "class more or less changes the probabilities of others: make a new one"
        )
    return old


def _check_model(model: keras.Model, layers: list[Any], old: Any) -> None:
    old.workers.refuse_several(
        f"resize_classes of {full_name(old)} must be called in a single process; got classes that "
        f"are spread over {old.workers.size} workers. Write the model by tlo.save_model, and load, "
        "resize and save it in one process: workers can load that file"
    )
    for layer in layers:
        kept = [variable.numpy() for variable in getattr(layer, "kept_variables", ())[:1]]
        if kept and (kept[0].size if kept[0].ndim else kept[0]):  # rows, or a number of batches
            raise ValueError(
                "model must have taken its step with all gradients; got some of batches that "
                f"{layer.name!r} has accumulated"
            )
        if isinstance(layer, TopK) and layer.head is old and _has_own_classes(layer):
            raise ValueError(
                "model must have no TopK with a separate index, allow or categories; got "
                f"{layer.name!r}. Resize the model without that layer, and make it again."
            )
    optimizer = getattr(model, "optimizer", None)
    if optimizer is None:
        return
    if not optimizer.built:
        optimizer.build(model.trainable_variables)
    known = model.trainable_variables
    if not any(weight.trainable for weight in old.weights_with_rows):
        return
    for slot in optimizer.variables:
        is_weight = any(slot is weight for weight in known)
        if len(slot.shape) and not is_weight and owner_of_slot(slot, known) is None:
            raise ValueError(
                "the model's optimizer must name slots after their weights, so that rows of "
                f"classes are known; got {type(optimizer).__name__}, with {slot.name!r} of "
                f"shape {tuple(slot.shape)}"
            )


def _has_own_classes(layer: TopK) -> bool:
    is_own = layer.index is not None and not is_of(layer.index, layer.head)
    return is_own or any(part is not None for part in layer.findable)


def _set_arguments(
    change: ClassChange, old: Any, rows: Any, bias: Any, counts: Any, class_weights: Any
) -> None:
    shape = (change.num_new, old.width)
    if rows is not None:
        rows = old.finite_argument("new_rows", rows, shape)
    if bias is not None:
        if not old.use_bias:
            raise ValueError(
                f"new_bias must be None for a head without bias, {old.name!r}; got {bias!r}"
            )
        bias = old.finite_argument("new_bias", bias, shape[:1])
    change.rows = rows, bias
    if counts is not None:
        change.counts = change.numbers_argument("new_counts", counts)
    if class_weights is not None:
        change.class_weights = change.numbers_argument("new_class_weights", class_weights)


def _with_names(
    layers: list[Any], old: Any, change: ClassChange, new_names: Any
) -> dict[Any, str | None]:
    """Returns the layers with class names, and the packed names of the new classes.

    Raises:
        TypeError, ValueError: As `class_names`; or the number of names is not the number of new
            classes.
    """
    named = [each for each in layers if isinstance(each, TopK) and each.head is old and each.names]
    last = class_names(new_names) or []
    if len(last) != change.num_new and (named or last):
        raise ValueError(
            f"new_names must be {change.num_new} strings, one for each new class, where a TopK has "
            f"names of classes; got {len(last)}"
        )
    others = {layer: [*((layer.names or [])[c] for c in change.keep), *last] for layer in named}
    return {layer: pack_names(class_names(names)) for layer, names in others.items()}


def _check_padding(layers: list[Any], old: Any, change: ClassChange) -> None:
    own = getattr(old, "embedding", None)
    for layer in layers:
        is_of_head = layer is own or getattr(layer, "head", None) is old
        stays = len(change.keep) and change.keep[0] == 0
        if is_of_head and getattr(layer, "mask_zero", False) and not stays:
            raise ValueError(
                f"keep must begin with class 0, which {layer.name!r} masks (mask_zero=True); got "
                f"{change.keep[:1]}"
            )


# The configuration


def _other_head(config: Any, old: Any, change: ClassChange, named: dict[Any, str | None]) -> Any:
    """Returns a configuration with a new one for the head, and for the embedding tied to it.

    Layers with class names get new names.
    """
    if isinstance(config, (list, tuple)):
        return [_other_head(item, old, change, named) for item in config]
    if not isinstance(config, dict):
        return config
    tied = [old.embedding] if isinstance(old, TiedHead) else []
    if any(_is_config_of(layer, config) for layer in (old, *tied)):
        return {**config, "config": change.config_of_head(config["config"])}
    for layer, names in named.items():
        if _is_config_of(layer, config):
            config = {**config, "config": {**config["config"], "names": names}}
    return {name: _other_head(value, old, change, named) for name, value in config.items()}


def _has_config_of(layer: Any, config: Any) -> bool:
    if isinstance(config, dict) and _is_config_of(layer, config):
        return True
    parts = config.values() if isinstance(config, dict) else config
    return isinstance(config, (dict, list, tuple)) and any(
        _has_config_of(layer, part) for part in parts
    )


def _is_config_of(layer: Any, config: dict[str, Any]) -> bool:
    inner = config.get("config")
    is_named = isinstance(inner, dict) and inner.get("name") == layer.name
    return is_named and config.get("class_name") == type(layer).__name__


def _other_compile(
    config: dict[str, Any], model: keras.Model, old: Any, change: ClassChange
) -> dict[str, Any]:
    """Returns the `compile` arguments with losses and metrics of the head's output changed."""
    graph = graph_of(model)
    outputs = graph.outputs
    of_head = [place for place, tensor in enumerate(outputs) if _gives(tensor, old)]
    names = {graph.output_names[place] for place in of_head}
    if isinstance(graph.output, dict):
        names |= {key for key, tensor in graph.output.items() if _gives(tensor, old)}

    def other(part: Any) -> Any:
        if len(outputs) == 1:
            return change.config_of_compile(part)
        if isinstance(part, dict) and "class_name" not in part:
            return {
                name: change.config_of_compile(value) if name in names else value
                for name, value in part.items()
            }
        if isinstance(part, (list, tuple)) and len(part) == len(outputs):
            return [
                change.config_of_compile(value) if place in of_head else value
                for place, value in enumerate(part)
            ]
        return part

    parts = ("loss", "metrics", "weighted_metrics")
    return {**config, **{name: other(config[name]) for name in parts if name in config}}


def _gives(tensor: Any, head: Any) -> bool:
    """Returns whether an output comes from a head, or from a layer after it, such as a cast."""
    while True:
        layer, tensors = made_by(tensor)
        if layer is head or (is_functional(layer) and head in flat_layers(layer)):
            return True
        if len(tensors) != 1 or own_weights(layer) or isinstance(layer, Head):
            return False
        tensor = tensors[0]


# The weights


def _take_state(model: keras.Model, result: keras.Model, old: Any, change: ClassChange) -> None:
    """Copies the state of the old model to the new one, rows of classes by their new ids."""
    states = [ModelState(each, metrics=False, kept=False) for each in (model, result)]
    there, here = (dict(state.arrays()) for state in states)
    last = dict(_rows_in(states[0], model, old))
    index = getattr(old, "index", None)
    derived = states[0].names_of([] if index is None else index.weights)
    _check_alike(states, {*last, *derived})

    def read(name: str) -> np.ndarray:
        array = there[name]()
        if name not in last:
            return array
        return change.follow(array, here[last[name]]()[len(change.keep) :])

    states[1].restore(states[0].facts(), read, anew=True)


def _take_index(old: Any, new: Any, change: ClassChange) -> None:
    """Builds the new head's index from W, if the old one was built; or copies its rows."""
    if old.follows_kernel and int(old.clock.numpy()) > 0:
        new.index.rebuild(new.kernel, new.bias)
    elif not old.follows_kernel:
        for weight, own in zip(old.weights, new.index.weights, strict=True):
            array = keras.ops.convert_to_numpy(weight)
            if array.shape[:1] == (change.old,):
                array = change.follow(array, own.numpy()[len(change.keep) :])
            own.assign(array)


def _rows_in(state: ModelState, model: keras.Model, old: Any) -> Iterator[tuple[str, str]]:
    """Yields the names of variables with a row per class, and the new model's variables.

    These are weights and slots. An average of a weight starts from the weight.
    """
    weights = old.weights_with_rows
    for name in state.names_of(weights):
        yield name, name
    known = [*model.trainable_variables, *weights]
    for optimizer in (getattr(model, "optimizer", None), getattr(old, "optimizer", None)):
        for slot in [] if optimizer is None else optimizer.variables:
            owner = owner_of_slot(slot, known)
            if any(owner is weight for weight in weights) and slot.shape[:1] == owner.shape[:1]:
                (name,) = state.names_of([slot])
                is_average = slot.name.endswith(_AVERAGE)
                yield name, *(state.names_of([owner]) if is_average else [name])


def _check_alike(states: list[ModelState], free: set[str]) -> None:
    """Raises ValueError if the models' variables differ in more than the rows of classes."""
    there, here = (
        [
            (name, *map(str, fact[:2] if name in free else fact))
            for name, fact in zip(state.names, state.facts()["variables"], strict=True)
        ]
        for state in states
    )
    if there != here:
        other = next(fact for fact in [*there, *here] if fact not in there or fact not in here)
        raise ValueError(
            "model must have no weights but the head's that depend on the number of classes, "
            f"and its configuration must make it again; got {' '.join(other)}, which does not stay"
        )
