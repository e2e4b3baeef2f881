# SPDX-License-Identifier: Apache-2.0
"""ClassShard: the classes of a worker, and marks on variables that are split over workers.

Class c is row c // R of worker c % R. Classes are split cyclically because ids are often sorted by
frequency: with ranges of ids, one worker would hold most of the labels and candidates.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tfx_largeout.devices import HOST
from tfx_largeout.run_time_checks import Check

_MARK = "_tfx_largeout_class_shard"


class ClassShard(NamedTuple):
    """A shard of the classes of a layer: row r of its matrices is class first + stride r.

    Attributes:
        first: The class of row 0, a number or a scalar tensor; the worker's rank.
        stride: The difference between the classes of successive rows, at least 1; a number or a
            scalar tensor. It is the number of workers.
        num_classes: The number of classes of the layer, a number or a scalar tensor. Default None:
            one per row, so that `ClassShard()` is a layer that is not split.
    """

    first: Any = 0
    stride: Any = 1
    num_classes: Any = None

    @property
    def is_whole(self) -> bool:
        """Whether all rows are here, for Python numbers: row c is class c, without an op."""
        return isinstance(self.stride, int) and self[:2] == (0, 1)

    @property
    def num_rows(self) -> int:
        """The number of classes in the shard, for Python numbers."""
        return len(range(self.first, self.num_classes, self.stride))

    def tensors(self, num_rows: Any) -> ClassShard:
        """Returns the same shard as int64 scalars on the host, for `num_rows` rows."""
        num_classes = num_rows if self.num_classes is None else self.num_classes
        with tf.device(HOST):
            numbers = [tf.cast(x, tf.int64) for x in (self.first, self.stride, num_classes)]
        return ClassShard(*numbers)

    def check(self, num_rows: Any) -> Check:
        """Returns a check that every row is a class of the layer. For `tensors`."""
        num_rows = tf.cast(num_rows, tf.int64)
        last = (self.num_classes - 1 - self.first) // tf.maximum(self.stride, 1)
        fits = (self.first < self.num_classes) & (last >= num_rows - 1)
        rule = (
            "first_class, class_stride and num_classes must be such that each row r is the class "
            "first_class + class_stride r in [0, num_classes); got"
        )
        return Check(
            (self.first >= 0)
            & (self.stride >= 1)
            & (self.num_classes >= 0)
            & (fits | (num_rows == 0)),
            lambda: [rule, *self, "for rows", num_rows],
        )

    def class_of(self, rows: Any) -> Any:
        """Returns the ids of rows."""
        return rows if self.is_whole else self.first + self.stride * rows

    def row_of(self, ids: tf.Tensor, num_rows: Any = None) -> tf.Tensor:
        """Returns the rows of classes; -1 for padding, other shards, and ids from `num_rows` on."""
        if self.is_whole:
            return ids
        stride = tf.maximum(tf.cast(self.stride, ids.dtype), 1)  # `check` reports others
        offset = ids - self.first
        row = offset // stride
        is_here = (offset >= 0) & (offset % stride == 0)
        if num_rows is not None:
            is_here &= row < tf.cast(num_rows, ids.dtype)
        return tf.where(is_here, row, tf.constant(-1, ids.dtype))

    def owners(self, ids: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the workers that hold classes, and the rows of the classes there."""
        return ids % self.stride, ids // self.stride

    def row_from(self, first_class: tf.Tensor) -> tf.Tensor:
        """Returns the first row whose class is `first_class` or later; 0 after the last row."""
        if self.is_whole:
            return first_class
        return (first_class - self.first + self.stride - 1) // self.stride % self.num_rows

    def own(self, of_all: Any, start: int = 0) -> Any:
        """Returns this shard's rows of an array or a tensor of the classes from `start` on."""
        first = self.first - start if self.first >= start else (self.first - start) % self.stride
        return of_all if self.is_whole else of_all[first :: self.stride]

    def meets(self, other: ClassShard) -> bool:
        """Returns whether both shards may hold a class, for Python numbers."""
        return (self.first - other.first) % math.gcd(self.stride, other.stride) == 0


def mark_as_shard(variable: Any, shard: ClassShard, axis: int = 0) -> None:
    """Marks a Keras variable whose rows of classes are split over workers along an axis.

    A variable with all classes is not marked.
    """
    if not shard.is_whole:
        setattr(variable, _MARK, (shard, axis))


def shard_of(variable: Any) -> ClassShard | None:
    """Returns the mark of a Keras variable, or None."""
    return getattr(variable, _MARK, (None, 0))[0]


def shape_of_all(variable: Any) -> list[int]:
    """Returns the shape of a Keras variable over all workers together."""
    shard, axis = getattr(variable, _MARK, (None, 0))
    shape = list(variable.shape)
    if shard is not None:
        shape[axis] = shard.num_classes
    return shape


def parameters_of_all(variable: Any) -> int:
    """Returns the size of a Keras variable over all workers, each number counted once."""
    return math.prod(shape_of_all(variable))


def replicated(variables: Iterable[Any]) -> list[Any]:
    """Returns the variables that are the same on all workers."""
    return [variable for variable in variables if shard_of(variable) is None]


def mark_slots(slots: Sequence[Any], variables: Sequence[Any]) -> None:
    """Marks the slots of a Keras optimizer that belong to marked variables.

    The slots are found by name: Keras names a slot after its variable.
    """
    for slot in slots:
        owner = owner_of_slot(slot, variables)
        if owner is not None and slot.shape[:1] == owner.shape[:1]:
            shard = shard_of(owner)
            if shard is not None:
                mark_as_shard(slot, shard)


def owner_of_slot(slot: Any, variables: Iterable[Any]) -> Any:
    """Returns the variable after which Keras has named a slot of an optimizer, or None."""
    owners = [each for each in variables if slot.name.startswith(each.path.replace("/", "_") + "_")]
    return max(owners, key=lambda owner: len(owner.path), default=None)


def own_rows(store: Mapping[str, Any], variables: Sequence[Any], owner: str) -> Mapping[str, Any]:
    """Returns saved arrays, reduced to this worker's rows where there is a row per class.

    The store is Keras's argument of `load_own_variables`: arrays by the number of the variable.
    Error messages name the owner.
    """
    if isinstance(store, _OwnRows) or len(replicated(variables)) == len(variables):
        return store
    return _OwnRows(store, variables, owner)


class _OwnRows(Mapping[str, Any]):
    """Does the work of `own_rows`, with the same arguments."""

    def __init__(self, store: Mapping[str, Any], variables: Sequence[Any], owner: str) -> None:
        self._store, self._variables, self._owner = store, variables, owner

    def __getitem__(self, key: str) -> Any:
        """Returns an array; raises a ValueError if it has rows for another number of classes."""
        array, variable = self._store[key], self._variables[int(key)]
        shard = shard_of(variable)
        if shard is None:
            return array
        if len(array) != shard.num_classes:
            raise ValueError(
                f"the saved weights must have the shapes of {self._owner}; got {len(array)} rows "
                f"for {variable.path}, which has {shard.num_classes} over all workers"
            )
        return shard.own(array)

    def __contains__(self, key: object) -> bool:
        return key in self._store

    def __iter__(self) -> Iterator[str]:
        return iter(self._store.keys())

    def __len__(self) -> int:
        return len(self._store.keys())
