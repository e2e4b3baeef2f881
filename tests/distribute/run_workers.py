# SPDX-License-Identifier: Apache-2.0
"""Runs a program in several processes on loopback, with a time limit, and leaves none behind."""

from __future__ import annotations

import json
import os
import socket
import time
from pathlib import Path
from typing import NamedTuple

from child import start_child

LIMIT = 600  # seconds; a tenth of it where nothing else runs


class Ended(NamedTuple):
    returncode: int
    output: str
    errors: str


def free_ports(number: int) -> list[int]:
    sockets = [socket.socket() for _ in range(number)]
    for s in sockets:
        s.bind(("127.0.0.1", 0))
    ports = [s.getsockname()[1] for s in sockets]
    for s in sockets:
        s.close()
    return ports


def start_workers(folder: Path, program: Path, size: int, *arguments: str, ranks=None):
    """Starts workers, each with its TF_CONFIG; `ranks`: only these of them."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
    children = []
    for rank in range(size) if ranks is None else ranks:
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(config),
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": "-1",
        }
        children.append(start_child(folder, str(program), *arguments, env=environment))
    return children


def end_workers(children, limit: float = LIMIT) -> list[Ended]:
    """Waits for them; after the limit they are killed, and the test fails."""
    end = time.monotonic() + limit
    try:
        results = []
        for child in children:
            output, errors = child.communicate(timeout=max(end - time.monotonic(), 0.1))
            results.append(Ended(child.returncode, output, errors))
        return results
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def run_workers(folder: Path, program: Path, size: int, *arguments: str) -> list[Ended]:
    return end_workers(start_workers(folder, program, size, *arguments))
