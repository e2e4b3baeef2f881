# SPDX-License-Identifier: Apache-2.0
"""The table of samplers, over 40 classes: a new one adds a row, and must pass the whole suite."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
from oracles import samplers as oracle

from tfx_largeout import samplers

CLASSES = 40
BIAS = np.random.default_rng(5).normal(scale=1.5, size=CLASSES)
COUNTS = np.random.default_rng(4).permutation(np.ceil(300 / np.arange(1, CLASSES + 1))).astype(int)


@dataclasses.dataclass(frozen=True, eq=False)
class Row:
    """A sampler.

    Attributes:
        name: Shown in the test's name.
        make: Returns the sampler, not built.
        expected: `[C]` the expected counts that it claims; None where each draw has its own.
        unique: Whether its candidates are all different.
    """

    name: str
    make: Callable[[], Any]
    expected: np.ndarray | None
    unique: bool = True


Q_UNIFORM, Q_LOG = oracle.uniform(CLASSES), oracle.log_uniform(CLASSES)
Q_SOFTMAX = oracle.softmax(BIAS)
Q_UNIGRAM, Q_ROOT = oracle.unigram(COUNTS), oracle.unigram(COUNTS, 0.5)

SAMPLERS = [
    Row("uniform", lambda: samplers.Uniform(6), 6 * Q_UNIFORM),
    Row("uniform_most", lambda: samplers.Uniform(35), 35 * Q_UNIFORM),
    Row("uniform_all", lambda: samplers.Uniform(CLASSES), np.ones(CLASSES)),
    Row("uniform_repeats", lambda: samplers.Uniform(9, unique=False), 9 * Q_UNIFORM, False),
    Row("uniform_per_example", lambda: samplers.Uniform(9, per_example=True), 9 * Q_UNIFORM, False),
    Row("log_uniform", lambda: samplers.LogUniform(4), None),
    Row("log_uniform_most", lambda: samplers.LogUniform(30), None),
    Row("log_uniform_all", lambda: samplers.LogUniform(CLASSES), np.ones(CLASSES)),
    Row("log_uniform_repeats", lambda: samplers.LogUniform(60, unique=False), 60 * Q_LOG, False),
    Row(
        "log_uniform_per_example",
        lambda: samplers.LogUniform(9, per_example=True),
        9 * Q_LOG,
        False,
    ),
    Row("unigram", lambda: samplers.Unigram(COUNTS, 4, 0.5), None),
    Row("unigram_most", lambda: samplers.Unigram(COUNTS, 20), None),
    Row("unigram_repeats", lambda: samplers.Unigram(COUNTS, 9, unique=False), 9 * Q_UNIGRAM, False),
    Row(
        "unigram_per_example",
        lambda: samplers.Unigram(COUNTS, 9, 0.5, per_example=True),
        9 * Q_ROOT,
        False,
    ),
    Row(
        "unigram_0",
        lambda: samplers.Unigram(COUNTS, 9, 0.0, per_example=True),
        9 * Q_UNIFORM,
        False,
    ),
    Row("bernoulli", lambda: samplers.Bernoulli(COUNTS, 6.5), oracle.bernoulli(COUNTS, 6.5)),
    Row("bernoulli_few", lambda: samplers.Bernoulli(COUNTS, 0.6), oracle.bernoulli(COUNTS, 0.6)),
    Row("bernoulli_most", lambda: samplers.Bernoulli(COUNTS, 37), oracle.bernoulli(COUNTS, 37)),
    Row("bernoulli_all", lambda: samplers.Bernoulli(COUNTS, CLASSES), np.ones(CLASSES)),
    Row(
        "bernoulli_per_example",
        lambda: samplers.Bernoulli(COUNTS, 6.5, per_example=True),
        oracle.bernoulli(COUNTS, 6.5),
    ),
    Row(
        "bernoulli_per_example_most",
        lambda: samplers.Bernoulli(COUNTS, 37, per_example=True),
        oracle.bernoulli(COUNTS, 37),
    ),
    Row("midx", lambda: samplers.MIDX(9, 4), 9 * Q_SOFTMAX, False),
    Row("midx_shared", lambda: samplers.MIDX(9, 4, "pq", per_example=False), 9 * Q_SOFTMAX, False),
    Row("exact_softmax", lambda: samplers.ExactSoftmaxSampler(9), 9 * Q_SOFTMAX, False),
]


def built(row):
    sampler = row.make()
    sampler.build(CLASSES)
    return sampler
