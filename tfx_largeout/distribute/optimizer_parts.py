# SPDX-License-Identifier: Apache-2.0
"""with_parts: an optimizer and those of which it is made."""

from __future__ import annotations

from typing import Any


def with_parts(optimizer: Any) -> list[Any]:
    """Returns an optimizer, and those that it hands variables to (`MultiOptimizer`).

    They are there once it is built, which `fit` does before it traces a step.
    """
    return [optimizer, *getattr(optimizer, "optimizers", ())]
