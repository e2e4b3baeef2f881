# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a head's statistics. `base.py` says how to add one."""

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.losses.built_in import BuiltInLoss
from tfx_largeout.losses.softmax_cross_entropy import SoftmaxCrossEntropy

__all__ = ["BuiltInLoss", "HeadLoss", "SoftmaxCrossEntropy"]
