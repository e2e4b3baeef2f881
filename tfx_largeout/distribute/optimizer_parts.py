# SPDX-License-Identifier: Apache-2.0
"""with_parts: an optimizer and those of which it is made."""

from __future__ import annotations

from typing import Any


def with_parts(optimizer: Any) -> list[Any]:
    """Returns an optimizer, and those that it hands variables to, and so on.

    They are the `optimizers` of a `MultiOptimizer`, which are there once it is built (`fit` does so
    before it traces a step), and the `inner_optimizer` of a `LossScaleOptimizer` or a
    `DataParallel`.
    """
    inner = getattr(optimizer, "inner_optimizer", None)
    parts = [*getattr(optimizer, "optimizers", ()), *([] if inner is None else [inner])]
    return [optimizer, *(each for part in parts for each in with_parts(part))]
