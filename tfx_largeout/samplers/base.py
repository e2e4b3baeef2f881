# SPDX-License-Identifier: Apache-2.0
"""The sampler: chooses the candidate classes of a training step."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import tensorflow as tf

from tfx_largeout.arguments import integer_argument
from tfx_largeout.distribute.workers import ALONE
from tfx_largeout.indexes.base import Index
from tfx_largeout.labels import Labels
from tfx_largeout.ops.class_rows import ClassRows
from tfx_largeout.ops.sorted_search import is_in, is_in_rows
from tfx_largeout.saving import kept_arguments, with_objects


class Candidates(NamedTuple):
    """Candidate classes, shared by a batch or per example, and their expected counts.

    The *expected count* E of a class is the expected number of times that it is among the
    candidates: the probability of being one of them if each class can be drawn only once.

    Attributes:
        ids: `[S]` or `[N, S]` int64, class ids; -1: no class.
        log_expected: Like `ids`, float32, log E; 0 for no class.
        true_log_expected: `[N, K]` float32, log E of the labels; 0 at padding.
    """

    ids: tf.Tensor
    log_expected: tf.Tensor
    true_log_expected: tf.Tensor

    @classmethod
    def certain(cls, ids: tf.Tensor, labels: Labels) -> Candidates:
        """Returns candidates that were not drawn: E = 1, for the labels too."""
        return cls(ids, tf.zeros(tf.shape(ids)), tf.zeros(tf.shape(labels.ids)))


class OutputWeights(NamedTuple):
    """The weights of a head, for samplers whose candidates depend on them.

    Attributes:
        kernel: W `[C, D]`, a variable; None if a sampler is used without a head.
        bias: b `[C]`, a variable, or None.
        index: The `Index` over W and b that the head keeps up to date, or None.
        rows: The `ClassRows` of W. Default None: all rows are on this worker.
    """

    kernel: Any = None
    bias: Any = None
    index: Any = None
    rows: Any = None


class Sampler:
    """Chooses candidate classes. Holds configuration; `build` creates its tables for C classes.

    A sampler keeps no state between steps: with the same weights the same seed gives the same
    candidates, in a graph and eagerly, so that a restored run continues exactly. So it may serve
    several heads with the same number of classes.

    To add a sampler, implement `draw`, and `tabulate` if it needs tables or restricts C; to save it
    with a model, register it with Keras and store its arguments as attributes of the same name. A
    sampler whose candidates depend on W sets `looks_at_weights`; if it uses an index, it also sets
    `needs_index` and implements `default_index`. Such a sampler can serve several workers if its
    `draw` finds rows by `OutputWeights.rows`; then it sets `spreads_classes`. Its candidates for a
    batch must be the same on all workers; from candidates per example, each worker may leave out
    classes of other workers.

    Attributes:
        looks_at_weights: Whether `draw` needs W and b of the head.
        spreads_classes: Whether `draw` works if W has the rows of only some of the classes.
        needs_index: Whether `draw` needs the index of the head.
        bytes_a_class: The size of its tables, in bytes per class.
        num_classes: C, or None before `build`.
    """

    looks_at_weights: ClassVar[bool] = False
    spreads_classes: ClassVar[bool] = False
    needs_index: ClassVar[bool] = False
    bytes_a_class: ClassVar[int] = 0
    num_classes: int | None = None

    def build(self, num_classes: int) -> None:
        """Checks the number of classes against the arguments, and creates tables.

        A second call with the same number does nothing.

        Args:
            num_classes: C, at least 2.

        Raises:
            ValueError: C does not fit the arguments, or the sampler was built for another C.
        """
        num_classes = integer_argument("num_classes", num_classes, at_least=2)
        if self.num_classes == num_classes:
            return
        if self.num_classes is not None:
            raise ValueError(
                f"num_classes must be {self.num_classes}, for which this {type(self).__name__} "
                f"was built; got {num_classes}. Give a head of another number of classes another "
                "sampler."
            )
        with tf.init_scope():  # tables outlive the graph in which a model is built
            self.tabulate(num_classes)
        self.num_classes = num_classes

    def sample(
        self, hidden: tf.Tensor, labels: Labels, seed: Any, weights: OutputWeights | None = None
    ) -> Candidates:
        """Chooses candidates for a batch. The choice has no gradient.

        Args:
            hidden: `[N, D]`, the hidden activations of the examples.
            labels: N examples, normal form, checked.
            seed: `[2]` int32 or int64: equal seeds give equal candidates.
            weights: The weights of the head. Default None, for samplers that do not use them.

        Raises:
            ValueError: The sampler was not built, the seed has another shape or dtype, or the
                sampler needs weights or an index and gets none.
        """
        if self.num_classes is None:
            raise ValueError(
                f"{type(self).__name__}.build(num_classes) must be called before sample; "
                "got a sampler that was not built"
            )
        seed = tf.convert_to_tensor(seed)
        if not seed.shape.is_compatible_with([2]) or seed.dtype not in (tf.int32, tf.int64):
            raise ValueError(
                f"seed must have shape [2] and dtype int32 or int64; got shape {seed.shape} and "
                f"dtype {seed.dtype.name}"
            )
        weights = self._checked(weights)
        return self.draw(tf.stop_gradient(hidden), labels, seed, weights)

    def resized(self, num_sampled: int, num_classes: int) -> Sampler:
        """Returns a built copy of this sampler with another number of candidates S.

        Args:
            num_sampled: S.
            num_classes: C.

        Raises:
            TypeError: The sampler has no argument for the number of candidates.
            ValueError: S is out of range.
        """
        config = self.get_config()
        if "num_sampled" not in config:
            raise TypeError(
                "sampler must be one with num_sampled, such as LogUniform, to draw another number "
                f"of candidates; got {type(self).__name__}"
            )
        sampler = type(self).from_config({**config, "num_sampled": num_sampled})
        sampler.build(num_classes)
        return sampler

    def tabulate(self, num_classes: int) -> None:
        """Checks C and creates the constants that `draw` needs, outside of any graph."""

    def default_index(self) -> Index:
        """Returns a new index, for a head without one. Called if `needs_index` is set."""
        raise NotImplementedError

    def num_candidates(self, examples: int) -> tuple[int, bool]:
        """Returns about S for a batch of N, and whether candidates are per example.

        To estimate the memory of a step. Default: the attributes `num_sampled` and `per_example`.
        """
        return int(getattr(self, "num_sampled", 0)), bool(getattr(self, "per_example", False))

    def check_index(self, index: Index | None) -> None:
        """Checks the index of a head with this sampler; None: there is none."""

    def draw(
        self, hidden: tf.Tensor, labels: Labels, seed: tf.Tensor, weights: OutputWeights
    ) -> Candidates:
        """Chooses candidates. Arguments as in `sample`, which has checked them."""
        raise NotImplementedError

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments, for JSON."""
        return kept_arguments(self, Sampler)

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> Sampler:
        """Creates a sampler from the result of `get_config`."""
        return cls(**with_objects(config))

    def _checked(self, weights: OutputWeights | None) -> OutputWeights:
        """Returns weights with everything this sampler needs; all None if it needs nothing."""
        weights = OutputWeights() if weights is None else weights
        if self.looks_at_weights and weights.kernel is None:
            raise ValueError(
                f"weights.kernel must be the kernel of a head, as {type(self).__name__} reads it; "
                "got None"
            )
        if self.needs_index and weights.index is None:
            raise ValueError(
                f"weights.index must be the index of a head for {type(self).__name__}; got None"
            )
        if weights.rows is None and self.num_classes is not None:
            return weights._replace(rows=ClassRows(ALONE, self.num_classes, "sampler"))
        return weights


def where_labels(labels: Labels, values: tf.Tensor) -> tf.Tensor:
    """Returns `values` `[N, K]` as float32, with 0 at padding."""
    return tf.where(labels.mask, tf.cast(values, tf.float32), 0)


def with_certain(drawn: Candidates, labels: Labels, certain: tf.Tensor) -> Candidates:
    """Puts classes with an expected count of 1 first, and removes them from the drawn classes.

    A sum over the classes stays unbiased: these terms are exact, and the others are as likely as
    before. `certain` is `[S]` int64 in rising order, or `[N, S]`, without repeats, padded with -1
    at the end.
    """
    own = certain.shape.rank == 2
    is_certain = _own(certain) if own else _shared(certain)
    ids, expected = drawn.ids, drawn.log_expected
    if own and ids.shape.rank == 1:
        shape = [tf.shape(certain)[0], tf.size(ids)]
        ids, expected = tf.broadcast_to(ids, shape), tf.broadcast_to(expected, shape)
    again = is_certain(ids)
    shape = tf.concat([tf.shape(ids)[:-1], tf.shape(certain)[-1:]], axis=0)
    return Candidates(
        tf.concat(
            [tf.broadcast_to(certain, shape), tf.where(again, tf.constant(-1, tf.int64), ids)],
            axis=-1,
        ),
        tf.concat([tf.zeros(shape, expected.dtype), tf.where(again, 0.0, expected)], axis=-1),
        tf.where(is_certain(labels.ids), 0.0, drawn.true_log_expected),
    )


def _shared(certain: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    last = tf.constant([tf.int64.max])
    return functools.partial(is_in, tf.concat([tf.where(certain < 0, last, certain), last], axis=0))


def _own(certain: tf.Tensor) -> Callable[[tf.Tensor], tf.Tensor]:
    ascending = tf.sort(certain, axis=1)
    return lambda ids: is_in_rows(ascending, ids) & (ids >= 0)
