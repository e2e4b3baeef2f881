# SPDX-License-Identifier: Apache-2.0
"""Runs a program in several processes on loopback, with a time limit, and ends all of them."""

from __future__ import annotations

import json
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
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


def start_workers(
    folder: Path, program: Path, size: int, *arguments: str, ranks=None, gpus: str = "-1"
):
    """Starts workers, each with its TF_CONFIG; `ranks`: only these; `gpus`: those they share."""
    addresses = [f"127.0.0.1:{port}" for port in free_ports(size)]
    children = []
    for rank in range(size) if ranks is None else ranks:
        config = {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": rank}}
        environment = {
            **os.environ,
            "TF_CONFIG": json.dumps(config),
            "TF_NUM_INTRAOP_THREADS": "1",
            "TF_NUM_INTEROP_THREADS": "2",
            "CUDA_VISIBLE_DEVICES": gpus,
        }
        children.append(start_child(folder, str(program), *arguments, env=environment))
    return children


def end_workers(children, limit: float = LIMIT) -> list[Ended]:
    """Waits for them, reading from all; after the limit they are killed, and the test fails."""
    end = time.monotonic() + limit

    def end_of(child) -> Ended:
        output, errors = child.communicate(timeout=max(end - time.monotonic(), 0.1))
        return Ended(child.returncode, output, errors)

    try:
        with ThreadPoolExecutor(len(children)) as threads:
            return list(threads.map(end_of, children))
    finally:
        for child in children:
            if child.poll() is None:
                child.kill()
                child.wait()


def check_ended_well(ended: list[Ended]) -> None:
    """Fails with the output of failed workers: a failed worker ends the others."""
    failed = [
        f"worker {rank} ended with {worker.returncode}\n"
        f"{worker.output[-500:]}{worker.errors[-3000:]}"
        for rank, worker in enumerate(ended)
        if worker.returncode != 0
    ]
    assert not failed, "\n\n".join(failed)


def run_workers(folder: Path, program: Path, size: int, *arguments: str) -> list[Ended]:
    return end_workers(start_workers(folder, program, size, *arguments))
