# SPDX-License-Identifier: Apache-2.0
"""The implementations of streamed_logits, and inputs for them."""

from __future__ import annotations

import os

import numpy as np
import pytest
import tensorflow as tf
from variants import INSTRUCTION_SETS, thorough

from tfx_largeout.ops import library


def implementations(names) -> list:
    """Each compiled instruction set of an op, and the fallback.

    A quick run tries the best instruction set of this processor, and the fallback.
    """
    here = INSTRUCTION_SETS.index(library.instruction_set() or "baseline")
    own = [name for name in names if INSTRUCTION_SETS.index(name) <= here][-1]
    return [*thorough(*(name for name in names if name != own)), own, "composed"]


IMPLEMENTATIONS = implementations(INSTRUCTION_SETS)


def use(name, monkeypatch) -> str:
    """Chooses one of IMPLEMENTATIONS; returns what to pass as `implementation`.

    Skips the test on a processor that lacks the instruction set, and where the environment
    switches the custom ops off.
    """
    if name == "composed":
        return "composed"
    if os.environ.get("TFX_LARGEOUT_FORCE_FALLBACK") == "1":
        pytest.skip("custom ops are switched off")
    monkeypatch.setenv("TFX_LARGEOUT_ISA", name)
    try:
        assert library.instruction_set() == name
    except tf.errors.InvalidArgumentError:
        pytest.skip(f"this processor has no {name}")
    return "op"


def integers(rng, *shape) -> np.ndarray:
    """Small whole numbers: sums of their products are exact in float32, and ties are frequent."""
    return rng.integers(-3, 4, shape).astype(np.float32)


def random_labels(rng, batch, num_labels, num_classes) -> np.ndarray:
    """Class ids with padding between and after them; some rows repeat a label."""
    labels = rng.integers(-1, num_classes, (batch, num_labels))
    labels[: batch // 4, 1:] = labels[: batch // 4, :1]
    return labels.astype(np.int64)
