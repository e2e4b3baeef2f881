# SPDX-License-Identifier: Apache-2.0
"""Marks on weights of which each worker has the rows of its own classes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

_MARK = "_tfx_largeout_class_shard"


class Shard(NamedTuple):
    """How a variable is a part of one of all classes.

    Attributes:
        num_classes: How many rows all workers have together, C.
        axis: The dimension of classes.
    """

    num_classes: int
    axis: int


def mark_as_shard(variable: Any, num_classes: int, axis: int = 0) -> None:
    """Marks a variable of which each worker has the rows of its own classes.

    Args:
        variable: A Keras variable.
        num_classes: How many rows all workers have together, C.
        axis: The dimension of classes. Default 0.
    """
    setattr(variable, _MARK, Shard(num_classes, axis))


def shard_of(variable: Any) -> Shard | None:
    """Returns what a Keras variable was marked with, None if it was not."""
    return getattr(variable, _MARK, None)


def classes_of_shard(variable: Any) -> int | None:
    """Returns C for a Keras variable that is marked, None for others."""
    shard = shard_of(variable)
    return None if shard is None else shard.num_classes


def shape_of_all(shape: Iterable[int], shard: Shard | None) -> list[int]:
    """Returns the shape that a variable has of all workers together."""
    whole = list(shape)
    if shard is not None:
        whole[shard.axis] = shard.num_classes
    return whole


def parameters_of_all(variable: Any) -> int:
    """Returns how many numbers of a Keras variable all workers have together, each once."""
    return math.prod(shape_of_all(variable.shape, shard_of(variable)))


def replicated(variables: Iterable[Any]) -> list[Any]:
    """Returns those variables that all workers have alike."""
    return [variable for variable in variables if classes_of_shard(variable) is None]


def mark_slots(slots: Sequence[Any], variables: Sequence[Any]) -> None:
    """Marks those slots of a Keras optimizer that belong to marked variables.

    Args:
        slots: All variables of the optimizer. Keras names a slot after the variable.
        variables: Those that the optimizer was built with.
    """
    for slot in slots:
        owners = [variable for variable in variables if _is_slot_of(slot, variable)]
        if owners:
            classes = classes_of_shard(max(owners, key=lambda owner: len(owner.path)))
            if classes is not None:
                mark_as_shard(slot, classes)


def _is_slot_of(slot: Any, variable: Any) -> bool:
    name = variable.path.replace("/", "_") + "_"
    has_rows = len(slot.shape) > 0 and slot.shape[:1] == variable.shape[:1]
    return has_rows and slot.name.startswith(name)
