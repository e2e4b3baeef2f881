# SPDX-License-Identifier: Apache-2.0
"""Settings of training: of the whole job and of one head.

The fields of `DataSettings` and `TrainingSettings` created by `_option` are options of the command,
with its help texts.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

WORDNET = {"wordnet/hyper": "hyper", "wordnet/lemma": "lemma"}
FEATURES = ("tf_idf", "counts")
SCHEDULES = ("linear", "constant")
_MOST = 2**31 - 1


def positive_number(text: str) -> float:
    """Parses a number that is above 0 and finite in float32, too."""
    value = _number(text)
    if not 0 < value < np.inf:
        raise ValueError(f"must be a number above 0; got {text!r}")
    limits = np.finfo(np.float32)
    if not limits.tiny <= value <= limits.max:
        raise ValueError(f"must be in [{limits.tiny:.2g}, {limits.max:.2g}]; got {text!r}")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def positive_integer(text: str) -> int:
    """Parses an integer of at least 1 and at most 2^31 - 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ValueError(f"must be an integer of at least 1; got {text!r}")
    if value > _MOST:
        raise ValueError(f"must be at most {_MOST}; got {text!r}")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0 <= value < 1:
        raise ValueError(f"must be a number in [0, 1); got {text!r}")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal() or int(text) > _MOST:
        raise ValueError(f"must be an integer in [0, 2147483648); got {text!r}")
    return int(text)


def _option(value: Any, help: str | None, **arguments: Any) -> Any:
    """Returns a field with its default, and its arguments for argparse."""
    metadata = {"default": value, "help": help, **arguments}
    return dataclasses.field(default=value, metadata=metadata)


def flag_of(name: str) -> str:
    """Returns the flag of an option of the command."""
    return "--" + name.replace("_", "-")


_COUNT: dict[str, Any] = {"type": positive_integer, "metavar": "N"}


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """The examples, and the weighting of their features."""

    wordnet: str | None = "hyper"  # one of the shipped sets; None: files of the user
    train: Sequence[str] = ()  # files: one, or features and labels
    test: Sequence[str] = ()
    features: str = _option(
        FEATURES[0],
        "weights of the features: TF-IDF of log(1 + count), with rows of length 1, or as in "
        f"the file (default: {FEATURES[0]} for {', '.join(WORDNET)}, else {FEATURES[1]})",
        choices=FEATURES,
        default=None,
    )
    propensity_a: float = _option(0.55, None, type=positive_number, metavar="A")
    propensity_b: float = _option(
        1.5,
        "constants of the propensity model behind PSP@1 (default: 0.55, 1.5)",
        type=positive_number,
        metavar="B",
    )
    hold_out: float = _option(
        0.0,
        "hold out this share of the training examples and evaluate on it, not on the test set "
        "(default: 0)",
        type=_share,
        metavar="SHARE",
    )

    def __post_init__(self) -> None:
        for name in ("train", "test"):
            files = getattr(self, name)
            files = [files] if isinstance(files, str) and files else files
            object.__setattr__(self, name, list(files))


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """The common settings of all heads. One of `budget` and `epochs` is None."""

    budget: float | None = _option(
        25.0,
        "training time of each head, without evaluation and compilation (default: 25)",
        type=positive_number,
        metavar="SECONDS",
    )
    epochs: float | None = _option(
        None,
        "instead: the same number of epochs for each head, fractions allowed",
        type=positive_number,
        metavar="N",
    )
    evaluations: int = _option(
        4, "evaluations in training (default: 4, or one per epoch)", **_COUNT, default=None
    )
    batch_size: int = _option(512, "examples per step (default: 512)", **_COUNT)
    hidden: int = _option(256, "width of the hidden layer, ReLUs (default: 256)", **_COUNT)
    dropout: float = _option(
        0.5,
        "share of the hidden activations left out in each step (default: 0.5)",
        type=_share,
        metavar="SHARE",
    )
    schedule: str = _option(
        SCHEDULES[0],
        "learning rates: linear to 2%% over the training time, or constant "
        f"(default: {SCHEDULES[0]})",
        choices=SCHEDULES,
    )
    seed: int = _option(0, "(default: 0)", type=_seed, metavar="N")
    workers: int = _option(
        1, "processes over which the classes of each head are spread (default: 1)", **_COUNT
    )
    seeds: int = _option(
        1, "train each head with N seeds, from --seed on, and report means (default: 1)", **_COUNT
    )

    def fraction_done(self, steps: int, seconds: float, steps_per_epoch: int) -> float:
        """The share of the training that is done: 1 at its end."""
        if self.epochs is not None:
            return steps / max(1, round(self.epochs * steps_per_epoch))
        return seconds / self.budget if self.budget else math.inf


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """The settings with which a worker trains one head."""

    head: str  # its name in the table of heads
    options: dict[str, Any]  # all of them: defaults and chosen ones
    data: DataSettings
    training: TrainingSettings
    events: str  # folder of the TensorBoard run
    chosen: tuple[str, ...] = ()  # names of the options that the user chose
    function: str = ""  # `package.module:function` of a custom head

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> WorkerSettings:
        """The inverse of `dataclasses.asdict`."""
        data, training = DataSettings(**fields["data"]), TrainingSettings(**fields["training"])
        return cls(**{**fields, "data": data, "training": training})
