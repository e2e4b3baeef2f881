# SPDX-License-Identifier: Apache-2.0
"""The best classes of a head: TopK, a layer, and top_k_model, for a whole model."""

from __future__ import annotations

from typing import Any, ClassVar

import keras
import tensorflow as tf

from tfx_largeout.arguments import at_most_classes, flag_argument, integer_argument, number_argument
from tfx_largeout.class_filter import ClassFilter, Findable, excluded_ids
from tfx_largeout.class_names import class_names, pack_names, unpack_names
from tfx_largeout.heads.base import Head, HeadOutput, head_output, refuse_xla_of_heads
from tfx_largeout.heads.kernel_head import KernelHead
from tfx_largeout.indexes import HashIndex
from tfx_largeout.indexes.base import SearchIndex
from tfx_largeout.keras_internals import flat_layers
from tfx_largeout.saving import pack_array
from tfx_largeout.statistics import TopScores

# This key marks the configuration of an index that belongs to the head.
_OF_HEAD = "index_of_head"
_KEPT = ("k", "activation", "num_found", "temperature")


class _Search(keras.layers.Layer):
    """The number of best classes, and how to find them: arguments as `TopK`.

    `_of` is the name of the attribute that has the head, or the model that ends in one.
    """

    _of: ClassVar[str]

    def __init__(
        self,
        k: int,
        activation: str | None,
        index: SearchIndex | None,
        num_found: int | None,
        allow: Any,
        categories: Any,
        probabilities: bool,
        temperature: float,
        names: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__(autocast=False, **kwargs)  # a model may cast its inputs itself
        self.k = integer_argument("k", k, at_least=1)
        self.activation = probabilities_argument(probabilities, activation)
        self.temperature = number_argument("temperature", temperature, above=0)
        self.names = class_names(names)
        if self.temperature != 1 and index is not None and self.activation == "softmax":
            raise ValueError(
                "temperature must be 1 for probabilities by an index, which has no exact sum; got "
                f"{temperature!r} with index={index!r}"
            )
        if num_found is not None:
            integer_argument("num_found", num_found, at_least=self.k)
        if index is not None and not isinstance(index, SearchIndex):
            raise TypeError(
                f"index must be a HashIndex, a RowBounds, an InvertedFile or None; got {index!r}"
            )
        if num_found is not None and index is not None and not isinstance(index, HashIndex):
            raise ValueError(
                f"num_found must be None for an index of type {type(index).__name__}; "
                f"got {num_found}"
            )
        self.index, self.num_found = index, num_found
        self.findable = Findable.of(allow, categories)
        self._groups: Any = None  # of all classes, once their number is known
        self._names: Any = None

    def _check_numbers(self, num_classes: int) -> None:
        for name, value in (("k", self.k), ("num_found", self.num_found)):
            if value is not None:
                at_most_classes(name, value, num_classes)
        if self.names is not None and len(self.names) != num_classes:
            raise ValueError(
                f"names must be num_classes={num_classes} strings; got {len(self.names)}"
            )
        if self._names is None and self.names is not None:
            with tf.init_scope():
                self._names = tf.constant([*self.names, ""])
        if self._groups is None:
            groups = self.findable.groups(num_classes)
            with tf.init_scope():
                self._groups = None if groups is None else tf.constant(groups)

    def best_classes(
        self, output: HeadOutput, exclude: Any = None, category: Any = None
    ) -> tuple[tf.Tensor, ...]:
        """Returns `(scores, ids)`, both `[..., k]`, of the k best classes for a head's output.

        Also their names, if given.
        """
        head, hidden = output.head, output.flat_hidden
        self._check_numbers(head.num_classes)
        allowed = filter_of(output, self.findable, self._groups, exclude, category)
        if self.index is None:
            top = exact_best(head, hidden, self.k, allowed, self.temperature)
        else:
            top = self.index.search(
                with_rows(head),
                hidden,
                self.k,
                num_found=self.num_found,
                with_partition=self.activation == "softmax",
                allowed=allowed,
            )
            if self.temperature != 1:
                top = top._replace(scores=top.scores / self.temperature)
        found = [activated(top, self.activation), top.ids]
        if self._names is not None:
            found.append(self._names_of(top.ids))
        return tuple(map(output.unflatten, found))

    def _names_of(self, ids: tf.Tensor) -> tf.Tensor:
        last = tf.size(self._names, tf.int64) - 1  # for "no class"
        return tf.gather(self._names, tf.where(ids < 0, last, ids))

    def get_config(self) -> dict[str, Any]:
        """The constructor's arguments; an index of a head is replaced by the head's name.

        The loaded layer must share the index of the loaded head. Training would not update a copy.
        """
        owner = getattr(self, self._of)
        index = keras.saving.serialize_keras_object(self.index)
        for layer in flat_layers(owner):
            if is_of(self.index, layer):
                index = {_OF_HEAD: layer.name}
        arguments = {name: getattr(self, name) for name in _KEPT}
        owner = keras.saving.serialize_keras_object(owner)
        for name, ids in self.findable._asdict().items():
            arguments[name] = None if ids is None else pack_array(ids)
        arguments["names"] = pack_names(self.names)
        return {**super().get_config(), self._of: owner, "index": index, **arguments}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Any:
        owner = keras.saving.deserialize_keras_object(config[cls._of])
        index = _index_of_config(config["index"], flat_layers(owner))
        config = {**config, cls._of: owner, "index": index}
        config["names"] = unpack_names(config.get("names"))
        return cls(**config)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopK(_Search):
    """The k best classes of a head, found without building the logits: exactly, or by an index.

    `scores, ids = TopK(head, k)(h)`: both `[..., k]`, sorted by falling score (without an index,
    ties by lower id). The layer shares the head's weights. (`keras.models.clone_model` gives it
    another head, because Keras clones each layer by its configuration.)

    With a `HashIndex`, only the classes that it finds are ranked, by their exact logits. Classes
    that the index misses are missing: measure the recall against the exact layer. If fewer than k
    are found, -inf and -1 follow (0 with an activation).

    With a `RowBounds` the result equals the exact layer's, bit for bit, as long as W has not
    changed since its last `rebuild`. It is faster for a few examples, but not with
    `activation="softmax"`, as probabilities need all logits.

    With an `InvertedFile` only the probed lists are searched; classes in other lists are missing.
    It does not follow W either, and `activation="softmax"` reads all classes. If the classes are
    spread over several workers, the exact pass replaces both.

    Filters: the call argument `exclude` has class ids that an example must not find, such as items
    that a user has seen; `allow` and `categories` hold for all examples. If fewer than k classes
    are left, scores of -inf (0 with an activation) and ids of -1 follow. Filters don't change
    scores: probabilities are among all C classes. Without an index the result is exact, by the same
    pass. A `HashIndex` removes excluded classes from those it finds; a `RowBounds` or an
    `InvertedFile` searches k + E classes, and is replaced by the exact pass with `allow`,
    `categories`, or if E is unknown when the graph is made (ragged ids).

    Cost: O(B C D) time; memory independent of C. With a `HashIndex` O(B `num_found` D).

    Args:
        head: A head.
        k: The number of classes, 1 <= k <= C.
        activation: None for logits (default); `"softmax"` for probabilities among all C classes, or
            with an index among the classes that it finds; `"sigmoid"` for the logistic probability
            of each class.
        index: `head.index`, which a `SampledHead` may have and keeps up to date; or a
            separate `HashIndex`, `RowBounds` or `InvertedFile`, after
            `index.rebuild(head.kernel, head.bias)`. Default None: exact.
        num_found: The largest number of classes that a `HashIndex` finds, k <= `num_found` <= C.
            Default: min(max(1,000, 10 k), C).
        allow: Class ids, a list, a set or an array: no other class is found. Default None: all.
        categories: `[C]` integers of at least 0, the category of each class: an example finds only
            classes of its `category`. Default None.
        probabilities: True: as `activation="softmax"`. Default False.
        temperature: T > 0: scores are computed from o / T; `tlo.fit_temperature` finds a T. Default
            1.
        names: The names of the C classes: a list of strings, the path of a file with a name per
            line, or a `keras.layers.StringLookup`. The layer then gives `(scores, ids, names)`, ""
            for no class. Default None.
        **kwargs: `name`, `dtype`, as for any Keras layer.

    Call arguments:
        inputs: h, `[..., D]`.
        exclude: None, or integers `[..., E]`, ids padded with -1, ragged or sparse.
        category: With `categories`: integers `[...]`; -1 finds classes of any category. Otherwise
            None.

    Raises:
        TypeError: `head` is not a head, or `index` is not an index; at the first call: the head has
            no W for an index. Ids are not integers.
        ValueError: `k`, `activation` or `num_found` is out of range, or `num_found` is given with
            an index that is not a `HashIndex`; `allow` is empty or out of range; `categories` does
            not have C entries; at the first call: the index was built for a W of another shape;
            only one of `category` and `categories` is given.
        tf.errors.InvalidArgumentError: An excluded id or a category is out of range.
        RuntimeError: At the first call: `index` was not built; or the classes are spread over
            several workers, and it is not the head's `HashIndex`.

    References:
        Vijayanarasimhan, Shlens, Monga, Yagnik 2014, section 3.3.
    """

    _of = "head"

    def __init__(
        self,
        head: Head,
        k: int,
        activation: str | None = None,
        index: SearchIndex | None = None,
        num_found: int | None = None,
        allow: Any = None,
        categories: Any = None,
        probabilities: bool = False,
        temperature: float = 1.0,
        names: Any = None,
        **kwargs: Any,
    ) -> None:
        more = (allow, categories, probabilities, temperature, names)
        super().__init__(k, activation, index, num_found, *more, **kwargs)
        if not isinstance(head, Head):
            raise TypeError(f"head must be a Head; got {head!r}")
        self._check_numbers(head.num_classes)
        self.head = head
        self.supports_jit = False

    def build(self, input_shape: tuple[int | None, ...]) -> None:
        if not self.head.built:
            self.head.build(input_shape)

    def call(
        self, inputs: tf.Tensor, exclude: Any = None, category: Any = None
    ) -> tuple[tf.Tensor, ...]:
        refuse_xla_of_heads()
        output = HeadOutput(self.head, self.head.linear_input(inputs), training=False)
        return self.best_classes(output, exclude, category)


@keras.saving.register_keras_serializable(package="tfx_largeout")
class TopKModel(_Search, keras.Model):
    """A model that gives `(scores, ids)` of the k best classes: see `top_k_model`."""

    _of = "model"

    def __init__(
        self,
        model: keras.Model,
        k: int,
        activation: str | None = None,
        index: SearchIndex | None = None,
        num_found: int | None = None,
        exclude: bool = False,
        allow: Any = None,
        categories: Any = None,
        probabilities: bool = False,
        temperature: float = 1.0,
        names: Any = None,
        **kwargs: Any,
    ) -> None:
        more = (allow, categories, probabilities, temperature, names)
        super().__init__(k, activation, index, num_found, *more, **kwargs)
        self.model = model
        self.exclude = flag_argument("exclude", exclude)

    def call(self, inputs: Any) -> tuple[tf.Tensor, ...]:
        more = ["exclude"] * self.exclude
        more += ["category"] * (self.findable.categories is not None)
        if not more:
            return self.best_classes(output_of_model(self.model, inputs))
        if not isinstance(inputs, (list, tuple)) or len(inputs) != 1 + len(more):
            got = f"{len(inputs)} inputs" if isinstance(inputs, (list, tuple)) else "one input"
            raise ValueError(f"inputs must be a list [x, {', '.join(more)}]; got {got}")
        inputs, *given = inputs
        output = output_of_model(self.model, inputs)
        return self.best_classes(output, **dict(zip(more, given, strict=True)))

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "exclude": self.exclude}

    def get_build_config(self) -> dict[str, Any] | None:
        """None for several inputs: Keras can't rebuild a model by their shapes."""
        has_more = self.exclude or self.findable.categories is not None
        return None if has_more else super().get_build_config()


def top_k_model(
    model: keras.Model,
    k: int,
    activation: str | None = None,
    index: SearchIndex | None = None,
    num_found: int | None = None,
    exclude: bool = False,
    allow: Any = None,
    categories: Any = None,
    probabilities: bool = False,
    temperature: float = 1.0,
    names: Any = None,
) -> keras.Model:
    """Returns a model that gives the k best classes of `model`, which ends in a head.

    `top_k_model(model, 5).predict(x)` returns `(scores, ids)`, both `[N, 5]`. It shares the weights
    of `model`, so it can be made once and used while `model` trains on.

    With `exclude=True` or `categories` the model has more inputs, in a list after `model`'s inputs:
    `predict([x, seen])`, `predict([x, seen, category])`. In a `tf.data.Dataset` they are a tuple in
    a tuple, `((x, seen),)`.

    Args:
        model: A model (Functional, Sequential, subclassed) whose only output is a head's.
        k: The number of classes, 1 <= k <= C.
        activation: As `TopK`.
        index: As `TopK`.
        num_found: As `TopK`.
        exclude: Whether there is an input `exclude`, as in a call of `TopK`. Default False.
        allow: As `TopK`.
        categories: As `TopK`; there is then an input `category`, too.
        probabilities: As `TopK`.
        temperature: As `TopK`.
        names: As `TopK`: the model then gives `(scores, ids, names)`.

    Raises:
        TypeError: `model` does not end in a head. Raised at the first call. Else as `TopK`.
        ValueError: As `TopK`; the number of inputs is wrong.
    """
    more = (exclude, allow, categories, probabilities, temperature, names)
    return TopKModel(model, k, activation, index, num_found, *more)


def output_of_model(model: keras.Model, inputs: Any) -> HeadOutput:
    """Returns the output of the head at the end of a model, for evaluation.

    Raises:
        TypeError: `model` does not end in a head.
    """
    return output_of_logits(model(inputs, training=False))


def output_of_logits(logits: Any) -> HeadOutput:
    """As `output_of_model`, from the model's result."""
    output = head_output(logits)
    if output is None:
        raise TypeError(
            "model must end in a head; it ends in something else. tlo.replace_output "
            "puts a head in place of a Dense layer"
        )
    return output


def activation_argument(activation: Any) -> str | None:
    """Returns the checked `activation`."""
    if activation not in (None, "softmax", "sigmoid"):
        raise ValueError(f"activation must be None, 'softmax' or 'sigmoid'; got {activation!r}")
    return activation


def probabilities_argument(probabilities: Any, activation: Any) -> str | None:
    """Returns the activation by `activation` and `probabilities`."""
    activation_argument(activation)
    if not flag_argument("probabilities", probabilities):
        return activation
    if activation == "sigmoid":
        raise ValueError(
            f"activation must be None or 'softmax' with probabilities; got {activation!r}"
        )
    return "softmax"


def activated(top: TopScores, activation: str | None) -> tf.Tensor:
    """Returns the scores after an activation; 0 for a missing class."""
    if activation == "softmax":
        scores = tf.exp(top.scores - top.log_partition[:, tf.newaxis])
        return tf.where(top.ids < 0, tf.zeros_like(scores), scores)
    return tf.sigmoid(top.scores) if activation == "sigmoid" else top.scores


def filter_of(
    output: HeadOutput, findable: Findable, groups: Any, exclude: Any, category: Any
) -> ClassFilter | None:
    """Returns the classes that the examples of an output may find, by its head's call, too.

    Args and errors: as `Findable.filter`.
    """
    num_classes = output.head.num_classes
    if output.exclude is not None:
        every = [output.excluded]
        if exclude is not None:
            every.append(excluded_ids(exclude, num_classes, output.hidden))
        exclude = output.unflatten(tf.concat(every, axis=1))
    return findable.filter(groups, num_classes, output.hidden, exclude, category)


def exact_best(
    head: Head,
    hidden: tf.Tensor,
    k: int,
    allowed: ClassFilter | None,
    temperature: float | tf.Tensor = 1.0,
) -> TopScores:
    """Returns the exact k best classes that the examples of an output may find.

    With a temperature T, scores and the log partition are of the logits o / T.
    """
    more: dict[str, Any] = {} if allowed is None else {"allowed": allowed}
    if tf.is_tensor(temperature) or temperature != 1:
        more["temperature"] = temperature
    return head.top_k(hidden, k, **more)


def with_rows(head: Head) -> KernelHead:
    """Returns a head if an index can be built over its rows; else raises a TypeError."""
    if not isinstance(head, KernelHead):
        raise TypeError(f"an index must go with a head that has W and b; got {type(head).__name__}")
    head.refuse_soft_cap("an index")
    return head


def is_of(index: SearchIndex | None, layer: Any) -> bool:
    """Returns whether a layer is a head that keeps this index up to date."""
    return index is not None and isinstance(layer, Head) and getattr(layer, "index", None) is index


def _index_of_config(config: Any, layers: list[Any]) -> SearchIndex | None:
    """Returns the index for a configuration: a new one, or the loaded head's."""
    if not isinstance(config, dict) or _OF_HEAD not in config:
        return keras.saving.deserialize_keras_object(config)
    name = config[_OF_HEAD]
    for layer in layers:
        if isinstance(layer, Head) and layer.name == name:
            index = getattr(layer, "index", None)
            if index is not None:
                return index
    raise ValueError(
        f"index must belong to a head of the model; got the one of {name!r}, not there"
    )
