# SPDX-License-Identifier: Apache-2.0
"""Optimizers that touch only the rows that a step touched, and Adam for all rows in one pass."""

from tfx_largeout.optimizers.fused_adam import FusedAdam
from tfx_largeout.optimizers.row_adagrad import RowAdagrad
from tfx_largeout.optimizers.row_adam import RowAdam
from tfx_largeout.optimizers.row_rmsprop import RowRMSprop
from tfx_largeout.optimizers.row_sgd import RowSGD

__all__ = ["FusedAdam", "RowAdagrad", "RowAdam", "RowRMSprop", "RowSGD"]
