# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training: Gauss-Newton steps by conjugate gradients, and its separate parts."""

from tfx_largeout.hessian_free.preconditioners import (
    DiagonalPreconditioner,
    IdentityPreconditioner,
    LBFGSPreconditioner,
)
from tfx_largeout.hessian_free.samples import FixedSample, GeometricSample, VarianceSample
from tfx_largeout.hessian_free.trainer import Trainer

__all__ = [
    "DiagonalPreconditioner",
    "FixedSample",
    "GeometricSample",
    "IdentityPreconditioner",
    "LBFGSPreconditioner",
    "Trainer",
    "VarianceSample",
]
