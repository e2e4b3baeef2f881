# SPDX-License-Identifier: Apache-2.0
"""The names of classes, in a file that goes with an exported model."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path

import tensorflow as tf


class ClassNames:
    """A table of names, which reads an asset of the exported model: the name of class c in line c.

    Args:
        names: `[C]`, checked.
        path: Where to write the file that becomes the asset.
    """

    def __init__(self, names: list[str], path: Path) -> None:
        path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8", newline="\n")
        lines = tf.lookup.TextFileInitializer(
            str(path),
            tf.int64,
            tf.lookup.TextFileIndex.LINE_NUMBER,
            tf.string,
            tf.lookup.TextFileIndex.WHOLE_LINE,
            vocab_size=len(names),
        )
        self.table = tf.lookup.StaticHashTable(lines, default_value="")

    def of(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the names of classes, and "" for -1."""
        return self.table.lookup(ids)


def checked_names(names: Iterable[str], num_classes: int) -> list[str]:
    """Returns names as a list.

    Raises:
        TypeError: They are no strings.
        ValueError: They are not C names of one line each, or one is empty or no UTF-8.
    """
    if isinstance(names, (str, bytes, Mapping, Set)):  # the last two have no order of classes
        got = type(names).__name__ if isinstance(names, (Mapping, Set)) else repr(names)
        raise TypeError(f"names must be a list of strings, one a class; got {got}")
    listed = list(names)
    if len(listed) != num_classes:
        raise ValueError(f"names must be num_classes={num_classes} strings; got {len(listed)}")
    for number, name in enumerate(listed):
        if not isinstance(name, str):
            raise TypeError(f"names must be strings; got {name!r} for class {number}")
        if "\n" in name or "\r" in name:
            raise ValueError(f"names must be of one line each; got {name!r} for class {number}")
        if not name:  # "" stands for no class
            raise ValueError(f"names must not be empty; got {name!r} for class {number}")
        try:
            name.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"names must be what UTF-8 can encode; got {name!r} for class {number}"
            ) from error
    return listed
