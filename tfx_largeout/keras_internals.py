# SPDX-License-Identifier: Apache-2.0
"""All private names of Keras that the package uses, where no public name does the same.

`tests/test_keras_internals.py` has a test for each, which fails by name if Keras lacks it.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import itertools
import operator
import random
from collections.abc import Callable, Iterator, Set
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src.backend.common import global_state
from keras.src.backend.common.symbolic_scope import in_symbolic_scope
from keras.src.backend.common.variables import AutocastScope
from keras.src.losses import loss as loss_module
from keras.src.metrics.reduction_metrics import reduce_to_samplewise_values
from keras.src.models.functional import Functional
from keras.src.random.seed_generator import global_seed_generator
from keras.src.saving.saving_lib import H5IOStore
from keras.src.saving.serialization_lib import ObjectSharingScope


def calling_model(layer: keras.layers.Layer) -> Any:
    """Returns the outermost model whose call runs `layer`; None outside of models.

    Private: `Layer._get_call_context`.
    """
    entry = layer._get_call_context().entry_layer
    return entry if isinstance(entry, keras.Model) else None


def asks_for_shapes() -> bool:
    """Returns whether Keras only infers shapes, maybe of plain tensors or before values exist.

    Private: `in_symbolic_scope`.
    """
    return in_symbolic_scope()


def optimizer_like(optimizer: Any, off: Set[str]) -> Any:
    """Returns an optimizer with the same configuration, without some options.

    Its learning rate is a number, because a schedule or a function may not have a configuration:
    `_learning_rate`.
    """
    shown = object.__new__(type(optimizer))
    vars(shown).update(vars(optimizer), _learning_rate=0.5)
    config = shown.get_config()
    return type(optimizer).from_config(config | dict.fromkeys(off & config.keys(), False))


def h5_dataset(store: Any, name: str, shape: tuple[int, ...], dtype: Any) -> Any:
    """Returns a dataset of a file that Keras writes, to be filled block by block; else None.

    Keras's stores only take whole arrays: `H5IOStore.__setitem__`.
    """
    if type(store) is not H5IOStore or store.mode not in ("w", "a"):
        return None
    if not store._h5_entry_initialized:
        store._create_h5_group(store._h5_entry_path)
    made = store._h5_entry_group.create_dataset(name, shape, np.dtype(dtype))
    if np.dtype(dtype).name == "bfloat16":
        made.attrs["dtype"] = "bfloat16"
    return made


def applying_optimizer() -> Any:
    """Returns the innermost optimizer that runs `apply`; None outside of `apply`.

    Keras opens a name scope for each; which optimizer it belongs to is private: `name_scope_stack`.
    """
    for scope in reversed(global_state.get_global_attribute("name_scope_stack") or []):
        if isinstance(scope.caller, keras.optimizers.Optimizer):
            return scope.caller
    return None


def batches_applied(optimizer: Any) -> tf.Tensor:
    """Returns the number of batches whose gradients an optimizer has applied, `[]` int64.

    The public `iterations` counts steps of `gradient_accumulation_steps` batches each, but not
    batches: `_iterations`.
    """
    return tf.cast(tf.convert_to_tensor(optimizer._iterations), tf.int64)


def in_train_step() -> bool:
    """Returns whether a step of `fit` or `train_on_batch` is being traced.

    Private: Keras's name of the function of a step. If it has another name, or runs eagerly, the
    result is False.
    """
    graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while graph is not None:
        if getattr(graph, "name", "") == "one_step_on_data":
            return True
        graph = getattr(graph, "outer_graph", None)
    return False


# The parts of a model


def flat_layers(model: Any) -> list[Any]:
    """Returns a model and all layers in it, at any depth: `_flatten_layers`."""
    return list(model._flatten_layers())


def was_called(layer: keras.layers.Layer) -> bool:
    """Returns whether a layer was ever called: `_called`."""
    return layer._called


def own_weights(layer: Any) -> list[Any]:
    """Returns the weights of a layer, without its sublayers: `_trainable_variables`."""
    return layer._trainable_variables + layer._non_trainable_variables


def seed_generators(layer: Any) -> list[keras.random.SeedGenerator]:
    """Returns the seed generators of a layer: `_seed_generators`."""
    return list(layer._seed_generators)


def variable_behind(variable: Any) -> Any:
    """Returns the TensorFlow variable of a Keras variable; None before it exists: `_value`.

    The public `value` casts, and so copies, the variable within an autocast scope.
    """
    return variable._value if isinstance(variable, keras.Variable) else variable


def without_autocast() -> Any:
    """Returns a context in which variables are read without autocast: `AutocastScope`."""
    return AutocastScope(None)


# Graphs of layers


def is_functional(layer: Any) -> bool:
    """Returns whether a layer is a graph of layers without a custom `call`: `Functional`."""
    calls = (Functional.call, keras.Sequential.call)
    return isinstance(layer, (Functional, keras.Sequential)) and type(layer).call in calls


def _graph_if_built(model: keras.Model) -> Any:
    return model._functional if isinstance(model, keras.Sequential) else model


def graph_of(model: keras.Model) -> Any:
    """Returns the graph of layers of a Functional or Sequential model: `Sequential._functional`.

    Raises:
        ValueError: The model is Sequential with an unknown input.
    """
    graph = _graph_if_built(model)
    if graph is None:
        raise ValueError(
            f"model must be built; got {model.name!r}, which is not. Call it on a batch, or begin "
            "it with a keras.Input."
        )
    return graph


def outputs_with(model: keras.Model, in_place_of: Callable[[Any], Any]) -> Any:
    """Runs the graph of a Functional model with some operations replaced.

    `keras.models.clone_model` does this, too, but compiles the result: `_run_through_graph`.
    """
    return model._run_through_graph(model.input, operation_fn=in_place_of)


def operations_of(model: keras.Model) -> list[Any]:
    """Returns the operations of a graph of layers, once for each use: `_nodes_by_depth`."""
    nodes = itertools.chain.from_iterable(graph_of(model)._nodes_by_depth.values())
    return [node.operation for node in nodes]


def made_by(tensor: Any) -> tuple[Any, list[Any]]:
    """Returns the layer that produced a symbolic tensor, and its inputs: `_keras_history`."""
    layer, node, _ = tensor._keras_history
    return layer, layer._inbound_nodes[node].input_tensors


def last_layer(model: keras.Model) -> Any:
    """Returns the layer that produces the output of a graph of layers.

    None if there are several outputs, or no graph (a Sequential model on a list of inputs).
    """
    graph = _graph_if_built(model)
    outputs = [] if graph is None else graph.outputs
    return made_by(outputs[0])[0] if len(outputs) == 1 else None


@contextlib.contextmanager
def calls_forgotten(operations: list[Any]) -> Iterator[None]:
    """A context after which operations drop the calls made within it: `_inbound_nodes`."""
    kept = [
        (nodes, len(nodes))
        for operation in operations
        for nodes in (operation._inbound_nodes, operation._outbound_nodes)
    ]
    try:
        yield
    finally:
        for nodes, number in kept:
            del nodes[number:]


# Masks and metrics


def set_mask(tensor: tf.Tensor, mask: Any) -> None:
    """Sets the mask of a tensor, which losses and metrics read: `_keras_mask`."""
    tensor._keras_mask = mask


def mask_of(tensor: Any) -> Any:
    """Returns the mask of a tensor, or None: `_keras_mask`."""
    return getattr(tensor, "_keras_mask", None)


def metrics_given(model: Any) -> tuple[Any, list[Any]] | None:
    """Returns the object that updates a model's metrics, and the metrics passed to `compile`.

    Private: `_compile_metrics`, `_user_metrics`.
    """
    compiled = getattr(model, "_compile_metrics", None)
    if compiled is None:
        return None
    given = [compiled._user_metrics, compiled._user_weighted_metrics]
    return compiled, keras.tree.flatten(given)


def loss_given(model: Any) -> tuple[Any, list[Any]] | None:
    """Returns the object that computes a model's loss, and the losses passed to `compile`.

    Private: `_compile_loss`, `_user_loss`.
    """
    compiled = getattr(model, "_compile_loss", None)
    return None if compiled is None else (compiled, keras.tree.flatten(compiled._user_loss))


def losses_and_outputs(compiled: Any, y_pred: Any) -> Iterator[tuple[Any, Any]]:
    """Yields each loss of an object of `loss_given`, after its call, and the output that it reads.

    Private: `_flat_losses`, `_y_pred_build_structure`.
    """
    outputs = keras.tree.pack_sequence_as(
        compiled._y_pred_build_structure, keras.tree.flatten(y_pred)
    )
    for path, loss, *_ in compiled._flat_losses:
        yield loss, functools.reduce(operator.getitem, path, outputs)


def averaged_function(metric: Any) -> Any:
    """Returns the function of y_true and y_pred that a metric averages, if it is one: `_fn`."""
    update = type(metric).update_state
    return metric._fn if update is keras.metrics.MeanMetricWrapper.update_state else None


def options_of_function(metric: Any) -> dict[str, Any]:
    """Returns the other arguments of the function that a metric averages: `_fn_kwargs`."""
    return getattr(metric, "_fn_kwargs", {})


def metric_names(model: Any) -> list[tuple[Any, str]]:
    """Returns the metrics of an evaluated model, and their names in the logs.

    Private: `_compile_metrics`; its `result` has them in the order of `metrics`.
    """
    pairs: list[tuple[Any, str]] = []
    for metric in model.metrics:
        if metric is model._compile_metrics:
            pairs += zip(metric.metrics, metric.result() if metric.built else (), strict=True)
        else:
            pairs.append((metric, metric.name))
    return pairs


def weighted_losses(model: Any) -> list[tuple[str, float]]:
    """Returns the name in the logs and the weight of each loss, in the order of their calls.

    Private: `_compile_loss`; its `_flat_losses` exist after the first call.
    """
    found = getattr(model._compile_loss, "_flat_losses", None) or []
    weights = (1.0 if each.loss_weights is None else float(each.loss_weights) for each in found)
    return [(f"{each.name}_loss", weight) for each, weight in zip(found, weights, strict=True)]


@contextlib.contextmanager
def means_told(
    of_loss: Callable[[Any, Any], None], of_metric: Callable[[Any, Any, Any], None]
) -> Iterator[None]:
    """A context in which Keras's losses and metrics report the values they average.

    `of_loss` is called with the weighted values of a reduction, and their weights, with the same
    shape (only for means). `of_metric` is called with a `Mean` and the same. Private:
    `reduce_weighted_values`, `reduce_to_samplewise_values`.
    """
    reduce, update = loss_module.reduce_weighted_values, keras.metrics.Mean.update_state

    def reduce_and_tell(
        values: Any,
        sample_weight: Any = None,
        mask: Any = None,
        reduction: str = "sum_over_batch_size",
        dtype: Any = None,
    ) -> Any:
        if reduction in ("sum_over_batch_size", "mean", "mean_with_sample_weight"):
            of_loss(*_weighted(values, sample_weight, mask, reduction == "mean_with_sample_weight"))
        return reduce(values, sample_weight, mask, reduction, dtype)

    def update_and_tell(metric: Any, values: Any, sample_weight: Any = None) -> None:
        if keras.ops.ndim(values):
            told, counts = reduce_to_samplewise_values(
                values, sample_weight, reduce_fn=keras.ops.mean, dtype="float64"
            )
            of_metric(metric, told, keras.ops.ones_like(told) if counts is None else counts)
        update(metric, values, sample_weight)

    loss_module.reduce_weighted_values = reduce_and_tell
    keras.metrics.Mean.update_state = update_and_tell
    try:
        yield
    finally:
        loss_module.reduce_weighted_values = reduce
        keras.metrics.Mean.update_state = update


def _weighted(values: Any, weights: Any, mask: Any, weights_count: bool) -> tuple[Any, Any]:
    """Returns the terms of a sum, and their weights, both with the shape of the values."""
    values = keras.ops.cast(values, "float64")
    counts = keras.ops.ones_like(values)
    for factor, is_counted in ((mask, True), (weights, weights_count)):
        if factor is not None:
            factor = keras.ops.cast(factor, "float64")
            values, factor = loss_module.squeeze_or_expand_to_same_rank(values, factor)
            # Values that are left out may be NaN.
            values = keras.ops.where(factor == 0, keras.ops.zeros_like(values), values * factor)
            counts = keras.ops.reshape(counts, keras.ops.shape(values))
            counts = counts * factor if is_counted else counts
    return values, counts


# Training


def begin_at_epoch(model: keras.Model, epoch: int | None) -> None:
    """Makes a running `fit` start with another epoch; None: its own: `_initial_epoch`.

    As in `keras.callbacks.BackupAndRestore`.
    """
    model._initial_epoch = epoch


def pass_batches(
    model: keras.Model, executions: int, is_of_fit: Callable[[Any], bool], logs: dict[str, float]
) -> None:
    """Makes `fit` count some batches of a started epoch without training them.

    Callbacks are called with their numbers and `logs`. `is_of_fit` recognizes the iterator of this
    `fit`: after an error in these batches, a later `fit` trains all of its batches. `fit` has no
    public argument to start within an epoch; it calls `train_function` for each execution.
    """
    step, left = model.train_function, executions

    def passing(iterator: Any) -> dict[str, float]:
        nonlocal left
        left -= 1
        is_other = not is_of_fit(iterator)
        if is_other or not left:
            model.train_function = step
        return step(iterator) if is_other else logs

    model.train_function = passing


class OptimizerHooks(keras.optimizers.Optimizer):
    """Private hooks of a Keras optimizer: `_clip_gradients` and others."""

    def before_clipping(self, gradients: list[Any]) -> list[Any]:
        """Returns the gradients to clip, if any."""
        return gradients

    def after_step(self) -> None:
        """Called after a step with all variables."""

    def _clip_gradients(self, gradients: list[Any]) -> list[Any]:
        if self.clipnorm or self.clipvalue or self.global_clipnorm:
            gradients = self.before_clipping(gradients)
        if self.global_clipnorm and not self.clipnorm:
            return _within_norm(gradients, self.global_clipnorm)
        return super()._clip_gradients(gradients)

    def _backend_update_step(self, grads: Any, trainable_variables: Any, rate: Any) -> None:
        super()._backend_update_step(grads, trainable_variables, rate)
        self.after_step()

    def _var_key(self, variable: Any) -> Any:
        if variable_behind(variable) is None:
            return id(variable)  # a head in a subclassed model gets its value later
        return super()._var_key(variable)


def _within_norm(gradients: list[Any], most: float) -> list[Any]:
    """Returns gradients scaled to a common norm of at most `most`, by Keras's formula.

    Unlike Keras's function, it keeps `tf.IndexedSlices`, here of different rows.
    """
    values = [g.values if isinstance(g, tf.IndexedSlices) else g for g in gradients]
    wide = (
        tf.float64 if any(v is not None and v.dtype == tf.float64 for v in values) else tf.float32
    )
    norm = tf.sqrt(
        tf.add_n([tf.reduce_sum(tf.cast(v, wide) ** 2) for v in values if v is not None])
    )
    scale = most * tf.minimum(1 / norm, 1 / tf.constant(most, wide))
    scaled = [None if v is None else v * tf.cast(scale, v.dtype) for v in values]
    return [
        tf.IndexedSlices(v, g.indices, g.dense_shape) if isinstance(g, tf.IndexedSlices) else v
        for g, v in zip(gradients, scaled, strict=True)
    ]


# State of the process


def global_seed() -> np.ndarray | None:
    """Returns the seed of `keras.random` functions; None before it exists: `global_state`."""
    generator = global_state.get_global_attribute("global_seed_generator")
    return None if generator is None else generator.state.numpy()


def set_global_seed(array: np.ndarray) -> None:
    """Sets the seed for `keras.random` functions called without a seed."""
    global_seed_generator().state.assign(array)


def whole_config(model: keras.Model) -> dict[str, Any]:
    """Returns the configuration of a model, for `made_again`: `ObjectSharingScope`.

    Without this scope, a layer shared by two others becomes two layers.
    """
    with ObjectSharingScope():
        return keras.saving.serialize_keras_object(model)


def made_again(config: dict[str, Any]) -> keras.Model:
    """Creates a model from a configuration, which may be modified."""
    with ObjectSharingScope():
        return keras.saving.deserialize_keras_object(config, safe_mode=False)


def rebuilt(model: keras.Model, change: Callable[[dict[str, Any]], dict[str, Any]]) -> keras.Model:
    """Creates a model from the changed configuration of another one."""
    return made_again(change(whole_config(model)))


@contextlib.contextmanager
def random_state_kept(seed: int) -> Iterator[None]:
    """A context with a separate seed; the generators of Python, NumPy and Keras are restored.

    Keras's generator is in its `global_state`; it does not exist before its first use.
    """
    name, states = "global_seed_generator", (random.getstate(), np.random.get_state())
    generator = global_state.get_global_attribute(name)
    random.seed(seed)
    np.random.seed(seed % 2**32)
    global_state.set_global_attribute(name, keras.random.SeedGenerator(seed % 2**31))
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        global_state.set_global_attribute(name, generator)


@contextlib.contextmanager
def names_forgotten() -> Iterator[None]:
    """A context after which layer names continue as if none was created in it: `global_state`."""
    name = "object_name_uids"
    counters = copy.copy(global_state.get_global_attribute(name))
    try:
        yield
    finally:
        global_state.set_global_attribute(name, counters)
