# SPDX-License-Identifier: Apache-2.0
"""The names of classes: an argument of layers and functions that find classes."""

from __future__ import annotations

import base64
import zlib
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import keras


def class_names(names: Any, num_classes: int | None = None) -> list[str] | None:
    """Returns class names as a list of distinct one-line strings; None stays None.

    Args:
        names: A list, class by class; the path of a UTF-8 file with a name per line; or a
            `keras.layers.StringLookup` whose integers are the classes, special tokens included.
        num_classes: The required number. Default None: any number.

    Raises:
        TypeError: They are not strings, or have no order.
        ValueError: There are not `num_classes`; one is empty, or given twice, or has several lines,
            or can't be encoded in UTF-8.
        FileNotFoundError: The file does not exist.
    """
    if names is None:
        return None
    if isinstance(names, (str, Path)):
        listed = _lines(names)
    elif isinstance(names, keras.layers.StringLookup):
        listed = list(names.get_vocabulary())
    elif isinstance(names, (bytes, Mapping, Set)) or not hasattr(names, "__iter__"):
        # Mappings and sets have no order of classes.
        got = type(names).__name__ if isinstance(names, (Mapping, Set)) else repr(names)
        raise TypeError(f"names must be a list of strings, one per class; got {got}")
    else:
        listed = list(names)
    if num_classes is not None and len(listed) != num_classes:
        raise ValueError(f"names must be num_classes={num_classes} strings; got {len(listed)}")
    first: dict[str, int] = {}
    for number, name in enumerate(listed):
        _check(number, name)
        if name in first:
            raise ValueError(
                f"names must differ; got {name!r} for classes {first[name]} and {number}"
            )
        first[name] = number
    return [str(name) for name in listed]


def pack_names(names: list[str] | None) -> str | None:
    """Packs names into a short string for a configuration; `unpack_names` reverses it."""
    if names is None:
        return None
    return base64.b64encode(zlib.compress("\n".join(names).encode())).decode("ascii")


def unpack_names(text: str | None) -> list[str] | None:
    """Returns the names that `pack_names` packed into `text`."""
    return None if text is None else zlib.decompress(base64.b64decode(text)).decode().split("\n")


def _lines(path: str | Path) -> list[str]:
    if not Path(path).is_file():
        raise FileNotFoundError(
            f"names must be a list of strings, or the path of a file, one name per line; got {path}"
        )
    lines = Path(path).read_text(encoding="utf-8").split("\n")
    return lines[:-1] if lines[-1] == "" else lines


def _check(number: int, name: Any) -> None:
    if not isinstance(name, str):
        raise TypeError(f"names must be strings; got {name!r} for class {number}")
    if "\n" in name or "\r" in name:
        raise ValueError(f"names must be of one line each; got {name!r} for class {number}")
    if not name:  # "" means "no class"
        raise ValueError(f"names must not be empty; got {name!r} for class {number}")
    try:
        name.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"names must be what UTF-8 can encode; got {name!r} for class {number}"
        ) from error
