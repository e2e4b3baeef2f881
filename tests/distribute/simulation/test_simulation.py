# SPDX-License-Identifier: Apache-2.0
"""The protocol of workers over a simulated network and disk, and the simulation itself."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from child import run_child
from distribute.simulation import behaviours, simulate
from distribute.simulation.mutations import MUTATIONS
from variants import thorough

from tfx_largeout.callbacks import checkpoint_folder
from tfx_largeout.callbacks.checkpoint_folder import Snapshot
from tfx_largeout.distribute.workers import ALONE, Workers, current

REAL = Path(simulate.__file__).with_name("real_workers.py")
MOST = 300  # seeds until a mistake is noticed


@pytest.fixture(autouse=True)
def alone_again():
    yield
    assert current() is ALONE


@pytest.mark.parametrize("seeds", [range(50), *thorough(range(50, 3000))])
def test_nothing_is_violated(seeds):
    assert [failure for seed in seeds if (failure := simulate.failure_of(seed))] == []


def test_a_seed_is_the_same_run_each_time():
    traces = []
    for _ in range(2):
        run = simulate.Run(3)
        run.run()
        traces.append(run.world.trace)
    assert traces[0] == traces[1]


class Echo(Workers):
    """Worker 1, for whom worker 0 says the same, until the n-th time."""

    def __init__(self, times):
        super().__init__(2, 1)
        self.times = times

    def gather(self, x, name):
        self.times -= 1
        if self.times < 0:
            raise tf.errors.UnavailableError(None, None, "Socket closed")
        return tf.stack([x, x])


@pytest.mark.parametrize("times, stays", [(1, False), (2, True)])
def test_a_part_stays_that_worker_0_may_have_named(tmp_path, times, stays):
    """As in a run whose network broke between the two workers after all digests were sent."""
    snapshot = Snapshot({}, {}, [("kernel", lambda: np.ones([2, 3]))], [], frozenset(["kernel"]))
    with pytest.raises(tf.errors.UnavailableError):
        checkpoint_folder._write_files(Echo(times), tmp_path / "epoch-1-batch-0.npz", snapshot)
    assert len(list(tmp_path.glob("*.part"))) == stays


@pytest.mark.parametrize("mutation", MUTATIONS)
def test_mistakes_are_noticed(mutation):
    assert simulate.first_failure(mutation, MOST) is not None


@pytest.mark.all_cases
@pytest.mark.parametrize("name", [*behaviours.WELL, *behaviours.ERRORS])
def test_behaviours_of_simulated_workers(name):
    check_behaviour(name, behaviours.simulated((behaviours.WELL | behaviours.ERRORS)[name]))


def check_behaviour(name, found):
    expected = (behaviours.WELL | behaviours.ERRORS)[name].expected
    assert all(map(behaviours.fits, expected, found)), (name, found)


@pytest.mark.thorough
def test_behaviours_of_real_workers(tmp_path):
    done = run_child(tmp_path, str(REAL), "behaviours", str(tmp_path))
    assert done.returncode == 0, done.stderr[-3000:]
    for start in ("well", *behaviours.ERRORS):
        files = [tmp_path / f"{start}-{rank}.json" for rank in (0, 1)]
        found = [json.loads(file.read_text()) if file.exists() else {} for file in files]
        for name in behaviours.WELL if start == "well" else [start]:
            check_behaviour(name, [one.get(name, behaviours.GONE) for one in found])


@pytest.mark.thorough
def test_seeds_over_real_workers(tmp_path):
    done = run_child(tmp_path, str(REAL), "seeds", str(tmp_path), "20")
    assert done.returncode == 0, done.stdout[-1000:] + done.stderr[-3000:]
    starts = [int(line.split()[1]) for line in done.stdout.splitlines()]
    assert len(starts) == 20 and sum(starts) > 25  # some were killed
