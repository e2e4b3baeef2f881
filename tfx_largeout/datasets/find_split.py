# SPDX-License-Identifier: Apache-2.0
"""find_split: the file of a folder that holds a split."""

from __future__ import annotations

import os
import re
from pathlib import Path


def find_split(folder: str | os.PathLike[str], split: str) -> Path:
    """Returns the one file of a folder that is named like a split.

    Its name is `{split}.txt` or ends in `_{split}.txt`, `-{split}.txt` or `.{split}.txt`, in any
    case, and perhaps with `.gz` or `.xz` after it.

    Args:
        folder: Where to look; not in folders within it.
        split: Such as `train` or `test`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: There are several.
        OSError: The folder can't be read.
    """
    pattern = re.compile(rf"(.*[_.-])?{re.escape(split)}\.txt(\.gz|\.xz)?", re.IGNORECASE)
    found = sorted(path for path in Path(folder).iterdir() if pattern.fullmatch(path.name))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        kind = ValueError if found else FileNotFoundError
        raise kind(f"{folder} must hold one {split}.txt, .txt.gz or .txt.xz; got {names}")
    return found[0]
