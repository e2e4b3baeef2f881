# SPDX-License-Identifier: Apache-2.0
"""Finds the files of a data set, and reads them."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfx_largeout.compare.settings import WORDNET, DataSettings

_MIN_EXAMPLES, _MIN_CLASSES = 3, 2  # propensities need log N > 1; a head needs two


def find_files(folder: str) -> tuple[list[str], list[str]]:
    """Returns the training and the test files of a folder; see `datasets.split_files`.

    Raises:
        ValueError: The folder does not exist, or there are several such files.
        OSError: There is no such file, or the folder can't be read.
    """
    if not Path(folder).is_dir():
        choices = " or ".join(WORDNET)
        raise ValueError(f"must be {choices}, or a folder; got {folder!r}")
    from tfx_largeout.datasets import split_files

    train, test = (list(map(str, split_files(folder, split))) for split in ("train", "test"))
    return train, test


def load(settings: DataSettings, send: Callable[..., None] = lambda **_: None) -> tuple[Any, Any]:
    """Returns training and test examples, two `SparseExamples`, without unlabelled examples.

    Args:
        settings: Which data.
        send: As in `worker.py`: called with a `stage` while a file is read, and with a `note` about
            the number of examples left out.

    Raises:
        ValueError: A file is malformed, the two do not fit together, or there are too few examples
            or classes.
        OSError: A file can't be read.
    """
    from tfx_largeout import datasets

    if settings.wordnet is not None:
        train, test = datasets.load_wordnet(settings.wordnet)
    else:
        train, test = _read(settings.train, send), _read(settings.test, send)
    for width in ("num_features", "num_labels"):
        if getattr(train, width) != getattr(test, width):
            raise ValueError(
                f"training and test examples must have the same {width}; "
                f"got {getattr(train, width)} and {getattr(test, width)}"
            )
    if train.num_labels < _MIN_CLASSES:
        raise ValueError(f"there must be at least {_MIN_CLASSES} classes; got {train.num_labels}")
    train = _only_labelled("training", train, _MIN_EXAMPLES, send)
    test = _only_labelled("test", test, 1, send)
    if settings.hold_out:
        train, test = _hold_out(train, settings.hold_out)
    if settings.features == "tf_idf":
        train, test = datasets.tf_idf(train, test, log=True)
    return train, test


def _hold_out(examples: Any, share: float) -> tuple[Any, Any]:
    """Splits examples at random, always in the same way."""
    order = np.random.default_rng(0).permutation(len(examples))
    number = min(max(1, round(share * len(examples))), len(examples) - _MIN_EXAMPLES)
    if number < 1:
        raise ValueError(
            f"there must be more than {_MIN_EXAMPLES} training examples with labels to hold some "
            f"out; got {len(examples)}"
        )
    return examples.take(order[number:]), examples.take(order[:number])


def _read(files: Sequence[str], send: Callable[..., None]) -> Any:
    from tfx_largeout import datasets

    name = " and ".join(map(os.path.basename, files))
    send(stage=f"reading {name}")

    def report(done: int, total: int) -> None:
        send(stage=f"reading {name}: {done:,} of {total:,} examples")

    return datasets.read_xc(*files, progress=report)


def sizes(train: Any, test: Any) -> dict[str, int]:
    """Returns the facts about the data for a report."""
    return {
        "train_examples": len(train),
        "test_examples": len(test),
        "features": train.num_features,
        "classes": train.num_labels,
    }


def _only_labelled(what: str, examples: Any, at_least: int, send: Callable[..., None]) -> Any:
    labelled = examples.with_labels()
    if len(labelled) < at_least:
        raise ValueError(
            f"there must be at least {at_least} {what} examples with labels; got {len(labelled)}"
        )
    left_out = len(examples) - len(labelled)
    if not left_out:
        return examples
    send(note=f"{left_out:,} of {len(examples):,} {what} examples have no labels: left out.")
    return labelled
