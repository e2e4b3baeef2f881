# SPDX-License-Identifier: Apache-2.0
"""DataParallel: an optimizer for a model that several workers train."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.distribute.class_shard import mark_slots, own_rows, replicated, shard_of
from tfx_largeout.distribute.meeting import END_OF_FIT, agree, check_alike, meet
from tfx_largeout.distribute.packed_numbers import packed, unpacked
from tfx_largeout.distribute.workers import Workers, current
from tfx_largeout.keras_internals import OptimizerHooks, flat_layers

CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")  # options of Keras's optimizers
_BY_NORMS = (keras.optimizers.Adafactor, keras.optimizers.Lamb, keras.optimizers.Muon)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class DataParallel(keras.optimizers.Optimizer):
    """Averages all gradients over workers, then takes the step of another optimizer.

    `model.compile(DataParallel(keras.optimizers.Adam(2e-3)), ...)`. The inner optimizer does
    clipping, decay, accumulation and schedules, after the mean. All workers start from the weights
    of worker 0, and their weights stay bitwise equal. Weights of classes, which are split over
    workers, are not averaged: their gradients already cover the global batch. In a single process
    only the inner optimizer runs.

    Gradients that are `tf.IndexedSlices`, of embeddings, reach the inner optimizer with one slice
    per row. In a single process Keras's gradients repeat rows, and its optimizers clip and square
    each slice separately; `RowAdam` and similar optimizers add slices up first, as here.

    Cost: one collective per step for all dense gradients; one for all `tf.IndexedSlices`, and two
    for each of them. One more, of 8 bytes, every `check_every` steps.

    Args:
        inner_optimizer: A Keras optimizer, or its name. Default `"rmsprop"`, as in `compile`.
        check_every: The number of steps after which the workers compare their weights bitwise; 0:
            never. Default 100.
        name: The name of the optimizer.

    Raises:
        TypeError: `inner_optimizer` is not a Keras optimizer.
        ValueError: It scales the loss or averages weights (`use_ema`); `check_every` is negative.
            When it is built: the model or the optimizer is not the same on all workers.
        tf.errors.InvalidArgumentError: In a step: weights differ between workers.
    """

    built: bool

    def __init__(
        self, inner_optimizer: Any = "rmsprop", check_every: int = 100, name: str = "data_parallel"
    ) -> None:
        super().__init__(learning_rate=0.0, name=name)
        inner = keras.optimizers.get(inner_optimizer)
        for part in with_parts(inner):
            _check_inner(part)
        self.inner_optimizer = inner
        self.check_every = integer_argument("check_every", check_every, at_least=0)
        # Heads read this.
        self.gradient_accumulation_steps = inner.gradient_accumulation_steps

    @property
    def learning_rate(self) -> Any:
        """The learning rate of the inner optimizer."""
        return self.inner_optimizer.learning_rate

    @learning_rate.setter
    def learning_rate(self, value: Any) -> None:
        self.inner_optimizer.learning_rate = value

    @property
    def iterations(self) -> Any:
        """The number of steps of the inner optimizer."""
        return self.inner_optimizer.iterations

    @property
    def variables(self) -> list[Any]:
        """The inner optimizer's variables, after two that Keras adds to any optimizer."""
        return [*self._variables, *self.inner_optimizer.variables]

    def build(self, variables: list[Any]) -> None:
        """Builds the inner optimizer, and copies the weights of worker 0 to all workers."""
        if self.built:
            return
        workers = current()
        with tf.init_scope():
            agree(workers, "the model", _facts(variables, self.inner_optimizer))
            self.inner_optimizer.build(variables)
            for part in with_parts(self.inner_optimizer):
                _check_inner(part)
                if len(replicated(part._trainable_variables)) < len(part._trainable_variables):
                    _refuse_norms(part)
            mark_slots(self.inner_optimizer.variables, variables)
            if not workers.alone:
                self._load_own_rows_of_inner()
                for variable in replicated(variables):
                    value = tf.convert_to_tensor(variable)
                    variable.assign(workers.first(value, variable.path))
        self._trainable_variables = list(variables)
        self.built = True

    def apply(self, grads: Iterable[Any], trainable_variables: Any = None) -> None:
        """Takes a step with the mean of the gradients over workers."""
        gradients = list(grads)
        variables = (
            self._trainable_variables if trainable_variables is None else trainable_variables
        )
        variables = list(variables)
        if not self.built:
            self.build(variables)
        workers = current()
        if not workers.alone:
            common = [at for at, variable in enumerate(variables) if shard_of(variable) is None]
            of_common = [gradients[at] for at in common]
            names = [variables[at].path for at in common]
            for at, mean in zip(common, mean_over_workers(workers, of_common, names), strict=True):
                gradients[at] = mean
        self.inner_optimizer.apply(gradients, variables)
        if not workers.alone and self.check_every:
            self._check_now_and_then(workers, variables)

    def load_own_variables(self, store: Any) -> None:
        """Loads saved variables; for slots with a row per class, this worker's rows."""
        super().load_own_variables(own_rows(store, self.variables, self.name))

    def finalize_variable_values(self, var_list: list[Any]) -> None:
        """Waits for the other workers at the end of `fit`, and compares the weights."""
        workers = current()
        if not workers.alone:
            meet(workers, END_OF_FIT, self.name, self.iterations)
            check_alike(workers, replicated(var_list))
        self.inner_optimizer.finalize_variable_values(var_list)

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for JSON."""
        inner = keras.saving.serialize_keras_object(self.inner_optimizer)
        return {"name": self.name, "inner_optimizer": inner, "check_every": self.check_every}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> DataParallel:
        """Makes an optimizer from what `get_config` returned."""
        inner = keras.saving.deserialize_keras_object(config["inner_optimizer"], custom_objects)
        return cls(**{**config, "inner_optimizer": inner})

    def _load_own_rows_of_inner(self) -> None:
        """Makes the inner optimizer, which Keras loads separately, load this worker's rows."""
        inner = self.inner_optimizer
        load = inner.load_own_variables

        def load_own_rows(store: Any) -> None:
            load(own_rows(store, inner.variables, inner.name))

        inner.load_own_variables = load_own_rows

    def _check_now_and_then(self, workers: Workers, variables: list[Any]) -> None:
        step = tf.cast(tf.convert_to_tensor(self.iterations), tf.int64)

        def check() -> tf.Tensor:
            check_alike(workers, replicated(variables))
            return tf.constant(0)

        tf.cond(tf.equal(step % self.check_every, 0), check, lambda: tf.constant(0))


def mean_over_workers(
    workers: Workers, gradients: Sequence[Any], names: Sequence[str]
) -> list[Any]:
    """Returns the mean of each named gradient, bitwise the same on all workers.

    A gradient is a tensor, `tf.IndexedSlices` or None, and of the same kind on all workers. Slices
    of equal rows are added up; None stays None.
    """
    means = list(gradients)
    dense = [at for at, g in enumerate(means) if isinstance(g, tf.Tensor)]
    slices = [at for at, g in enumerate(means) if isinstance(g, tf.IndexedSlices)]
    if dense:
        for at, mean in zip(dense, _dense(workers, [means[at] for at in dense]), strict=True):
            means[at] = mean
    if slices:
        counts = tf.stack([tf.shape(means[at].indices, tf.int64)[0] for at in slices])
        counts = workers.gather(counts, "trunk/counts")
        for column, at in enumerate(slices):
            means[at] = _slices(workers, means[at], counts[:, column], names[at])
    return means


def _dense(workers: Workers, gradients: list[tf.Tensor]) -> list[tf.Tensor]:
    wide = tf.float64 if any(g.dtype == tf.float64 for g in gradients) else tf.float32
    flat = tf.concat([tf.reshape(tf.cast(g, wide), [-1]) for g in gradients], axis=0)
    flat = workers.sum_of_gradients(flat, "trunk/dense") / workers.size
    parts = tf.split(flat, [g.shape.num_elements() for g in gradients])
    return [
        tf.cast(tf.reshape(part, g.shape), g.dtype)
        for part, g in zip(parts, gradients, strict=True)
    ]


def _slices(
    workers: Workers, gradient: tf.IndexedSlices, counts: tf.Tensor, name: str
) -> tf.IndexedSlices:
    values, ids = gradient.values, tf.cast(gradient.indices, tf.int64)
    wide = tf.float64 if values.dtype == tf.float64 else tf.float32
    most, here = tf.maximum(tf.reduce_max(counts), 1), tf.shape(ids, tf.int64)[0]
    width = values.shape[1:].num_elements()
    rows = tf.pad(
        tf.reshape(tf.cast(values, wide), tf.stack([here, width])), [[0, most - here], [0, 0]]
    )
    sent = tf.sequence_mask(counts, most)
    dtype = workers.sent_dtype(wide)
    every = workers.gather(packed(rows, dtype), f"trunk/rows/{name}")
    rows = tf.reshape(tf.boolean_mask(every, sent), [-1, every.shape[2]])
    rows = tf.cast(unpacked(rows, dtype)[:, :width], wide)
    ids = tf.boolean_mask(
        workers.gather(tf.pad(ids, [[0, most - here]]), f"trunk/ids/{name}"), sent
    )
    unique, places = tf.unique(ids)
    sums = tf.math.unsorted_segment_sum(rows, places, tf.size(unique)) / workers.size
    shape = tf.concat([tf.shape(unique), values.shape[1:]], axis=0)
    sums = tf.cast(tf.reshape(sums, shape), values.dtype)
    return tf.IndexedSlices(sums, tf.cast(unique, gradient.indices.dtype), gradient.dense_shape)


def with_parts(optimizer: Any) -> list[Any]:
    """Returns an optimizer and all optimizers inside it.

    A `MultiOptimizer` of a function has inner optimizers once it is built (`build_parts`).
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    parts = [*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])]
    return [optimizer, *(each for part in parts for each in with_parts(part))]


def build_parts(optimizer: Any, model: keras.Model) -> None:
    """Builds a `MultiOptimizer` of a function, once all layers are, as the first step does."""
    is_unknown = any(getattr(part, "optimizers", None) == [] for part in with_parts(optimizer))
    if is_unknown and not optimizer.built and all(each.built for each in flat_layers(model)):
        optimizer.build(model.trainable_variables)


def adds_up(optimizer: Any) -> bool:
    """Returns whether an optimizer adds up slices of the same row."""
    if isinstance(optimizer, OptimizerHooks):
        return True
    if any(getattr(optimizer, option, None) for option in CLIPPING):
        return False  # it uses the norms of slices
    _, *parts = with_parts(optimizer)
    if parts:
        return all(map(adds_up, parts))
    return isinstance(optimizer, keras.optimizers.SGD)


def _facts(variables: list[Any], inner: Any) -> dict[str, Any]:
    return {
        "the number of shared weights": sum(math.prod(v.shape) for v in replicated(variables)),
        "the list of weights": [
            (v.path, str(v.dtype), str(v.shape)) for v in replicated(variables)
        ],
        "the optimizer": keras.saving.serialize_keras_object(inner),
    }


def _refuse_norms(inner: Any) -> None:
    """Raises an error for optimizers that use the norm of a weight: workers hold only parts."""
    clips = {name: getattr(inner, name) for name in ("clipnorm", "global_clipnorm")}
    if isinstance(inner, _BY_NORMS) or any(clips.values()):
        raise ValueError(
            "inner_optimizer must not use norms of weights or of their gradients where the "
            f"classes of a head that it trains are spread over workers; got {inner!r} with {clips}"
        )


def _check_inner(inner: Any) -> None:
    if not isinstance(inner, keras.optimizers.Optimizer) or isinstance(inner, DataParallel):
        raise TypeError(f"inner_optimizer must be another Keras optimizer; got {inner!r}")
    if isinstance(inner, keras.optimizers.LossScaleOptimizer) or inner.loss_scale_factor:
        raise ValueError(
            "inner_optimizer must not scale the loss, as one worker might leave out a step that "
            f"others take; got {inner!r}. Use the policy 'mixed_bfloat16' or 'float32'."
        )
    if inner.use_ema:
        raise ValueError(
            f"inner_optimizer must not average weights; got {inner!r} with use_ema=True"
        )
