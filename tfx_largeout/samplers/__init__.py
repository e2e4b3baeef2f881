# SPDX-License-Identifier: Apache-2.0
"""Samplers: which classes a training step looks at. `base.py` says how to add one."""

from tfx_largeout.samplers.base import Candidates, Sampler
from tfx_largeout.samplers.bernoulli import Bernoulli
from tfx_largeout.samplers.exact_softmax_sampler import ExactSoftmaxSampler
from tfx_largeout.samplers.exact_top_k import ExactTopK
from tfx_largeout.samplers.log_uniform import LogUniform
from tfx_largeout.samplers.lsh_embedding import LSHEmbedding
from tfx_largeout.samplers.lsh_label import LSHLabel
from tfx_largeout.samplers.midx import MIDX
from tfx_largeout.samplers.tf_sampler import TFSampler
from tfx_largeout.samplers.uniform import Uniform
from tfx_largeout.samplers.unigram import Unigram
from tfx_largeout.samplers.wta_top_k import WTATopK

__all__ = [
    "MIDX",
    "Bernoulli",
    "Candidates",
    "ExactSoftmaxSampler",
    "ExactTopK",
    "LSHEmbedding",
    "LSHLabel",
    "LogUniform",
    "Sampler",
    "TFSampler",
    "Uniform",
    "Unigram",
    "WTATopK",
]
