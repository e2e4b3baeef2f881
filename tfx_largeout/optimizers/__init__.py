# SPDX-License-Identifier: Apache-2.0
"""Optimizers that touch only the rows that a step touched, and Hessian-free training."""

from tfx_largeout.optimizers import hessian_free
from tfx_largeout.optimizers.hessian_free import HessianFree
from tfx_largeout.optimizers.row_adagrad import RowAdagrad
from tfx_largeout.optimizers.row_adam import RowAdam
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.optimizers.row_sgd import RowSGD

__all__ = ["HessianFree", "RowAdagrad", "RowAdam", "RowOptimizer", "RowSGD", "hessian_free"]
