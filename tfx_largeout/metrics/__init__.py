# SPDX-License-Identifier: Apache-2.0
"""Exact streaming metrics for heads and for plain logits."""

from __future__ import annotations

from tfx_largeout.metrics.exact_loss import ExactLoss
from tfx_largeout.metrics.mean_reciprocal_rank import MeanReciprocalRank
from tfx_largeout.metrics.ndcg import NDCG
from tfx_largeout.metrics.perplexity import Perplexity
from tfx_largeout.metrics.precision_at_k import PrecisionAtK
from tfx_largeout.metrics.propensities import propensities
from tfx_largeout.metrics.ps_precision_at_k import PSPrecisionAtK
from tfx_largeout.metrics.recall_at_k import RecallAtK

__all__ = [
    "NDCG",
    "ExactLoss",
    "MeanReciprocalRank",
    "PSPrecisionAtK",
    "Perplexity",
    "PrecisionAtK",
    "RecallAtK",
    "propensities",
]
