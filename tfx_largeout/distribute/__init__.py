# SPDX-License-Identifier: Apache-2.0
"""Several workers: heads with their classes split over processes, in plain `model.fit`."""

from tfx_largeout.distribute.cluster import connect
from tfx_largeout.distribute.data_parallel import DataParallel
from tfx_largeout.distribute.dataset_shard import shard
from tfx_largeout.distribute.kubernetes import kubernetes_workers
from tfx_largeout.distribute.slurm import slurm_workers
from tfx_largeout.distribute.workers import current

__all__ = [
    "DataParallel",
    "connect",
    "current",
    "kubernetes_workers",
    "shard",
    "slurm_workers",
]
