# SPDX-License-Identifier: Apache-2.0
"""Heads of the user's own, `package.module:function` on the command line."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from typing import Any

from tfx_largeout.compare.head_table import HEAD_TABLE, HeadRow, head_row
from tfx_largeout.compare.usual_loss import head_and_loss

_LIKE = "complementary_sum"  # whose options of the model's optimizer an own head has


def find_row(head: str, function: str = "") -> HeadRow:
    """Returns the row of a head.

    Args:
        head: Its name.
        function: `package.module:function` for a head of the user's own; else empty.

    Raises:
        ValueError: There is no such head, or no such function.
    """
    if not function:
        return head_row(head)
    make = load_function(function)

    def build(num_classes: int, label_counts: Any, seed: int, options: Any) -> tuple[Any, Any]:
        return head_and_loss(function, make(num_classes, label_counts, seed))

    common = set.intersection(*(set(row.options) for row in HEAD_TABLE))
    options = {name: value for name, value in head_row(_LIKE).options.items() if name in common}
    return HeadRow(head, function, {**options, "neighbors": "no"}, build)


def name_of(function: str) -> str:
    """Returns the name of the head that a function makes: that of the function."""
    return function.rpartition(":")[2]


def load_function(text: str) -> Callable[..., Any]:
    """Returns the function that `package.module:function` names; the current folder counts.

    Raises:
        ValueError: There is none, in one sentence.
    """
    module, _, name = text.rpartition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"must be a name, or package.module:function; got {text!r}")
    folder = os.getcwd()
    sys.path.insert(0, folder)
    try:
        found = importlib.import_module(module)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(
            f"must name a module that can be imported; got {text!r} ({reason})"
        ) from None
    finally:
        sys.path.remove(folder)
        if folder not in sys.path:  # last, for what the function itself imports later
            sys.path.append(folder)
    if not hasattr(found, name):
        raise ValueError(f"must name a function of the module; got {text!r}, where no {name} is")
    function = getattr(found, name)
    if not callable(function):
        raise ValueError(f"must name a function; got {text!r}, which is {function!r}")
    return function
