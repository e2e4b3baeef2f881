# SPDX-License-Identifier: Apache-2.0
"""Keras callbacks."""

from tfx_largeout.callbacks.checkpoint import Checkpoint
from tfx_largeout.callbacks.probe import Probe

__all__ = ["Checkpoint", "Probe"]
