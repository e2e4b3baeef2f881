# SPDX-License-Identifier: Apache-2.0
"""kubernetes_workers: workers that are the pods of an indexed Job of Kubernetes."""

from __future__ import annotations

import os

from tfx_largeout.arguments import integer_argument

_INDEX, _HOST = "JOB_COMPLETION_INDEX", "HOSTNAME"


def kubernetes_workers(size: int, service: str, port: int = 8888) -> tuple[list[str], int]:
    """Returns the addresses of the pods of an indexed Job, and the rank of this one.

    `tlo.distribute.connect(*tlo.distribute.kubernetes_workers(4, "over-workers"))`

    Pod i of the job has the name `JOB-i`, and the address `JOB-i.SERVICE:port`. The job needs
    `completionMode: Indexed` and a headless service: the `subdomain` of the pods, with
    `publishNotReadyAddresses: true`. See examples/kubernetes.yaml.

    Args:
        size: The number of pods: `completions` and `parallelism` of the job.
        service: The name of the headless service.
        port: The port of each pod. Default 8888.

    Raises:
        RuntimeError: The process is not in a pod of an indexed Job.
        ValueError: `size` is not above the index of this pod, `service` is empty, or `port` is not
            a valid port.
    """
    size = integer_argument("size", size, at_least=1)
    port = integer_argument("port", port, 1, 65535)
    if not isinstance(service, str) or not service:
        raise ValueError(f"service must be the name of a headless service; got {service!r}")
    index, host = os.environ.get(_INDEX, ""), os.environ.get(_HOST, "")
    job, dash, number = host.partition(".")[0].rpartition("-")
    if not index.isdigit() or not job or not dash or number != index:
        raise RuntimeError(
            "kubernetes_workers must be called in a pod of an indexed Job, whose HOSTNAME ends in "
            f"its JOB_COMPLETION_INDEX; got {_INDEX}={index!r}, {_HOST}={host!r}"
        )
    if int(index) >= size:
        raise ValueError(f"size must be above {_INDEX}, {index}; got {size}")
    return [f"{job}-{i}.{service}:{port}" for i in range(size)], int(index)
