# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training: Gauss-Newton steps by conjugate gradients, and its parts by themselves."""

from tfx_largeout.hessian_free.conjugate_gradient import (
    CGStatistics,
    Iterate,
    conjugate_gradient,
)
from tfx_largeout.hessian_free.convex_loss import ConvexLoss, convex_loss
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.curvature_pairs import CurvaturePairs
from tfx_largeout.hessian_free.damping import LevenbergMarquardt
from tfx_largeout.hessian_free.diagonal_preconditioner import DiagonalPreconditioner
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.fixed_sample import FixedSample
from tfx_largeout.hessian_free.flat_parameters import FlatParameters
from tfx_largeout.hessian_free.geometric_sample import GeometricSample
from tfx_largeout.hessian_free.identity_preconditioner import IdentityPreconditioner
from tfx_largeout.hessian_free.lbfgs_preconditioner import LBFGSPreconditioner
from tfx_largeout.hessian_free.line_search import armijo, backtrack
from tfx_largeout.hessian_free.local_worker import LocalWorker
from tfx_largeout.hessian_free.preconditioner import Preconditioner
from tfx_largeout.hessian_free.sample_schedule import GradientNoise, SampleSchedule
from tfx_largeout.hessian_free.trainer import Trainer
from tfx_largeout.hessian_free.variance_sample import VarianceSample
from tfx_largeout.hessian_free.weight_penalty import WeightPenalty
from tfx_largeout.hessian_free.worker import LossTotal, VectorTotal, Worker
from tfx_largeout.hessian_free.worker_group import WorkerGroup
from tfx_largeout.hessian_free.workers import Workers

__all__ = [
    "CGStatistics",
    "ConvexLoss",
    "Curvature",
    "CurvaturePairs",
    "DiagonalPreconditioner",
    "Examples",
    "FixedSample",
    "FlatParameters",
    "GeometricSample",
    "GradientNoise",
    "IdentityPreconditioner",
    "Iterate",
    "LBFGSPreconditioner",
    "LevenbergMarquardt",
    "LocalWorker",
    "LossTotal",
    "Preconditioner",
    "SampleSchedule",
    "Trainer",
    "VarianceSample",
    "VectorTotal",
    "WeightPenalty",
    "Worker",
    "WorkerGroup",
    "Workers",
    "armijo",
    "backtrack",
    "conjugate_gradient",
    "convex_loss",
]
