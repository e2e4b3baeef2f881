# SPDX-License-Identifier: Apache-2.0
"""Two workers train as one process does.

One test, so that the workers are started once, however tests are spread over processes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from distribute import training
from distribute.run_workers import end_workers, start_workers

PROGRAM = Path(training.__file__)
SIZE = 2
OF_CLASSES = ("kernel", "bias", "slots")
OF_ALL = ("losses", "trunk", "anchor")


def test_two_workers_train_as_one_process(tmp_path):
    children = start_workers(tmp_path, PROGRAM, SIZE, str(tmp_path))
    try:
        runs = dict(training.every_run())
    finally:
        ended = end_workers(children)
    for worker in ended:
        assert worker.returncode == 0, worker.errors[-3000:]
    for name, expected in runs.items():
        workers = [dict(np.load(tmp_path / f"{name}-{rank}.npz")) for rank in range(SIZE)]
        check_weights(name, expected, workers)
        if name == "long":
            check_fifty_steps(expected, workers)
            check_evaluation(expected, workers)
            check_best_classes(expected, workers)


def assert_close(actual, expected, what):
    """Within a millionth of the largest number."""
    scale = 1e-6 * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=1e-6, atol=scale, err_msg=str(what))


def together(parts: list[np.ndarray]) -> np.ndarray:
    """Class c is row c // R of worker c % R."""
    whole = np.zeros((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole


def check_weights(name, expected, workers):
    for key in OF_CLASSES:
        if key in expected:
            whole = together([worker[key] for worker in workers])
            assert_close(whole, expected[key], (name, key))
    for key in OF_ALL:
        if key in expected:
            assert_close(workers[0][key], expected[key], (name, key))
            # Bit by bit: what all workers have is alike.
            np.testing.assert_array_equal(workers[1][key], workers[0][key], err_msg=f"{name} {key}")


def check_fifty_steps(expected, workers):
    losses = expected["losses"]
    assert len(losses) == 50 and losses[-5:].mean() < 0.8 * losses[:5].mean()
    # The meeting, the examples, logits of labels, log-sum-exps, dL/dh, the trunk; and for its
    # embedding how many rows there are, rows and ids. Alone, none.
    assert expected["collectives"] == 0
    assert [worker["collectives"] for worker in workers] == [6 + 3, 6 + 3]


def check_evaluation(expected, workers):
    for worker in workers:
        assert_close(worker["evaluate"], expected["evaluate"], "evaluate")
        np.testing.assert_array_equal(worker["evaluate"], workers[0]["evaluate"])
        np.testing.assert_array_equal(worker["ranks"], expected["ranks"])
        # Of 113 examples in batches of 24: the last 17 are 9 a worker, one of them filled up.
        assert_close(worker["odd"], expected["odd"], "odd")
        # Keras weighs the mean over batches by the sizes of parts, 12 and 9.
        np.testing.assert_allclose(worker["odd_loss"], expected["odd_loss"], rtol=0.01)
        np.testing.assert_array_equal(worker["odd_loss"], workers[0]["odd_loss"])


def check_best_classes(expected, workers):
    for worker in workers:
        np.testing.assert_array_equal(worker["ids"], expected["ids"])
        np.testing.assert_array_equal(worker["all_ids"], expected["all_ids"])
        assert_close(worker["scores"], expected["scores"], "scores")
    starts = range(0, training.EXAMPLES, training.BATCH)
    halves = [-(-min(training.BATCH, training.EXAMPLES - start) // 2) for start in starts]
    parts = [np.split(worker["own_ids"], np.cumsum(halves)[:-1]) for worker in workers]
    own = [part for pair in zip(*parts, strict=True) for part in pair]
    np.testing.assert_array_equal(np.concatenate(own), expected["ids"])
