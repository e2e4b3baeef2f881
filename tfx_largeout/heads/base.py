# SPDX-License-Identifier: Apache-2.0
"""The head: to Keras a Dense layer, to a loss the source of statistics of the logits."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import full_name, integer_argument
from tfx_largeout.class_filter import NEVER, ClassFilter, excluded_ids, ranks_without
from tfx_largeout.distribute.class_shard import own_rows
from tfx_largeout.distribute.global_batch import Parts
from tfx_largeout.distribute.workers import ALONE, Workers
from tfx_largeout.example_weights import example_weights
from tfx_largeout.heads.head_device import on_device, place_methods
from tfx_largeout.heads.keras_losses_and_metrics import (
    HEAD_OUTPUT,
    refuse_loss_of_probabilities,
    serve_metrics,
)
from tfx_largeout.heads.large_logits import gives_logits, watch_logits
from tfx_largeout.heads.over_workers import check_optimizer, whole_batch, workers_of
from tfx_largeout.heads.room_for_weights import check_room, check_room_for_step
from tfx_largeout.keras_internals import asks_for_shapes, calling_model, flat_layers, mask_of
from tfx_largeout.labels import Labels, SoftLabels, normalize_labels
from tfx_largeout.memory import StepMemory, StepSize, Weight, gradients_of
from tfx_largeout.ops.product_precision import keep_float32
from tfx_largeout.ops.rows.large_variables import load_variables, save_variables
from tfx_largeout.ops.rows.short_weights import warn_of_short_weights
from tfx_largeout.run_time_checks import refuse_replicas, refuse_xla
from tfx_largeout.saving import check_saved_shapes, kept_arguments, with_objects
from tfx_largeout.statistics import (
    ExactStatistics,
    MeanLogitStatistics,
    TopScores,
    without_gradient,
)
from tfx_largeout.tensorflow_internals import tape_may_record

_ONE_REPLICA = (
    "heads support one replica",
    "Build and train the model outside the distribution strategy; for several workers use "
    "tlo.distribute.",
)


class Head(keras.layers.Layer):
    """An output layer over `num_classes` classes that never needs its logits to train.

    `head(h)` returns the logits o = W h + b, `[..., C]`, as `Dense(C)` would. The returned tensor
    also carries a `HeadOutput`: the head, h, and whether the call trains. A `HeadLoss` reads that
    instead of the logits; in a graph nothing then consumes the logits, and TensorFlow prunes them.

    A head implements `build`, `flat_logits`, `statistics`, `mean_logit` and `top_k`, and says in
    `gives` which kinds of statistics it can be trained with. Arguments stored as attributes of the
    same name enter its configuration automatically.

    Args:
        num_classes: The number of classes C, at least 2.
        **kwargs: `name`, `dtype`, `trainable`, as for any Keras layer. `bfloat16`, `mixed_bfloat16`
            and `mixed_float16` work, statistics are float32 in any case.

    Raises:
        ValueError: `num_classes` is not an integer of at least 2, or weights would be float16.
        MemoryError: When it is built: weights and state need more than the available memory.
            Nothing has been created then. (For a step that may not fit there is a warning.)
    """

    # The kinds of statistics that the head gives in training. `ExactStatistics` always works.
    gives: ClassVar[tuple[type, ...]] = ()
    # Whether several workers can each hold the rows of a part of the classes.
    spreads_classes: ClassVar[bool] = False
    # Whether several workers can hold the same rows: `data_replicas` of `connect`.
    has_replicas: ClassVar[bool] = False
    # The s of logits s cos(theta); None for others. See `CosineLogits`.
    cosine_scale: float | None = None
    # Whether its weights may be bfloat16.
    short_weights: ClassVar[bool] = True
    # "cpu": weights and work are on the host; None: where TensorFlow puts them.
    device: str | None = None
    has_warned_of_logits: bool = False
    # The id of the optimizer for which the head has checked memory for a step.
    checked_room_for: int | None = None
    # The workers that share the classes, once the head is built.
    workers: Workers = ALONE

    def __init__(self, num_classes: int, **kwargs: Any) -> None:
        if "activation" in kwargs:
            raise TypeError(
                f"{type(self).__name__} gives logits, and takes no activation; got "
                f"activation={kwargs['activation']!r}: leave it out, as a loss of logits needs none"
            )
        if "cosine_scale" in kwargs:
            raise TypeError(
                f"cosine_scale must be left out of {type(self).__name__}, whose rows of weights "
                "are not kept at norm 1; DenseHead, ExactSoftmaxHead and SampledHead have it; got "
                f"{kwargs['cosine_scale']!r}"
            )
        if "device" in kwargs:
            raise TypeError(
                f"device must be left out of {type(self).__name__}, whose weights the model's "
                "optimizer trains; SampledHead, ExactSoftmaxHead, FactoredHead and "
                f"HierarchicalSoftmaxHead have it; got {kwargs['device']!r}"
            )
        # A head casts h itself, so that it sees the dtype that h comes in.
        super().__init__(autocast=False, **kwargs)
        self.num_classes = integer_argument("num_classes", num_classes, at_least=2)
        self.supports_jit = False
        self.supports_masking = True
        self._refuse_dtypes()

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        place_methods(cls)

    @on_device
    def build(self, input_shape: tuple[int | None, ...]) -> None:
        width = input_shape[-1]
        if width is None:
            raise ValueError(
                f"the last dimension of the hidden activations must be known; got {input_shape}"
            )
        refuse_replicas(*_ONE_REPLICA)
        keep_float32()
        self.workers = workers_of(self, width)
        check_room(self, width, tf.TensorShape(input_shape[:-1]).num_elements())
        super().build(input_shape)
        self.width: int = width
        self.input_spec = keras.layers.InputSpec(min_ndim=2, axes={-1: width})

    @on_device
    def call(
        self, inputs: tf.Tensor, training: bool | None = None, exclude: Any = None
    ) -> tf.Tensor:
        """Returns the logits `[..., C]`, carrying what a loss or a metric needs.

        Args:
            inputs: Hidden activations h, `[..., D]`, floating.
            training: True in a training step: the loss then asks for training statistics. False:
                everything is exact, and nothing is updated. None (default, also from a subclassed
                model whose `call` has no `training`): True where a gradient tape records.
            exclude: None, or integers `[..., E]`: class ids padded with -1 or ragged, such as items
                that a user has seen. Logits and loss do not change; metrics with `filtered=True`,
                `top_k_model` and `export` leave these classes out.

        Raises:
            TypeError: h is not a dense tensor of floats.
            ValueError: Several workers train, and the model's optimizer is not a `DataParallel`.
            RuntimeError: More than one replica (also when the head is built), or XLA.
            MemoryError: In a model's first step: the state of its optimizer needs too much memory.
        """
        if isinstance(inputs, tf.SparseTensor) or not inputs.dtype.is_floating:
            raise TypeError(
                f"{full_name(self)} must get a dense floating tensor; got {inputs!r}. For sparse "
                "inputs, put a SparseDense layer in front."
            )
        refuse_replicas(*_ONE_REPLICA)
        refuse_xla_of_heads()
        if training is None:
            training = tape_may_record()
        model = calling_model(self)
        optimizer = getattr(model, "optimizer", None)
        if optimizer is not None and (training or asks_for_shapes()):
            if self.checked_room_for != id(optimizer):
                check_room_for_step(self, optimizer, inputs.shape[:-1].num_elements())
            self.checked_room_for = id(optimizer) if training else None
        hidden = self.linear_input(inputs)
        is_plain = not training or type(self).training_logits is Head.training_logits
        # The gradient of others is an error, which a persistent tape raises when a call is traced.
        logits = self._prunable_logits(hidden if is_plain else tf.stop_gradient(hidden), model)
        if training:
            check_optimizer(self, model)
            if is_plain:
                refuse_loss_of_probabilities(self, model)
            if self.trainable:
                own = getattr(self, "optimizer", None) or getattr(model, "optimizer", None)
                warn_of_short_weights(full_name(self), self.weights, own)
            logits = self.training_logits(logits, inputs)
        metrics_look = serve_metrics(model) and training
        setattr(logits, HEAD_OUTPUT, HeadOutput(self, hidden, training, metrics_look, exclude))
        return logits

    def compute_output_shape(self, input_shape: tuple[int | None, ...]) -> tuple[int | None, ...]:
        return (*input_shape[:-1], self.num_classes)

    def compute_output_spec(self, *args: Any, **kwargs: Any) -> Any:
        # By `call`, as logits may have another dtype than the layer.
        return keras.Operation.compute_output_spec(self, *args, **kwargs)

    def linear_input(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the input of the linear map to the logits: h, or `HeadOutput.hidden`."""
        return hidden

    @on_device
    def logits(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns all logits `[..., C]` of hidden activations `[..., D]`, in `logits_dtype`."""
        flat = tf.reshape(hidden, [-1, hidden.shape[-1]])
        return _unflatten(self.flat_logits(flat, self.logits_dtype), hidden)

    def flat_logits(self, hidden: tf.Tensor, dtype: str) -> tf.Tensor:
        """Returns all logits `[N, C]` of hidden activations `[N, D]`, in a dtype."""
        raise NotImplementedError

    def statistics(self, kind: type, hidden: tf.Tensor, labels: Labels, training: bool) -> Any:
        """Returns the statistics of the logits that a loss or a metric needs.

        A head overrides this for the kinds that it gives, and calls `super()` for the others.

        Args:
            kind: `ExactStatistics`, which every head gives, in bounded memory; or one of `gives`.
            hidden: `[N, D]`, floating. If the classes are spread over several workers: h of the
                global batch, the same on all workers, as `HeadOutput.over_workers` returns it.
            labels: N examples, normal form, checked.
            training: True: statistics of a training step, differentiable in `hidden` (except for
                `ExactStatistics`). False: exact values, which have no gradient.

        Returns:
            An instance of `kind`.

        Raises:
            TypeError: The head does not give this kind.
        """
        kinds = " and ".join(kind.__name__ for kind in self.gives)
        raise TypeError(
            f"kind must be ExactStatistics or, in training, what {type(self).__name__} gives, "
            f"{kinds}; got {kind.__name__} with training={training}"
        )

    def forward(
        self, kind: type, hidden: tf.Tensor, labels: Labels
    ) -> tuple[tuple[tf.Tensor, ...], Any]:
        """Computes the statistics of a kind, one of `gives`, for N examples.

        Returns:
            A tuple of the statistics that have a gradient, and residuals: tensors that `backward`
            and `as_statistics` reuse.
        """
        raise NotImplementedError

    def as_statistics(
        self,
        kind: type,
        labels: Labels,
        values: tuple[tf.Tensor, ...],
        residuals: Any,
        anchor: tf.Tensor,
    ) -> Any:
        """Returns statistics of a kind from the results of `forward`; `values` have a gradient.

        `anchor`, `[]`, the value of `gradient_anchor`, has one, too.
        """
        return kind(labels, *values)

    def mean_logit(self, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the mean of all logits of h `[N, D]`, `[N]`, exactly and in bounded memory."""
        raise NotImplementedError

    def whole_batch(
        self, output: HeadOutput, y_true: Any, sample_weight: Any, mask: Any, filtered: bool
    ) -> Any:
        """Implements `HeadOutput.over_workers` for several workers."""
        return whole_batch(output, y_true, sample_weight, mask, filtered)

    @property
    def logits_dtype(self) -> str:
        """The dtype of the logits that a call returns."""
        return self.compute_dtype

    @property
    def statistics_dtype(self) -> str:
        """The dtype of statistics: float32, or float64 if the weights are float64."""
        return "float64" if self.variable_dtype == "float64" else "float32"

    @property
    def step_number(self) -> Any:
        """The number of the training step, or 0 if the head does not count steps."""
        return 0

    def top_k(
        self,
        hidden: tf.Tensor,
        k: int,
        allowed: ClassFilter | None = None,
        temperature: Any = None,
    ) -> TopScores:
        """Returns the k best classes of each example, exactly and in bounded memory.

        Args:
            hidden: `[N, D]`, floating: the examples of this worker.
            k: The number of classes, 0 <= k <= C.
            allowed: Which classes each example may find; None: all. If there are fewer than k, -inf
                and -1 follow. The log partition is over all classes.
            temperature: T: logits are divided by it. None: 1.
        """
        raise NotImplementedError

    @on_device
    def allowed_ranks(self, hidden: tf.Tensor, ids: tf.Tensor, groups: tf.Tensor) -> tf.Tensor:
        """Returns the ranks `[N, K]` of classes, counted among classes with a group of at least 0.

        Args:
            hidden: As `statistics`.
            ids: `[N, K]`, padded with -1. The rank of a class with a negative group has no meaning.
            groups: `[C]` int32, as in `ClassFilter`.
        """
        raise TypeError(
            f"allow must be None for {full_name(self)}, whose logits are no products of rows"
        )

    def to_dense(self, **kwargs: Any) -> keras.layers.Dense:
        """Returns a Dense layer with the head's weights, if its logits are W h + b.

        Raises:
            TypeError: Its logits have another form.
        """
        raise TypeError(
            "to_dense needs a head whose logits are W h + b with a separate W; got "
            f"{full_name(self)}, whose logits are others"
        )

    def without_update(self, draw: int = 0) -> contextlib.AbstractContextManager[None]:
        """Returns a context in which a gradient through `statistics` does not update the weights.

        For measurements during training. Heads that don't update themselves don't need it.

        Args:
            draw: Another number gives other candidates, if the head draws them by a seed and the
                number of the step. Default 0: as in training.
        """
        return contextlib.nullcontext()

    def weights_of(self, width: int, workers: int = 1) -> list[Weight]:
        """Returns the weights that `build` would create for h of a width, without scalars.

        A head overrides it so that its memory is known before it is built. Default: the weights of
        a head that is built.

        Args:
            width: D.
            workers: The number of workers over which the classes are spread. The result is for the
                first one.

        Raises:
            ValueError: The head is not built, and does not override it.
        """
        if not self.built:
            raise ValueError(
                f"{full_name(self)} must be built, or write `weights_of`, for its memory to be "
                "known; got one that is not"
            )
        return [Weight.of(variable) for variable in self.variables]

    def memory_of_step(self, width: int, step: StepSize, workers: int = 1) -> StepMemory:
        """Returns the memory of a step, without the weights. Arguments: as `weights_of`; the step.

        Default: logits of all classes, and gradients of all weights that the model's optimizer
        trains.
        """
        weights = self.weights_of(width, workers)
        logits = 4 * step.examples * self.num_classes
        return StepMemory(
            gradients=gradients_of(weights), activations=3 * logits, evaluation=2 * logits
        )

    def get_config(self) -> dict[str, Any]:
        arguments = kept_arguments(self, Head)
        return {**arguments, **super().get_config(), "num_classes": self.num_classes}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Head:
        return cls(**with_objects(config))

    def add_state(
        self, name: str, shape: Sequence[int] = (), initializer: Any = "zeros", dtype: Any = None
    ) -> Any:
        """Adds a weight that the model's optimizer does not train."""
        # No autocast: it would cast all of a table wherever a few rows are gathered.
        return self.add_weight(
            name=name,
            shape=shape,
            initializer=initializer,
            dtype=dtype,
            trainable=False,
            autocast=False,
        )

    def save_own_variables(self, store: Any) -> None:
        self.workers.refuse_several(
            f"{full_name(self)} must be saved by tlo.save_model, called on all of "
            f"{self.workers.size} workers, over which its classes are spread; got another call to "
            "save it, which would write a part of them"
        )
        save_variables(self.saved_weights, store)

    def load_own_variables(self, store: Any) -> None:
        owner = full_name(self)
        store = own_rows(store, self.saved_weights, owner)
        self.check_saved(store)
        if len(store.keys()) != len(self.saved_weights):
            super().load_own_variables(store)  # raises the error
        load_variables(self.saved_weights, store)

    @property
    def saved_weights(self) -> list[Any]:
        """The weights in the order of Keras's files."""
        return [*self._trainable_variables, *self._non_trainable_variables]

    def check_saved(self, store: Any) -> None:
        """Raises an error if saved weights have other shapes, before the first one is assigned.

        Args:
            store: What Keras passes to `load_own_variables`: arrays by the number of the weight,
                trainable weights first.
        """
        check_saved_shapes(full_name(self), self.saved_weights, store)

    def _prunable_logits(self, hidden: tf.Tensor, model: Any) -> tf.Tensor:
        if not gives_logits():
            return hidden[..., :0]
        if asks_for_shapes():  # Keras may ask for shapes before variables have values
            shape = tf.concat([tf.shape(hidden)[:-1], [self.num_classes]], axis=0)
            static = hidden.shape[:-1].concatenate(self.num_classes)
            return tf.ensure_shape(tf.zeros(shape, self.logits_dtype), static)
        watch_logits(self, model, hidden)
        if tf.executing_eagerly():
            return self.logits(hidden)
        # In a separate function, unused logits are pruned together with everything they read.
        # Otherwise the read of the kernel stays, and after a sparse update it copies the whole
        # variable.
        return tf.function(self.logits, autograph=False)(hidden)

    def training_logits(self, logits: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
        """Returns the logits of h in a training step."""
        return logits

    def _refuse_dtypes(self) -> None:
        for dtype in (self.variable_dtype, self.compute_dtype):
            if not tf.as_dtype(dtype).is_floating:
                raise ValueError(
                    f"dtype of {full_name(self)} must be a floating one; got {dtype!r}"
                )
        if self.variable_dtype == "float16":
            raise ValueError(
                f"{full_name(self)} must not have float16 weights, of which most steps are too "
                f"small to count; got the policy {self.dtype_policy.name!r}. Use 'mixed_float16', "
                "'mixed_bfloat16' or 'float32'."
            )


def heads_of(model: keras.Model) -> list[Head]:
    """Returns the heads of a model."""
    return [layer for layer in flat_layers(model) if isinstance(layer, Head)]


def refuse_xla_of_heads() -> None:
    """Raises a RuntimeError where a call of a head is traced for XLA."""
    refuse_xla(
        "heads can't be compiled with XLA: their ops have no XLA kernels",
        "jit_compile=True (or 'auto', of a model that makes its head after compile)",
        "Leave jit_compile out, or set it to False.",
    )


class HeadOutput:
    """Data attached to the logits that a head returns.

    Attributes:
        head: The head.
        hidden: Its input h, `[..., D]`; with a `cosine_scale`, s h / ||h||.
        training: Whether the call was part of a training step.
        ignore_class: The id that means "no label", or None.
        ignored_by_loss: The `ignore_class` of the loss that read this output last, or None.
        metrics_look: Whether that loss is Keras's, and a compiled metric reads this output.
        is_asked: Whether a `HeadLoss` has asked for statistics.
        exclude: The classes that each example excludes, as passed to the call, or None.
        excluded_of_all, parts: Of a global batch: the classes that its examples exclude, and whose
            each example is.
    """

    def __init__(
        self,
        head: Head,
        hidden: tf.Tensor,
        training: bool,
        metrics_look: bool = False,
        exclude: Any = None,
        excluded_of_all: tf.Tensor | None = None,
        parts: Parts | None = None,
    ) -> None:
        self.head = head
        self.exclude = exclude
        self.excluded_of_all, self.parts = excluded_of_all, parts
        self.hidden = hidden
        self.training = training
        self.ignore_class: int | None = None
        self.ignored_by_loss: int | None = None
        self._views: dict[int, HeadOutput] = {}
        self.metrics_look = metrics_look
        self.is_asked = False
        self._kept: dict[tuple[Any, int, Any], tuple[Any, ExactStatistics]] = {}
        self._whole: dict[tuple[Any, int, bool], tuple[Any, ...]] = {}

    @property
    def batch_rank(self) -> int:
        """The number of batch dimensions: 1 for h `[B, D]`, 2 for `[B, T, D]`."""
        return self.hidden.shape.rank - 1

    @property
    def flat_hidden(self) -> tf.Tensor:
        """The input with its batch dimensions flattened, `[N, D]`."""
        if self.batch_rank == 1:
            return self.hidden
        return tf.reshape(self.hidden, [-1, self.hidden.shape[-1]])

    def labels(self, y_true: Any) -> Labels:
        """Returns the labels of this batch in the normal form, checked against h and C."""
        if isinstance(y_true, Labels):
            return y_true
        batch_shape = tf.shape(self.hidden)[:-1]
        return normalize_labels(y_true, self.head.num_classes, batch_shape, self.ignore_class)

    def gives(self, kind: type) -> bool:
        """Says whether the head gives a kind of statistics in this call."""
        always = (ExactStatistics,) if self.training else (ExactStatistics, MeanLogitStatistics)
        return kind in (*always, *self.head.gives)

    def statistics(
        self, kind: type, y_true: Any, check: Callable[[Labels], Labels] | None = None
    ) -> Any:
        """Returns statistics of this batch; in a training step, training statistics.

        `ExactStatistics` are computed once for each `y_true` tensor and graph: the loss and all
        metrics of a step share one pass over all classes. So do `MeanLogitStatistics` outside of
        training. They are not shared for labels that may change (arrays, variables), nor where a
        gradient tape records eagerly, so that asking for their gradient raises an error. `check`
        returns the labels after checking them.
        """
        is_mean = kind is MeanLogitStatistics and not self.training
        if is_mean or kind is ExactStatistics:
            exact = self._exact(y_true)
            exact = exact if check is None else exact._replace(labels=check(exact.labels))
            return self._with_mean(exact) if is_mean else exact
        labels = self.labels(y_true)
        labels = labels if check is None else check(labels)
        return self.head.statistics(kind, self.flat_hidden, labels, self.training)

    def for_loss(self, ignore_class: int | None) -> HeadOutput:
        """Returns the output for labels in which a loss ignores a class; None: it ignores none.

        Metrics that read the same output later ignore that class, too.
        """
        self.ignored_by_loss = ignore_class
        return self._ignoring(ignore_class)

    def for_metric(self, ignore_class: int | None = None) -> HeadOutput:
        """Returns the output for a metric that ignores a class; None: the loss's class."""
        return self._ignoring(self.ignored_by_loss if ignore_class is None else ignore_class)

    def _ignoring(self, ignore_class: int | None) -> HeadOutput:
        """Returns one output per ignored class, so that equal ones share an exact pass."""
        if ignore_class is None:
            return self
        if ignore_class not in self._views:
            view = HeadOutput(self.head, self.hidden, self.training, exclude=self.exclude)
            view.ignore_class = ignore_class
            self._views[ignore_class] = view
        return self._views[ignore_class]

    def excluding(self, exclude: Any) -> HeadOutput:
        """Returns the same output with another `exclude`."""
        view = HeadOutput(self.head, self.hidden, self.training, self.metrics_look, exclude)
        view.is_asked, view.ignored_by_loss = self.is_asked, self.ignored_by_loss
        return view

    @property
    def is_trained_by_logits(self) -> bool:
        """Whether a Keras loss trains by the logits in this step, and a metric reads it."""
        return self.metrics_look and not self.is_asked

    def keep_for_metrics(self, whole: HeadOutput, y_true: Any) -> None:
        """Computes exact statistics of the result of `over_workers`, for metrics of the step."""
        self.is_asked = True
        if self.metrics_look:
            whole._exact(y_true, keep=True)

    def over_workers(
        self, y_true: Any, sample_weight: Any, mask: Any, filtered: bool = False
    ) -> tuple[HeadOutput, Any, Any, Any]:
        """Returns the output, labels, weights and mask of the examples of all workers.

        In a single process all four are returned unchanged. A batch is gathered once: a later call
        with the same weights, or without weights, gets the result of the first call. The examples
        with which `distribute.shard` fills up parts are left out.

        Args:
            y_true: Labels, in any form of `normalize_labels`.
            sample_weight: None, or weights in a form that `example_weights` accepts.
            mask: None, or a mask in such a form.
            filtered: Whether `exclude` is gathered, too. Default False.

        Returns:
            The output, labels, weights and mask.
        """

        def alone(*given: Any) -> tuple[HeadOutput, Any, Any, Any]:
            return (self, *given)

        def several(*given: Any) -> tuple[HeadOutput, Any, Any, Any]:
            return self._of_all_workers(given[0], given[1], given[2], filtered)

        return self.head.workers.pick(alone, several)(y_true, sample_weight, mask)

    def _of_all_workers(
        self, y_true: Any, sample_weight: Any, mask: Any, filtered: bool
    ) -> tuple[HeadOutput, Any, Any, Any]:
        key = (_ids_of(y_true), id(tf.compat.v1.get_default_graph()), filtered)
        given = (y_true, sample_weight)  # kept alive, so that no other object gets its id
        known, whole = self._whole.get(key, (None, None))
        if whole is None or (sample_weight is not None and known[1] is not sample_weight):
            whole = self.head.whole_batch(self, y_true, sample_weight, mask, filtered)
            self._whole.setdefault(key, (given, whole))
        output, labels, weights, mask = whole
        return output, labels, None if sample_weight is None else weights, mask

    def of_all_groups(self, *columns: tf.Tensor | None) -> list[tf.Tensor | None]:
        """Returns columns `[N]` for the examples of all groups of workers: see `Parts`."""
        if self.parts is None:
            return list(columns)
        return self.parts.of_all_groups(columns, f"{self.head.name}/groups")

    def filtered_ranks(
        self, y_true: Any, excludes: bool = True, groups: tf.Tensor | None = None, key: Any = None
    ) -> ExactStatistics:
        """Returns statistics whose ranks count only the classes that may be found.

        These are the classes that are not excluded (if it `excludes`) and have a group of at least
        0 in `groups` `[C]`, which the key identifies. Any other label has the rank `NEVER`. Calls
        share a pass, as in `statistics`, in which excluded classes are ranked beside the labels:
        O(N E C) more.

        Raises:
            ValueError: The head was called without `exclude`.
        """
        return self._exact(y_true, False, excludes, groups, key)

    @property
    def excluded(self) -> tf.Tensor:
        """`[N, E]` int64, the classes that each example excludes, padded with -1, checked.

        Raises:
            ValueError: The head was called without `exclude`.
        """
        if self.excluded_of_all is not None:
            return self.excluded_of_all
        if self.exclude is None:
            raise ValueError(
                "filtered must be False unless it is said which classes each example excludes, by "
                f"head(h, exclude=...) in the model; got a call of {self.head.name!r} without it"
            )
        return excluded_ids(self.exclude, self.head.num_classes, self.hidden)

    def _exact(
        self,
        y_true: Any,
        keep: bool = False,
        excludes: bool = False,
        groups: tf.Tensor | None = None,
        groups_key: Any = None,
    ) -> ExactStatistics:
        eager = tf.executing_eagerly()
        graph = 0 if eager else id(tf.compat.v1.get_default_graph())
        key = (_ids_of(y_true), graph, (excludes, groups_key))
        if key in self._kept and not (eager and tape_may_record()):
            return self._kept[key][1]
        hidden, labels = self.flat_hidden, self.labels(y_true)
        if excludes or groups is not None:
            exact = self._filtered(hidden, labels, excludes, groups)
        else:
            exact = self.head.statistics(ExactStatistics, hidden, labels, training=False)
        kinds = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor, Labels, SoftLabels)
        if keep or isinstance(y_true, kinds):
            # y_true is kept beside the result so that no other object gets its id.
            self._kept[key] = (y_true, exact)
        return exact

    def _filtered(
        self, hidden: tf.Tensor, labels: Labels, excludes: bool, groups: tf.Tensor | None
    ) -> ExactStatistics:
        """Returns statistics for `filtered_ranks`; with logits only if there are no groups."""
        ids, number = labels.ids, tf.shape(labels.ids)[1]
        if excludes:
            ids = tf.concat([ids, self.excluded], axis=1)
        logits = tf.zeros_like(labels.ids, self.head.statistics_dtype)
        log_partition = tf.zeros_like(hidden[:, 0], self.head.statistics_dtype)
        if groups is None:
            exact = self.head.statistics(ExactStatistics, hidden, Labels(ids), training=False)
            logits, log_partition = exact.target_logits[:, :number], exact.log_partition
            ranks = exact.target_ranks
        else:
            ranks = self.head.allowed_ranks(hidden, ids, groups)
        ranks = ranks_without(ranks[:, :number], ranks[:, number:])
        if groups is not None:
            is_out = labels.mask & (tf.gather(groups, labels.safe_ids) < 0)
            ranks = tf.where(is_out, tf.constant(NEVER, tf.int64), ranks)
        return ExactStatistics(labels, logits, log_partition, ranks)

    def _with_mean(self, exact: ExactStatistics) -> MeanLogitStatistics:
        mean = self.head.mean_logit(self.flat_hidden)
        return without_gradient(MeanLogitStatistics(*exact[:3], mean, self.head.num_classes))

    def unflatten(self, values: tf.Tensor) -> tf.Tensor:
        """Returns `values` `[N, ...]` with the batch dimensions of h."""
        return _unflatten(values, self.hidden)


def _unflatten(values: tf.Tensor, hidden: tf.Tensor) -> tf.Tensor:
    if hidden.shape.rank == 2:
        return values
    shape = tf.concat([tf.shape(hidden)[:-1], tf.shape(values)[1:]], axis=0)
    static = hidden.shape[:-1].concatenate(values.shape[1:])
    return tf.ensure_shape(tf.reshape(values, shape), static)


def _ids_of(y_true: Any) -> tuple[int, ...]:
    """Returns the identity of labels; for soft labels of their parts, as Keras makes new pairs."""
    parts = (y_true.ids, y_true.values) if isinstance(y_true, SoftLabels) else (y_true,)
    return tuple(map(id, parts))


def head_output(y_pred: Any) -> HeadOutput | None:
    """Returns the `HeadOutput` of `y_pred`, or None if `y_pred` does not come from a head."""
    return getattr(y_pred, HEAD_OUTPUT, None)


def examples_that_count(y_pred: Any, output: HeadOutput) -> tf.Tensor:
    """Returns `[N]` bool: False for examples that the Keras mask of `y_pred` leaves out."""
    mask = mask_of(y_pred)
    return example_weights(output.hidden, None, mask) != 0
