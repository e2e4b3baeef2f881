# SPDX-License-Identifier: Apache-2.0
"""Makes random calls in this process, and prints their results. `run.py` starts it."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.insert(0, str(Path(__file__).parents[1]))

import numpy as np
from fuzz.calls import Call, run_op
from fuzz.composed import run_composed
from fuzz.damages import damaged
from fuzz.problems import PROBLEMS, random_call
from fuzz.verdict import finding

_OPS = sorted(PROBLEMS)


def call_of(seed: int, index: int) -> Call:
    """Returns call `index` of a seed; it depends on nothing else."""
    rng = np.random.default_rng([seed, index])
    return damaged(random_call(_op_of(index), rng), rng)


def make_calls(first: int, end: int, seed: int, compare_every: int) -> None:
    """Prints a line of JSON before each call, its index and op, and one after it, its report."""
    for index in range(first, end):
        print(json.dumps([index, _op_of(index)]), flush=True)
        call = call_of(seed, index)
        own = run_op(call)
        is_compared = index // len(_OPS) % compare_every == 0
        composed = run_composed(call) if is_compared else None
        outcome = "accepted" if own.error is None else "refused"
        report = index, call.op, outcome, composed is not None, finding(call, own, composed)
        print(json.dumps(report), flush=True)


def show(seed: int, index: int) -> None:
    """Makes one call, and prints everything about it."""
    call = call_of(seed, index)
    print(call.describe(), flush=True)
    own = run_op(call)
    print(f"The op: {own.error or own.outputs}", flush=True)
    composed = run_composed(call)
    if composed is not None:
        print(f"Composed ops: {composed.error or composed.outputs}")
    print(f"Finding: {finding(call, own, composed)}")


def _op_of(index: int) -> str:
    return _OPS[index % len(_OPS)]


def _main() -> None:
    parser = argparse.ArgumentParser()
    for name in ("first", "end", "seed", "compare_every"):
        parser.add_argument(name, type=int)
    options = parser.parse_args()
    if options.end == options.first:
        show(options.seed, options.first)
    else:
        make_calls(**vars(options))


if __name__ == "__main__":
    _main()
