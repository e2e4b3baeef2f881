# SPDX-License-Identifier: Apache-2.0
"""What a file in the format of the extreme classification repository is parsed to."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Header(NamedTuple):
    """The numbers in the first line of a file."""

    num_examples: int
    num_features: int
    num_labels: int


class Rows(NamedTuple):
    """A block of parsed examples; lengths, not splits, so that blocks can be joined."""

    feature_lengths: np.ndarray
    feature_ids: np.ndarray
    feature_values: np.ndarray
    label_lengths: np.ndarray
    label_ids: np.ndarray

    @property
    def num_examples(self) -> int:
        return len(self.label_lengths)
