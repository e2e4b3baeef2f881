# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a head's statistics. `base.py` says how to add one."""

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.losses.built_in import BuiltInLoss
from tfx_largeout.losses.negative_log_likelihood import NegativeLogLikelihood
from tfx_largeout.losses.softmax_cross_entropy import SoftmaxCrossEntropy
from tfx_largeout.losses.spherical_family import SphericalFamilyLoss
from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.losses.spherical_softmax import SphericalSoftmax
from tfx_largeout.losses.squared_error import SquaredError
from tfx_largeout.losses.taylor_softmax import TaylorSoftmax
from tfx_largeout.losses.z_loss import ZLoss

__all__ = [
    "BuiltInLoss",
    "HeadLoss",
    "NegativeLogLikelihood",
    "SoftmaxCrossEntropy",
    "SphericalFamilyLoss",
    "SphericalLoss",
    "SphericalSoftmax",
    "SquaredError",
    "TaylorSoftmax",
    "ZLoss",
]
