# SPDX-License-Identifier: Apache-2.0
"""What is trained, and how: the whole job and one head's part of it."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

FEATURES = ("tf_idf", "counts")
SCHEDULES = ("linear", "constant")


@dataclasses.dataclass(frozen=True)
class DataSettings:
    """Which examples, and how their features are weighted.

    Attributes:
        wordnet: Which of the shipped sets, `"hyper"` or `"lemma"`; None for files of the user.
        train: File of the training examples, where `wordnet` is None.
        test: File of the test examples, likewise.
        features: `"tf_idf"` (TF-IDF weights of log(1 + count), rows of length 1) or `"counts"` (as
            in the file).
        propensity_a: A of the propensity model behind PSP@1.
        propensity_b: B of it.
        hold_out: Share of the training examples to evaluate on, in place of the test examples; 0
            for none.
    """

    wordnet: str | None = "hyper"
    train: str = ""
    test: str = ""
    features: str = "tf_idf"
    propensity_a: float = 0.55
    propensity_b: float = 1.5
    hold_out: float = 0.0


@dataclasses.dataclass(frozen=True)
class TrainingSettings:
    """What all heads have in common.

    Attributes:
        budget: Seconds of training for each head; None where `epochs` counts.
        epochs: Epochs for each head, may be a fraction; None where `budget` counts.
        evaluations: How often each head is evaluated while it trains, the end included.
        batch_size: Examples a step, B.
        hidden: Width of the trunk, D.
        dropout: Share of the trunk's outputs that are left out in each step, in [0, 1).
        schedule: Of the learning rates of trunk and head: `"linear"` (down to 2% at the end of the
            training) or `"constant"`.
        seed: The seed of the initial weights, the order of the examples and the candidates.
        workers: Processes over which the classes of each head are spread, R.
        seeds: How many seeds each head is trained with: `seed`, and those that follow it.
    """

    budget: float | None = 25.0
    epochs: float | None = None
    evaluations: int = 4
    batch_size: int = 512
    hidden: int = 256
    dropout: float = 0.5
    schedule: str = "linear"
    seed: int = 0
    workers: int = 1
    seeds: int = 1

    def total_steps(self, steps_per_epoch: int) -> int | None:
        """The number of steps where epochs count, else None."""
        return None if self.epochs is None else max(1, round(self.epochs * steps_per_epoch))

    def fraction_done(self, steps: int, seconds: float, steps_per_epoch: int) -> float:
        """How much of the training is over: 1 at its end."""
        total = self.total_steps(steps_per_epoch)
        if total is not None:
            return steps / total
        return seconds / self.budget if self.budget else math.inf


@dataclasses.dataclass(frozen=True)
class WorkerSettings:
    """All that a worker needs to train one head.

    Attributes:
        head: Name in the table of heads.
        options: All options of the head: the defaults of its row, and what the user chose.
        data: The data.
        training: What all heads have in common.
        events: Folder of the TensorBoard run.
        chosen: Names of the options that the user chose.
        function: `package.module:function` of a head of the user's own.
    """

    head: str
    options: dict[str, Any]
    data: DataSettings
    training: TrainingSettings
    events: str
    chosen: tuple[str, ...] = ()
    function: str = ""

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> WorkerSettings:
        """The inverse of `dataclasses.asdict`."""
        return cls(
            **{
                **fields,
                "data": DataSettings(**fields["data"]),
                "training": TrainingSettings(**fields["training"]),
            }
        )
