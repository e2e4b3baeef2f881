# SPDX-License-Identifier: Apache-2.0
"""Samplers: which candidate classes a training step uses. `base.py` says how to add one."""

from tfx_largeout.samplers.base import Candidates, Sampler
from tfx_largeout.samplers.bernoulli import Bernoulli
from tfx_largeout.samplers.distribution_sampler import LogUniform, Uniform, Unigram
from tfx_largeout.samplers.exact_softmax_sampler import ExactSoftmaxSampler
from tfx_largeout.samplers.exact_top_k import ExactTopK
from tfx_largeout.samplers.in_batch import InBatch
from tfx_largeout.samplers.lsh import LSHEmbedding, LSHLabel
from tfx_largeout.samplers.midx import MIDX
from tfx_largeout.samplers.tf_sampler import TFSampler
from tfx_largeout.samplers.wta_top_k import WTATopK

__all__ = [
    "MIDX",
    "Bernoulli",
    "Candidates",
    "ExactSoftmaxSampler",
    "ExactTopK",
    "InBatch",
    "LSHEmbedding",
    "LSHLabel",
    "LogUniform",
    "Sampler",
    "TFSampler",
    "Uniform",
    "Unigram",
    "WTATopK",
]
