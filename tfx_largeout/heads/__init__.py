# SPDX-License-Identifier: Apache-2.0
"""Heads: output layers. `base.py` says what a head is."""

from tfx_largeout.heads.base import Head
from tfx_largeout.heads.dense import DenseHead
from tfx_largeout.heads.exact_softmax import ExactSoftmaxHead
from tfx_largeout.heads.factored import FactoredHead
from tfx_largeout.heads.hierarchical_softmax import HierarchicalSoftmaxHead
from tfx_largeout.heads.sampled import SampledHead
from tfx_largeout.heads.tf_candidate_sampling import TFNCEHead, TFSampledSoftmaxHead
from tfx_largeout.heads.tied import TiedExactSoftmaxHead, TiedSampledHead

__all__ = [
    "DenseHead",
    "ExactSoftmaxHead",
    "FactoredHead",
    "Head",
    "HierarchicalSoftmaxHead",
    "SampledHead",
    "TFNCEHead",
    "TFSampledSoftmaxHead",
    "TiedExactSoftmaxHead",
    "TiedSampledHead",
]
