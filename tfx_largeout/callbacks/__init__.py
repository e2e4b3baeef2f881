# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks."""

from tfx_largeout.callbacks.checkpoint import Checkpoint
from tfx_largeout.callbacks.probe import Probe
from tfx_largeout.callbacks.sampled_validation import SampledValidation

__all__ = ["Checkpoint", "Probe", "SampledValidation"]
