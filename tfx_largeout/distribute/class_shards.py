# SPDX-License-Identifier: Apache-2.0
"""Marks on weights of which each worker has the rows of its own classes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

_NUM_CLASSES = "_tfx_largeout_num_classes"


def mark_as_shard(variable: Any, num_classes: int) -> None:
    """Marks a variable of which each worker has the rows of its own classes.

    Args:
        variable: A Keras variable.
        num_classes: How many rows all workers have together, C.
    """
    setattr(variable, _NUM_CLASSES, num_classes)


def classes_of_shard(variable: Any) -> int | None:
    """Returns C for a Keras variable that is marked, None for others."""
    return getattr(variable, _NUM_CLASSES, None)


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
