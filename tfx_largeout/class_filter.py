# SPDX-License-Identifier: Apache-2.0
"""Class filters: classes that an example excludes, and classes allowed for all."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from tfx_largeout.run_time_checks import Check, after
from tfx_largeout.saving import unpack_array

PADDING = -1
_INFINITY = float("inf")


class ClassFilter(NamedTuple):
    """The classes that each of N examples may find: its group, without the excluded ones.

    Attributes:
        excluded: `[N, E]` int64 class ids, padded with -1.
        groups: `[C]` int32, the group of each class, -1 for classes that are never found; or None:
            every class may be found.
        wanted: `[N]` int32, the group of an example, -1 for any; None without groups.
    """

    excluded: tf.Tensor
    groups: tf.Tensor | None = None
    wanted: tf.Tensor | None = None

    def hides(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns which of classes `[N, n]` int64 must not be found, `[N, n]` bool; True for -1.

        Cost: O(N (n + E) log E).
        """
        last = tf.fill([tf.shape(ids)[0], 1], tf.constant(tf.int64.max))
        ordered = tf.sort(tf.concat([self.excluded, last], axis=1), axis=1)
        places = tf.searchsorted(ordered, ids)
        hidden = (ids < 0) | tf.equal(tf.gather(ordered, places, batch_dims=1), ids)
        if self.groups is None:
            return hidden
        return hidden | ~self.wants(ids)

    def of_examples(self, begin: tf.Tensor, end: tf.Tensor) -> ClassFilter:
        """Returns the filter of the examples in [begin, end)."""
        wanted = None if self.wanted is None else self.wanted[begin:end]
        return ClassFilter(self.excluded[begin:end], self.groups, wanted)

    def wants(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns which of classes `[N, n]` are in the group of their example (with `groups`)."""
        groups = tf.convert_to_tensor(self.groups)
        return self._wants(tf.gather(groups, tf.maximum(ids, 0)))

    def masked(self, scores: tf.Tensor, start: Any, end: Any) -> tf.Tensor:
        """Returns scores `[N, n]` of the classes in [start, end), -inf for hidden classes."""
        start, end = tf.cast(start, tf.int64), tf.cast(end, tf.int64)
        lowest = tf.constant(-_INFINITY, scores.dtype)
        slots = tf.where((self.excluded >= start) & (self.excluded < end))
        columns = tf.gather_nd(self.excluded, slots) - start
        places = tf.stack([slots[:, 0], columns], axis=1)
        values = tf.fill(tf.shape(columns), lowest)
        scores = tf.tensor_scatter_nd_update(scores, places, values)
        if self.groups is None:
            return scores
        return tf.where(self._wants(self.groups[start:end][tf.newaxis]), scores, lowest)

    def best_left(self, scores: tf.Tensor, ids: tf.Tensor, k: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the first k of `[N, n]` that may be found, followed by -inf and -1."""
        missing = [[0, 0], [0, tf.maximum(k - tf.shape(ids)[1], 0)]]
        hidden = tf.pad(self.hides(ids), missing, constant_values=True)
        first = tf.argsort(tf.cast(hidden, tf.int32), axis=1, stable=True)[:, :k]
        lowest = tf.constant(-_INFINITY, scores.dtype)
        found = []
        for values, none in ((scores, lowest), (ids, tf.constant(PADDING, ids.dtype))):
            values = tf.where(hidden, none, tf.pad(values, missing))
            values = tf.gather(values, first, batch_dims=1)
            found.append(tf.ensure_shape(values, [ids.shape[0], k]))
        return found[0], found[1]

    def _wants(self, groups: tf.Tensor) -> tf.Tensor:
        wanted = self.wanted[:, tf.newaxis]  # type: ignore[index]
        return (groups >= 0) & ((wanted < 0) | tf.equal(groups, wanted))


NEVER = 2**62
"""The rank of a label that may not be found."""


def ranks_without(ranks: tf.Tensor, excluded: tf.Tensor) -> tf.Tensor:
    """Returns ranks `[N, K]` without some classes, which have ranks `[N, E]` (-1: none).

    Subtracts how many of these classes are better; a label that is one of them gets the rank
    `NEVER`.

    Cost: O(N (K + E) log E).
    """
    last = tf.constant(tf.int64.max)
    ordered = tf.pad(tf.where(excluded < 0, last, excluded), [[0, 0], [0, 1]], constant_values=last)
    ordered = tf.sort(ordered, axis=1)
    is_first = tf.pad(ordered[:, 1:] != ordered[:, :-1], [[0, 0], [1, 0]], constant_values=True)
    number = tf.cumsum(tf.cast(is_first, tf.int64), axis=1, exclusive=True)
    places = tf.searchsorted(ordered, ranks)
    is_excluded = tf.equal(tf.gather(ordered, places, batch_dims=1), ranks)
    left = ranks - tf.gather(number, places, batch_dims=1)
    left = tf.where(is_excluded, tf.constant(NEVER, tf.int64), left)
    return tf.where(ranks < 0, ranks, left)


class Findable(NamedTuple):
    """The checked arguments `allow` and `categories`: classes that all examples may find.

    Attributes:
        allow: Sorted, distinct ids; or None: all classes.
        categories: The category of each class; or None.
    """

    allow: np.ndarray | None
    categories: np.ndarray | None

    @classmethod
    def of(cls, allow: Any, categories: Any) -> Findable:
        """Returns the checked arguments.

        Raises:
            TypeError: They are not integers.
            ValueError: There is no allowed class, or an id is negative.
        """
        allow = _ids("allow", allow)
        if allow is not None and not allow.size:
            raise ValueError("allow must have at least one class, or nothing is found; got none")
        return cls(None if allow is None else np.unique(allow), _ids("categories", categories))

    def groups(self, num_classes: int) -> np.ndarray | None:
        """Returns the groups of C classes, as in `ClassFilter`.

        Raises:
            ValueError: An allowed id is not below C, or there are not C categories.
        """
        if self.allow is not None and self.allow[-1] >= num_classes:
            raise ValueError(
                f"allow must be class ids below num_classes={num_classes}; got {self.allow[-1]}"
            )
        if self.categories is not None and self.categories.size != num_classes:
            raise ValueError(
                f"categories must have one entry per class, num_classes={num_classes}; got "
                f"{self.categories.size}"
            )
        if self.allow is None and self.categories is None:
            return None
        groups = np.zeros(num_classes, np.int32)
        if self.categories is not None:
            groups[:] = self.categories
        if self.allow is not None:
            hidden = np.ones(num_classes, bool)
            hidden[self.allow] = False
            groups[hidden] = -1
        return groups

    def filter(
        self, groups: Any, num_classes: int, hidden: tf.Tensor, exclude: Any, category: Any
    ) -> ClassFilter | None:
        """Returns the filter of a batch; None if all examples may find all classes.

        Args:
            groups: The result of `groups`, as a tensor.
            num_classes: C.
            hidden: `[..., D]`; its batch dimensions are flattened to N.
            exclude: None, or ids `[..., E]`, padded with -1, ragged or sparse.
            category: None, or `[...]`, the category of each example; -1: any.

        Raises:
            TypeError: `exclude` or `category` are not integers.
            ValueError: Only one of `category` and `categories` is given; a shape doesn't fit.
            tf.errors.InvalidArgumentError: A value is out of range; a shape doesn't fit.
        """
        if (category is None) != (self.categories is None):
            given = "None" if category is None else "one"
            rule = "must be given with categories" if category is None else "needs categories"
            raise ValueError(f"category {rule}, the category of each class; got {given}")
        if exclude is None and groups is None:
            return None
        size = tf.reduce_prod(tf.shape(hidden)[:-1])
        excluded = tf.fill([size, 0], tf.constant(PADDING, tf.int64))
        if exclude is not None:
            excluded = excluded_ids(exclude, num_classes, hidden)
        if groups is None:
            return ClassFilter(excluded)
        wanted = tf.fill([size], PADDING)
        if self.categories is not None:
            wanted = _wanted(category, int(self.categories.max()), size)
        return ClassFilter(excluded, groups, wanted)


ALL_CLASSES = Findable(None, None)


def excluded_ids(exclude: Any, num_classes: int, hidden: tf.Tensor) -> tf.Tensor:
    """Returns the classes that examples exclude, `[N, E]` int64, padded with -1.

    Args and errors: as `Findable.filter`.
    """
    rank = hidden.shape.rank
    rule = "exclude must be [..., E] class ids, a list of them for each example, padded with -1"
    if not isinstance(exclude, (tf.RaggedTensor, tf.SparseTensor)):
        try:
            exclude = tf.convert_to_tensor(exclude)
        except ValueError as error:  # for lists of different lengths
            raise ValueError(f"{rule}, or a tf.ragged.constant; got {exclude!r}") from error
    _require_integers("exclude", exclude)
    exclude = tf.cast(exclude, tf.int64)
    if isinstance(exclude, tf.RaggedTensor):
        exclude = exclude.to_tensor(PADDING)
    elif isinstance(exclude, tf.SparseTensor):
        exclude = tf.sparse.to_dense(tf.sparse.reorder(exclude), default_value=PADDING)
    if exclude.shape.rank not in (None, rank):
        raise ValueError(f"{rule}; got shape {exclude.shape}")
    fits = "exclude: the first dimensions must be the batch dimensions of the examples,"
    if not exclude.shape[:-1].is_compatible_with(hidden.shape[:-1]):
        raise ValueError(f"{fits} {hidden.shape[:-1]}; got {exclude.shape[:-1]}")
    wrong = (exclude < PADDING) | (exclude >= num_classes)

    def first() -> list[Any]:
        place = tf.where(wrong)[:1]
        text = f"exclude: each id must be at least 0 and less than {num_classes}, or -1; got"
        return [text, tf.gather_nd(exclude, place), "at", place]

    batch_shape = tf.shape(hidden)[:-1]
    checks = [
        Check(tf.equal(tf.rank(exclude), rank), lambda: [rule, "; got shape", tf.shape(exclude)]),
        Check(
            _are_equal(tf.shape(exclude)[:-1], batch_shape),
            lambda: [fits, batch_shape, "; got", tf.shape(exclude)[:-1]],
        ),
        Check(~tf.reduce_any(wrong), first),
    ]
    with after(checks):
        exclude = tf.identity(exclude)
    if exclude.shape.rank == 2:
        return exclude
    width = None if exclude.shape.rank is None else exclude.shape[-1]
    width = tf.shape(exclude)[-1] if width is None else width
    return tf.reshape(exclude, [tf.reduce_prod(batch_shape), width])


def _are_equal(shape: tf.Tensor, other: tf.Tensor) -> tf.Tensor:
    if not shape.shape.is_compatible_with(other.shape):
        return tf.constant(False)
    return tf.reduce_all(tf.equal(shape, other))


def _wanted(category: Any, most: int, size: tf.Tensor) -> tf.Tensor:
    category = tf.convert_to_tensor(category)
    _require_integers("category", category)
    category = tf.reshape(tf.cast(category, tf.int64), [-1])  # Keras passes `[B, 1]`
    wrong = (category < PADDING) | (category > most)
    each = "category must be one number for each example, of which there are"
    rule = f"category must be at least 0 and at most {most}, the largest of categories, or -1; got"
    number = tf.size(category)
    checks = [
        Check(tf.equal(number, size), lambda: [each, size, "; got", number]),
        Check(~tf.reduce_any(wrong), lambda: [rule, tf.boolean_mask(category, wrong)[:1]]),
    ]
    with after(checks):
        return tf.cast(category, tf.int32)


def _require_integers(name: str, values: Any) -> None:
    if not values.dtype.is_integer or values.dtype == tf.uint64:
        raise TypeError(
            f"{name} must be integers that fit into int64; got dtype {values.dtype.name}"
        )


def _ids(name: str, values: Any) -> np.ndarray | None:
    if values is None:
        return None
    if isinstance(values, str):  # from a configuration
        values = unpack_array(values)
    array = np.asarray(list(values) if isinstance(values, (set, frozenset, range)) else values)
    if array.ndim != 1:
        raise ValueError(f"{name} must be of one dimension; got shape {array.shape}")
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"{name} must be integers; got dtype {array.dtype}")
    array = array.astype(np.int64)
    if array.size and not 0 <= array.min() <= array.max() < 2**31:
        raise ValueError(
            f"{name} must be at least 0 and less than 2^31; got {array.min()} to {array.max()}"
        )
    return array
