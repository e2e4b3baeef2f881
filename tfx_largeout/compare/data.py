# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a data set, and reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tfx_largeout.compare.settings import DataSettings

WORDNET = {"wordnet/hyper": "hyper", "wordnet/lemma": "lemma"}
FEATURES = ("counts", "tf_idf")


def find_files(folder: str) -> tuple[str, str]:
    """Returns the training and the test file of a folder.

    Each is the one file whose name, without `.gz` or `.xz`, is `train.txt` or ends in
    `_train.txt`, in any case; likewise for test.

    Raises:
        ValueError: There is no such folder, or not exactly one such file.
    """
    if not Path(folder).is_dir():
        choices = " or ".join(WORDNET)
        raise ValueError(f"must be {choices}, or a folder; got {folder!r}")
    return _find_file(folder, "train"), _find_file(folder, "test")


def _find_file(folder: str, split: str) -> str:
    pattern = re.compile(rf"(.*[_.-])?{split}\.txt(\.gz|\.xz)?", re.IGNORECASE)
    found = sorted(path for path in Path(folder).iterdir() if pattern.fullmatch(path.name))
    if len(found) != 1:
        names = ", ".join(path.name for path in found) or "none"
        raise ValueError(
            f"must be a folder with one {split}.txt, .txt.gz or .txt.xz "
            f"(else use --train and --test); got {folder!r} with {names}"
        )
    return str(found[0])


def load(settings: DataSettings) -> tuple[Any, Any]:
    """Reads the data.

    Returns:
        Training and test examples, two `SparseExamples`.

    Raises:
        ValueError: A file is malformed, or the two do not fit together.
        OSError: A file can't be read.
    """
    from tfx_largeout import datasets

    if settings.wordnet is not None:
        train, test = datasets.load_wordnet(settings.wordnet)
    else:
        train, test = datasets.read_xc(settings.train), datasets.read_xc(settings.test)
    for width in ("num_features", "num_labels"):
        if getattr(train, width) != getattr(test, width):
            raise ValueError(
                f"training and test examples must have the same {width}; "
                f"got {getattr(train, width)} and {getattr(test, width)}"
            )
    if not len(train) or not len(test):
        raise ValueError(
            f"there must be training and test examples; got {len(train)} and {len(test)}"
        )
    if settings.features == "tf_idf":
        train, test = datasets.tf_idf(train, test)
    return train, test
