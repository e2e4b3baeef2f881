# SPDX-License-Identifier: Apache-2.0
"""Samplers: which classes a training step looks at. `base.py` says how to add one."""

from tfx_largeout.samplers.base import Candidates, Sampler
from tfx_largeout.samplers.bernoulli import Bernoulli
from tfx_largeout.samplers.log_uniform import LogUniform
from tfx_largeout.samplers.tf_sampler import TFSampler
from tfx_largeout.samplers.uniform import Uniform
from tfx_largeout.samplers.unigram import Unigram

__all__ = [
    "Bernoulli",
    "Candidates",
    "LogUniform",
    "Sampler",
    "TFSampler",
    "Uniform",
    "Unigram",
]
