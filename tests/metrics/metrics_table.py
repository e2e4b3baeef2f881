# SPDX-License-Identifier: Apache-2.0
"""The table of metrics that one suite tests, and multi-label data to test them on."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import keras
import numpy as np
from oracles import ranking_metrics as oracle

from tfx_largeout import metrics

NUM_CLASSES = 13
NUM_EXAMPLES = 50
LABEL_COUNTS = np.random.default_rng(0).integers(0, NUM_EXAMPLES, NUM_CLASSES)


@dataclasses.dataclass(frozen=True)
class Case:
    make: Callable[..., keras.metrics.Metric]
    expected: Callable[..., float]
    name: str


def _at_k(make, expected, stem: str, k: int) -> Case:
    def make_k(**kwargs):
        return make(k, **kwargs)

    def expected_k(scores, labels, weights=None):
        return expected(scores, labels, k, weights)

    return Case(make_k, expected_k, f"{stem}_at_{k}")


def _ps_precision(k: int, a: float, b: float) -> Case:
    def make(**kwargs):
        return metrics.PSPrecisionAtK(k, LABEL_COUNTS, NUM_EXAMPLES, a, b, **kwargs)

    def expected(scores, labels, weights=None):
        counts = list(LABEL_COUNTS)
        return oracle.ps_precision_at_k(scores, labels, k, counts, NUM_EXAMPLES, a, b, weights)

    return Case(make, expected, f"ps_precision_at_{k}")


CASES = [
    *(
        _at_k(make, expected, stem, k)
        for make, expected, stem in (
            (metrics.PrecisionAtK, oracle.precision_at_k, "precision"),
            (metrics.RecallAtK, oracle.recall_at_k, "recall"),
            (metrics.NDCG, oracle.ndcg_at_k, "ndcg"),
        )
        for k in (1, 3, NUM_CLASSES + 2)
    ),
    _ps_precision(1, 0.55, 1.5),
    _ps_precision(3, 0.6, 2.6),
    _ps_precision(NUM_CLASSES + 2, 0.0, 0.4),
    Case(metrics.MeanReciprocalRank, oracle.mean_reciprocal_rank, "mean_reciprocal_rank"),
    Case(metrics.ExactLoss, oracle.exact_loss, "exact_loss"),
    Case(metrics.Perplexity, oracle.perplexity, "perplexity"),
]
CASE_OF_EACH_CLASS = list({type(case.make()): case for case in CASES}.values())


def random_batch(
    seed: int, num_examples: int = 24, num_columns: int = 5, ties: bool = True
) -> tuple[np.ndarray, np.ndarray]:
    """Scores `[N, C]` float32 and labels `[N, K]` with padding anywhere, repeats and empty rows."""
    rng = np.random.default_rng(seed)
    shape = (num_examples, NUM_CLASSES)
    scores = rng.integers(-3, 4, shape) if ties else rng.normal(size=shape)
    labels = rng.integers(-1, NUM_CLASSES, (num_examples, num_columns))
    labels[rng.random(num_examples) < 0.15] = -1
    if num_columns > 1:
        repeats = rng.random(num_examples) < 0.3
        labels[repeats, -1] = labels[repeats, 0]
    return scores.astype(np.float32), labels
