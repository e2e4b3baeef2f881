# SPDX-License-Identifier: Apache-2.0
"""Losses: functions of a head's statistics. `base.py` says how to add one."""

from tfx_largeout.losses.active_set_softmax import ActiveSetSoftmax
from tfx_largeout.losses.base import HeadLoss
from tfx_largeout.losses.black_out import BlackOut
from tfx_largeout.losses.candidate_loss import CandidateLoss
from tfx_largeout.losses.complementary_sum import ComplementarySum
from tfx_largeout.losses.importance_sampling import ImportanceSampling
from tfx_largeout.losses.lambda_spherical_loss import LambdaSphericalLoss
from tfx_largeout.losses.negative_log_likelihood import NegativeLogLikelihood
from tfx_largeout.losses.negative_sampling import NegativeSampling
from tfx_largeout.losses.noise_contrastive import NoiseContrastive
from tfx_largeout.losses.ranking import Ranking
from tfx_largeout.losses.sampled_logistic import SampledLogistic
from tfx_largeout.losses.sampled_softmax import SampledSoftmax
from tfx_largeout.losses.softmax_crossentropy import SoftmaxCrossentropy
from tfx_largeout.losses.spherical_loss import SphericalLoss
from tfx_largeout.losses.spherical_softmax import SphericalSoftmax
from tfx_largeout.losses.squared_error import SquaredError
from tfx_largeout.losses.taylor_softmax import TaylorSoftmax
from tfx_largeout.losses.tf_candidate_sampling_loss import TFCandidateSamplingLoss
from tfx_largeout.losses.z_loss import ZLoss

__all__ = [
    "ActiveSetSoftmax",
    "BlackOut",
    "CandidateLoss",
    "ComplementarySum",
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
