# SPDX-License-Identifier: Apache-2.0
"""Optimizers that update only the rows that a step used, and Adam for all rows in one pass."""

from tfx_largeout.optimizers.fused_adam import FusedAdam
from tfx_largeout.optimizers.row_optimizer import RowAdagrad, RowAdam, RowSGD
from tfx_largeout.optimizers.row_rmsprop import RowRMSprop

__all__ = ["FusedAdam", "RowAdagrad", "RowAdam", "RowRMSprop", "RowSGD"]
