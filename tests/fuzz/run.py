# SPDX-License-Identifier: Apache-2.0
"""Calls the custom ops with random arguments, in child processes, and reports errors.

    python tests/fuzz/run.py --seed 1 --calls 10000    # calls 0 to 9999 of seed 1
    python tests/fuzz/run.py --seed 1 --call 123       # that one alone, and all about it

A call that kills its process is a finding like others: another process continues after it.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

_CHILD = Path(__file__).with_name("make_calls.py")


class Report(NamedTuple):
    """The result of one call.

    Attributes:
        index: The index of the call.
        op: The op.
        outcome: `"accepted"`, `"refused"`, or `"died"`.
        is_compared: Whether composed ops ran the call, too.
        finding: The fault found, or None.
    """

    index: int
    op: str
    outcome: str
    is_compared: bool
    finding: str | None


def run_calls(seed: int, first: int, end: int, compare_every: int = 1) -> Iterator[Report]:
    """Yields the reports of calls [first, end) of a seed, one child process at a time.

    Args:
        seed: The seed of the calls.
        first: The first call.
        end: The call after the last.
        compare_every: Composed ops also make every n-th call of each op.
    """
    yield from run_program(_CHILD, first, end, seed, compare_every)


def run_program(program: Path, first: int, end: int, *arguments: int) -> Iterator[Report]:
    """Yields the reports of a program about calls [first, end), and the calls that kill it.

    Args:
        program: A program with the arguments first, end and `arguments`. It prints a line of JSON
            with index and op before each call, and a line with its report after it.
        first: The first call.
        end: The call after the last.
        arguments: For the program.
    """
    while first < end:
        command = [sys.executable, str(program), *map(str, (first, end, *arguments))]
        environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "-1"}
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert child.stdout is not None
        is_making = None  # the call: index and op
        for line in child.stdout:
            fields = json.loads(line)
            if len(fields) == 2:
                is_making = fields
            else:
                is_making, first = None, fields[0] + 1
                yield Report(*fields)
        code = child.wait()
        if is_making is not None:
            yield Report(*is_making, "died", False, f"the process ended with {code}")
            first = is_making[0] + 1
        elif first < end:
            raise RuntimeError(f"a child ended with {code} between two calls")


def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--calls", type=int, default=2000, help="how many, from the first")
    parser.add_argument("--call", type=int, help="make this one alone, and tell all about it")
    parser.add_argument("--compare-every", type=int, default=1)
    options = parser.parse_args()
    if options.call is not None:
        place = map(str, (options.call, options.call, options.seed, 1))
        sys.exit(subprocess.run([sys.executable, str(_CHILD), *place]).returncode)
    counts: collections.Counter[str] = collections.Counter()
    start = time.monotonic()
    end = options.first + options.calls
    for report in run_calls(options.seed, options.first, end, options.compare_every):
        counts.update({"calls": 1, report.outcome: 1, "compared": report.is_compared})
        if report.finding is not None:
            counts["findings"] += 1
            print(f"{report.op} --seed {options.seed} --call {report.index}: {report.finding}")
    print(f"{dict(counts)} in {time.monotonic() - start:.0f} s", flush=True)
    sys.exit(int(counts["findings"] > 0))


if __name__ == "__main__":
    _main()
