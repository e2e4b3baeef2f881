# SPDX-License-Identifier: Apache-2.0
"""Hessian-free training over workers takes the steps of one process.

One test with two workers, so that they are started once.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distribute import hessian_free_runs
from distribute.run_workers import check_ended_well, end_workers, start_workers

PROGRAM = Path(hessian_free_runs.__file__)
LIMIT = 300  # seconds; a tenth of it where nothing else runs
# In float64 sums in another order differ by some 1e-16, which conjugate gradients and six steps
# make some 1e-12 of where the damping is not small. In float32 they may also end an iteration of
# conjugate gradients earlier or later, where each of them moves the weights by little.
WITHIN = {"float32": 1e-4}


@pytest.mark.thorough
@pytest.mark.parametrize("size", [2, 4])
def test_workers_take_the_steps_of_one_process(tmp_path, size):
    folders = [tmp_path / "one", tmp_path / "workers"]
    for folder in folders:
        folder.mkdir()
    number = "every" if size == 4 else "some"
    children = start_workers(tmp_path, PROGRAM, size, str(folders[1]), number)
    try:
        runs = dict(hessian_free_runs.RUNS[number](folders[0]))
    finally:
        ended = end_workers(children, LIMIT)
    check_ended_well(ended)
    for name, expected in runs.items():
        workers = [dict(np.load(folders[1] / f"{name}-{rank}.npz")) for rank in range(size)]
        check(name, expected, workers)
    np.testing.assert_array_equal(runs["resumed"]["weights"], runs["lbfgs"]["weights"])
    assert 0 in runs["refused"]["step_size"]
    check("went_on", *hessian_free_runs.goes_on_alone(folders[1] / "run"))


def check(name, expected, workers):
    """Bit for bit the same on all workers, and equal to one process except for rounding."""
    for worker in workers:
        for key, values in workers[0].items():
            np.testing.assert_array_equal(worker[key], values, err_msg=f"{name} {key}")
    within = WITHIN.get(name, 1e-9)
    compared = ("weights", "loss", "line_search_loss") if name in WITHIN else expected
    for key in compared:
        scale = within * np.nanmax(np.abs(expected[key]))
        np.testing.assert_allclose(
            workers[0][key], expected[key], rtol=within, atol=scale, err_msg=f"{name} {key}"
        )
