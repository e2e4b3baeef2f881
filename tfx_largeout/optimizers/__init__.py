# SPDX-License-Identifier: Apache-2.0
"""Optimizers that touch only the rows that a step touched."""

from tfx_largeout.optimizers.row_adagrad import RowAdagrad
from tfx_largeout.optimizers.row_adam import RowAdam
from tfx_largeout.optimizers.row_optimizer import RowOptimizer
from tfx_largeout.optimizers.row_sgd import RowSGD

__all__ = ["RowAdagrad", "RowAdam", "RowOptimizer", "RowSGD"]
