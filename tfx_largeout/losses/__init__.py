# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a head's statistics. `base.py` says how to add one."""

from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.losses.black_out import BlackOut
from tfx_largeout.losses.candidate_loss import CandidateLoss
from tfx_largeout.losses.discrimination import (
    GeneralizedBCE,
    NegativeSampling,
    NoiseContrastive,
    Ranking,
    SampledLogistic,
)
from tfx_largeout.losses.likelihood_estimators import (
    ActiveSetSoftmax,
    ComplementarySum,
    ImportanceSampling,
    SampledSoftmax,
)
from tfx_largeout.losses.softmax_crossentropy import (
    NegativeLogLikelihood,
    SoftmaxCrossentropy,
    TFCandidateSamplingLoss,
)
from tfx_largeout.losses.spherical_losses import (
    LambdaSphericalLoss,
    SphericalLoss,
    SphericalSoftmax,
    SquaredError,
    TaylorSoftmax,
    ZLoss,
)

__all__ = [
    "ActiveSetSoftmax",
    "BlackOut",
    "CandidateLoss",
    "ComplementarySum",
    "GeneralizedBCE",
    "HeadLoss",
    "ImportanceSampling",
    "LambdaSphericalLoss",
    "NegativeLogLikelihood",
    "NegativeSampling",
    "NoiseContrastive",
    "Ranking",
    "SampledLogistic",
    "SampledSoftmax",
    "SoftmaxCrossentropy",
    "SphericalLoss",
    "SphericalSoftmax",
    "SquaredError",
    "TFCandidateSamplingLoss",
    "TaylorSoftmax",
    "ZLoss",
]
