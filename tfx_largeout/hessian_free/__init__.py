# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training: Gauss-Newton steps by conjugate gradients, and its parts by themselves."""

from tfx_largeout.hessian_free.diagonal_preconditioner import DiagonalPreconditioner
from tfx_largeout.hessian_free.fixed_sample import FixedSample
from tfx_largeout.hessian_free.geometric_sample import GeometricSample
from tfx_largeout.hessian_free.identity_preconditioner import IdentityPreconditioner
from tfx_largeout.hessian_free.lbfgs_preconditioner import LBFGSPreconditioner
from tfx_largeout.hessian_free.trainer import Trainer
from tfx_largeout.hessian_free.variance_sample import VarianceSample

__all__ = [
    "DiagonalPreconditioner",
    "FixedSample",
    "GeometricSample",
    "IdentityPreconditioner",
    "LBFGSPreconditioner",
    "Trainer",
    "VarianceSample",
]
