# SPDX-License-Identifier: Apache-2.0
"""Exact streaming metrics for heads and for plain logits."""

from __future__ import annotations

from tfx_largeout.metrics.exact_loss import ExactLoss, Perplexity
from tfx_largeout.metrics.label_sets import LabelSetF1
from tfx_largeout.metrics.ps_precision_at_k import PSPrecisionAtK, propensities
from tfx_largeout.metrics.rank_metrics import NDCG, MeanReciprocalRank, PrecisionAtK, RecallAtK

__all__ = [
    "NDCG",
    "ExactLoss",
    "LabelSetF1",
    "MeanReciprocalRank",
    "PSPrecisionAtK",
    "Perplexity",
    "PrecisionAtK",
    "RecallAtK",
    "propensities",
]
