# SPDX-License-Identifier: Apache-2.0
"""estimate_memory: the memory that training a model or a head needs, before it is built."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.heads.base import Head
from tfx_largeout.heads.tied import TiedHead
from tfx_largeout.indexes.base import DerivedState
from tfx_largeout.keras_internals import flat_layers, own_weights
from tfx_largeout.layers.sparse_trunk import SparseDense
from tfx_largeout.memory import (
    StepMemory,
    StepSize,
    Weight,
    available_bytes,
    gradients_of,
    sum_of,
    text_of_bytes,
)
from tfx_largeout.optimizers.optimizer_memory import OptimizerMemory


@dataclasses.dataclass(frozen=True)
class _Parts:
    """Bytes by part: see `MemoryEstimate`."""

    weights: int
    optimizer: int
    index: int
    gradients: int
    activations: int
    workspace: int
    evaluation: int
    building: int

    @property
    def parts(self) -> list[int]:
        """The bytes, in the order of the columns."""
        return [getattr(self, name) for name in _COLUMNS]


_COLUMNS = [field.name for field in dataclasses.fields(_Parts)]


@dataclasses.dataclass(frozen=True)
class LayerMemory(_Parts):
    """Bytes of a layer, by part: see `MemoryEstimate`."""

    name: str

    @classmethod
    def of(
        cls,
        layer: Any,
        weights: list[Weight],
        memory: StepMemory,
        step: StepSize,
        optimizer: OptimizerMemory,
    ) -> LayerMemory:
        """Sums up weights, the state of the model's optimizer for them, and a step."""
        slots = [slot for each in weights if each.is_trained for slot in optimizer.slots_of(each)]
        state = sum_of(weights, "optimizer") + sum_of(slots)
        parts = sum_of(weights, "weights"), state, sum_of(weights, "index")
        memory = memory.with_optimizer(step, weights)
        if not isinstance(layer, Head):  # what comes later replaces temporaries of a whole weight
            later = sum_of(slots) + memory.gradients
            memory = memory._replace(building=max(memory.building - later, 0))
        return cls(*parts, *memory, f"{layer.name} ({type(layer).__name__})")


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class MemoryEstimate(_Parts):
    """Bytes that training needs in one process, by part; it prints as a table.

    Attributes:
        weights: Weights of all layers, and the optimizer's counters.
        optimizer: State of the model's optimizer and of the optimizers of heads.
        index: Indexes, trees and tables of samplers.
        gradients, activations, workspace: Temporaries of a training step: gradients of whole
            weights; tensors of examples, slices of rows and the optimizer's temporaries; buffers
            that custom ops keep between steps.
        evaluation: Temporaries of a batch in `evaluate`.
        building: Temporaries of the initialization of weights.
        layers: The same per layer.
        workers: The number of workers; all bytes are for one of them.
        available: The memory that was available at the time of the estimate, or None.
    """

    layers: tuple[LayerMemory, ...]
    workers: int
    available: int | None

    @classmethod
    def of(
        cls, layers: Sequence[LayerMemory], workers: int, available: int | None
    ) -> MemoryEstimate:
        """Sums up layers; `building` is the maximum over layers."""
        columns = {name: [getattr(layer, name) for layer in layers] for name in _COLUMNS}
        sums = {name: sum(column) for name, column in columns.items()}
        sums["building"] = max(columns["building"])
        return cls(**sums, layers=tuple(layers), workers=workers, available=available)

    @property
    def kept(self) -> int:
        """Memory that is kept between steps: weights, optimizer and index."""
        return self.weights + self.optimizer + self.index

    @property
    def step(self) -> int:
        """Temporary memory of a training step: gradients, activations and workspace."""
        return self.gradients + self.activations + self.workspace

    @property
    def peak(self) -> int:
        """The peak memory of `fit`, while it builds, trains or evaluates.

        TensorFlow's allocator keeps freed memory, so the process holds this much in the end.
        """
        of_step = (getattr(self, name) for name in StepMemory._fields)
        return self.kept + StepMemory(*of_step).at_once

    def __repr__(self) -> str:
        return f"<MemoryEstimate: peak {text_of_bytes(self.peak)}>"

    def __str__(self) -> str:
        large = [layer for layer in self.layers if sum(layer.parts) >= sum(self.parts) / 100]
        others = [layer.parts for layer in self.layers if layer not in large]
        rows = [(layer.name, layer.parts) for layer in large]
        if others:
            rows.append(("other layers", [sum(column) for column in zip(*others, strict=True)]))
        rows.append(("sum", self.parts))
        texts = [["", *_COLUMNS]]
        texts += [[name, *map(text_of_bytes, numbers)] for name, numbers in rows]
        widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *map(str.rjust, row[1:], widths[1:])]).rstrip()
            for row in texts
        ]
        of = f" of each of {self.workers} workers" if self.workers > 1 else ""
        available = "" if self.available is None else f", {text_of_bytes(self.available)} available"
        return "\n".join([*lines, f"peak{of}: {text_of_bytes(self.peak)}{available}"])


def estimate_memory(
    model_or_head: Any,
    batch_size: int,
    workers: int = 1,
    *,
    hidden_size: int | None = None,
    length: int | None = None,
    labels: int = 1,
    optimizer: Any = None,
) -> MemoryEstimate:
    """Computes how much memory training needs, for a model or for a head before it is built.

        peak = weights + optimizer + index + workspace
               + max(gradients + max(activations, building), evaluation)

    Neither the estimate nor a head that is not built needs memory: call it before you build a large
    head.

    ```python
    sampler, optimizer = tlo.samplers.LogUniform(2000), tlo.optimizers.RowAdam()
    head = tlo.heads.SampledHead(10_000_000, sampler, optimizer, dtype="bfloat16")
    print(tlo.estimate_memory(head, 1024, hidden_size=256))
    ```

    The figures hold for the custom ops on the processor. TensorFlow and Keras themselves (about 600
    MB), data sets, and everything outside of layers are not included. For layers of other packages,
    weights, state and gradients are known, and activations if the model is functional.

    Args:
        model_or_head: A Keras model that is built, compiled or not; or a head of this package (or
            any Keras layer that is built).
        batch_size: B, the examples of a step, for all workers together.
        workers: The number of workers of `tlo.distribute` over which the classes of heads are
            spread; all figures are for one worker. Default 1. For a built head it is the number it
            was built for.
        hidden_size: D, the width of h; required for a head that is not built.
        length: T, for h `[B, T, D]`. Default None: from the model's inputs, else 1.
        labels: K, the number of labels per example. Default 1.
        optimizer: The model's optimizer, or its name. Default None: the optimizer of `compile`.

    Returns:
        A `MemoryEstimate`: bytes by part and layer, and `peak`.

    Raises:
        TypeError: `model_or_head` is not a model, a head or a layer.
        ValueError: A number is out of range; a head that is not built has no `hidden_size`, or a
            model or another layer is not built; or the classes of a head can't be split over
            `workers`.
    """
    batch_size = integer_argument("batch_size", batch_size, at_least=1)
    workers = integer_argument("workers", workers, at_least=1)
    labels = integer_argument("labels", labels, at_least=1)
    if length is not None:
        length = integer_argument("length", length, at_least=1)
    if hidden_size is not None:
        hidden_size = integer_argument("hidden_size", hidden_size, at_least=1)
    if not isinstance(model_or_head, keras.layers.Layer):
        raise TypeError(
            f"model_or_head must be a Keras model or a head of this package; got {model_or_head!r}"
        )
    if optimizer is None and isinstance(model_or_head, keras.Model):
        optimizer = getattr(model_or_head, "optimizer", None)
    of_optimizer, counted = OptimizerMemory(optimizer), set[int]()
    layers = []
    for layer in _heads_first(model_or_head):
        step = of_optimizer.step(batch_size * (length or _length_of(layer)), labels)
        if isinstance(layer, Head):
            width = _width_of(layer, hidden_size)
            workers = _workers_of(layer, workers)
            parts = layer.weights_of(width, workers), layer.memory_of_step(width, step, workers)
        else:
            parts = _of_any_layer(layer, step, counted)
        layers.append(LayerMemory.of(layer, *parts, step, of_optimizer))
        inner = flat_layers(layer) if isinstance(layer, Head) else [layer]
        counted.update(id(weight) for each in inner for weight in own_weights(each))
    return MemoryEstimate.of(layers, workers, available_bytes())


def _heads_first(root: keras.layers.Layer) -> list[Any]:
    """Returns the layers in a layer; heads first, since other layers may be parts of them."""
    layers = [layer for layer in flat_layers(root) if not isinstance(layer, keras.Model)]
    is_built = bool(layers) and all(layer.built for layer in layers)
    if not isinstance(root, Head) and not is_built:
        raise ValueError(
            f"model_or_head must be built, so that its weights are known; got {root.name!r}, which "
            "is not. Give it an Input, call it on a batch, or ask about its head alone."
        )
    return sorted(layers, key=lambda layer: not isinstance(layer, Head))


def _width_of(head: Head, hidden_size: int | None) -> int:
    width = getattr(head, "width", None) or hidden_size
    if isinstance(head, TiedHead):
        width = head.embedding.output_dim
    if width is None:
        raise ValueError(
            f"hidden_size must be given for a head that is not built, {head.name!r}; got None"
        )
    return width


def _workers_of(head: Head, workers: int) -> int:
    if head.built and head.workers.size > 1:
        return head.workers.size
    if workers > 1 and not head.spreads_classes:
        raise ValueError(
            f"workers must be 1 for a {type(head).__name__}, {head.name!r}, whose classes can't be "
            f"spread over workers; got {workers}"
        )
    if workers > head.num_classes:
        raise ValueError(
            f"workers must be at most the {head.num_classes} classes of {head.name!r}; got "
            f"{workers}"
        )
    return workers


def _of_any_layer(layer: Any, step: StepSize, counted: set[int]) -> tuple[list[Weight], StepMemory]:
    """Returns the memory of a layer that is not a head, without weights already counted."""
    part = "index" if isinstance(layer, DerivedState) else "weights"
    own = [weight for weight in own_weights(layer) if id(weight) not in counted]
    weights = [Weight.of(weight, part) for weight in own]
    gradients, largest = gradients_of(weights), max((each.num_bytes for each in weights), default=0)
    is_table = isinstance(layer, (keras.layers.Embedding, SparseDense))
    if step.takes_slices and is_table:
        gradients = 0  # of looked up rows
    outputs = 2 * step.examples * _bytes_of_output(layer)
    made = max(outputs, largest) if gradients and is_table else outputs  # a dense step copies it
    return weights, StepMemory(gradients, made, evaluation=outputs // 2, building=2 * largest)


def _length_of(layer: Any) -> int:
    """Returns T of `[B, T, D]` from the input of a layer in a graph; else 1."""
    return math.prod(size or 1 for size in _shape_of(layer, "input")[1:-1])


def _bytes_of_output(layer: Any) -> int:
    """Returns the bytes of an output per example."""
    shape = _shape_of(layer, "output")
    size = math.prod(size or 1 for size in shape[1:])
    return size * tf.as_dtype(layer.compute_dtype).size // _length_of(layer) if shape else 0


def _shape_of(layer: Any, which: str) -> tuple[int | None, ...]:
    try:
        tensor = getattr(layer, which)
    except (AttributeError, ValueError):  # it is in no graph, or in several
        return ()
    return tuple(getattr(tensor, "shape", ()))
