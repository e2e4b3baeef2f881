# SPDX-License-Identifier: Apache-2.0
"""Groups of workers with all classes each train as one process does, and stay equal."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distribute import replicas, training
from distribute.run_workers import check_ended_well, end_workers, run_workers, start_workers
from distribute.test_threads import run
from distribute.test_training import (
    OF_CLASSES,
    assert_close,
    check_best_classes,
    check_evaluation,
    check_weights,
)

TRAINING, PROGRAM = Path(training.__file__), Path(replicas.__file__)
# In a step: the meeting, losses of all groups, the trunk, and three for its embedding; within a
# group of several the examples, logits of labels, log-sum-exps and dL/dh. Sums of rows are in a
# branch.
COLLECTIVES = {(2, 2): 6, (4, 2): 10}


def test_a_step_of_groups(tmp_path):
    run("threads_of_replicas.py", tmp_path)


@pytest.mark.thorough
def test_a_step_of_other_heads_and_losses(tmp_path):
    run("threads_of_replicas.py", tmp_path, "thorough")


@pytest.mark.thorough
@pytest.mark.parametrize(("size", "groups"), COLLECTIVES)
def test_groups_train_as_one_process(size, groups, tmp_path):
    arguments = str(tmp_path), "replicated", str(groups)
    children = start_workers(tmp_path, TRAINING, size, *arguments)
    try:
        runs = dict(training.replicated_runs())
    finally:
        ended = end_workers(children)
    check_ended_well(ended)
    members = size // groups
    for name, expected in runs.items():
        workers = [dict(np.load(tmp_path / f"{name}-{rank}.npz")) for rank in range(size)]
        check_weights(name, expected, workers[:members])
        for rank, worker in enumerate(workers):
            for key in {*OF_CLASSES, "losses", "trunk"} & worker.keys():
                np.testing.assert_array_equal(worker[key], workers[rank % members][key])
        if name == "positions":
            for worker in workers:
                assert_close(worker["metrics"], expected["metrics"], "Keras's metrics")
        if name == "long":
            assert {int(w["collectives"]) for w in workers} == {COLLECTIVES[size, groups]}
            check_evaluation(expected, workers)
            check_best_classes(expected, workers)


@pytest.mark.thorough
def test_another_number_of_groups_on_each_worker(tmp_path):
    for worker in run_workers(tmp_path, PROGRAM, 2, str(tmp_path), "differ"):
        assert worker.returncode == 1
        rule = "data_replicas of connect must be the same on all workers; got [1, 2] by worker"
        assert rule in worker.errors


@pytest.mark.thorough
def test_checkpoints_of_groups(tmp_path):
    """Resumes bitwise in the same groups, and up to rounding in others or in one process."""
    for size, groups in ((2, 2), (4, 2), (2, 1)):
        check_ended_well(run_workers(tmp_path, PROGRAM, size, str(tmp_path), str(groups)))
    expected = replicas.ended_alone(tmp_path / "of-one")
    for name in ("2-2", "4-2"):
        found = replicas.ended_alone(tmp_path / name)
        assert_close(found["kernel"], expected["kernel"], name)
    for name in ("4-2-from-2-2", "2-1-from-4-2"):
        parts = [np.load(tmp_path / f"{name}-{rank}.npz")["kernel"] for rank in range(2)]
        for rank, part in enumerate(parts):
            assert_close(part, expected["kernel"][rank::2], name)
    for name in ("2-2", "4-2"):
        model = replicas.loaded(tmp_path / f"{name}.keras")
        assert_close(model.layers[-1].kernel.numpy(), expected["kernel"], name)
