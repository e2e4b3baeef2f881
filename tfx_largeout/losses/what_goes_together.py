# SPDX-License-Identifier: Apache-2.0
"""Which heads give a kind of statistics, for what a refusal names in place of what it refuses."""

from __future__ import annotations

from typing import Any

from tfx_largeout import heads


def heads_that_give(kind: type) -> list[str]:
    """Returns the names of the package's heads that give a kind of statistics in training."""
    return [
        name
        for name in heads.__all__
        if isinstance(head := getattr(heads, name), type)
        and issubclass(head, heads.Head)
        and kind in head.gives
    ]


def losses_of(kinds: tuple[type, ...], base: Any) -> list[str]:
    """Returns the names of the package's losses, below `base`, that are functions of such kinds."""
    found: list[str] = []
    for loss in base.__subclasses__():
        is_ours = loss.__module__.startswith("tfx_largeout.")
        if is_ours and "from_statistics" in loss.__dict__ and loss.trains_on in kinds:
            found.append(loss.__name__)
        found += losses_of(kinds, loss)
    return sorted(set(found))


def listed(names: list[str]) -> str:
    """Returns names as part of a sentence."""
    return " or ".join(filter(None, [", ".join(names[:-1]), *names[-1:]])) or "none of the package"
