# SPDX-License-Identifier: Apache-2.0
"""slurm_workers: workers that Slurm's srun has started."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

from tfx_largeout.arguments import integer_argument

_VARIABLES = ("SLURM_STEP_NODELIST", "SLURM_STEP_TASKS_PER_NODE", "SLURM_PROCID")


def slurm_workers(port: int = 8888) -> tuple[list[str], int]:
    """Returns the addresses of the tasks of a Slurm step, and the rank of this one.

    `tlo.distribute.connect(*tlo.distribute.slurm_workers())`

    Task i of a machine, counted from 0, has the port `port + i`. Tasks are numbered machine after
    machine, as by srun without `--distribution`.

    Args:
        port: The port of the first task of each machine. Default 8888.

    Raises:
        RuntimeError: The process is not a task of a Slurm step.
        ValueError: `port` is not a valid port.
    """
    port = integer_argument("port", port, at_least=1)
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise RuntimeError(
            f"slurm_workers must be called in a task that srun has started; got no {missing[0]}"
        )
    nodes, tasks, rank = (os.environ[name] for name in _VARIABLES)
    pairs = zip(_hosts(nodes), _counts(tasks), strict=True)
    addresses = [f"{host}:{port + i}" for host, count in pairs for i in range(count)]
    return addresses, int(rank)


def _hosts(text: str) -> list[str]:
    """Expands `a[1-3,07],b` to a1, a2, a3, a07, b."""
    parts = re.findall(r"(?:[^,\[]|\[[^\]]*\])+", text)
    return [host for part in parts for host in _expanded(part)]


def _expanded(text: str) -> Iterator[str]:
    found = re.search(r"\[([^\]]*)\]", text)
    if found is None:
        yield text
        return
    before, after = text[: found.start()], text[found.end() :]
    for part in found.group(1).split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            yield from _expanded(f"{before}{number:0{len(first)}d}{after}")


def _counts(text: str) -> list[int]:
    """Expands `2(x3),1` to 2, 2, 2, 1."""
    counts = []
    for part in text.split(","):
        number, _, times = part.partition("(x")
        counts += [int(number)] * int(times.rstrip(")") or 1)
    return counts
