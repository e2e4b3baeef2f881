# SPDX-License-Identifier: Apache-2.0
"""Errors of TensorFlow, and the worker that each is about."""

from __future__ import annotations

import pytest
import tensorflow as tf

from tfx_largeout.distribute.cluster import failed_worker

WORKERS = [("worker", 0), ("worker", 1), ("worker", 2)]
CHIEF = [("chief", 0), ("worker", 0)]
PEER = "Socket closed\nAdditional GRPC error information from remote target {} while calling\n"
AT_ONE = "function_node __wrapped__Collective_device_/job:worker/replica:0/task:1/device:CPU:0\n"
PASSED_ON = PEER.format("/job:worker/replica:0/task:2") + PEER.format("/job:worker/task:0")
HEARTBEAT = "Deadline Exceeded\nRPC: /tensorflow.CoordinationService/Heartbeat"
CASES = {
    "peer": (tf.errors.UnavailableError, WORKERS, PEER.format("/job:worker/replica:0/task:2"), 2),
    "passed_on": (tf.errors.UnavailableError, WORKERS, PASSED_ON, 0),
    "place": (tf.errors.UnavailableError, WORKERS, PEER.format("/job:worker/task:2") + AT_ONE, 2),
    "first": (tf.errors.DeadlineExceededError, WORKERS, AT_ONE + HEARTBEAT, 0),
    "chief": (tf.errors.UnavailableError, CHIEF, PEER.format("/job:chief/replica:0/task:0"), 0),
    "nobody": (tf.errors.UnavailableError, WORKERS, AT_ONE, None),
    "not_of_this_run": (
        tf.errors.UnavailableError,
        WORKERS,
        "/job:ps/task:0 /job:worker/task:7",
        None,
    ),
    "own": (tf.errors.InvalidArgumentError, WORKERS, PEER.format("/job:worker/task:2"), None),
}


@pytest.mark.parametrize("name", CASES)
def test_which_worker_has_failed(name):
    kind, tasks, message, expected = CASES[name]
    assert failed_worker(kind(None, None, message), tasks, rank=1) == expected
