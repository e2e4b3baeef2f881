# SPDX-License-Identifier: Apache-2.0
"""Workers train as one process does.

One test a number of workers, so that they are started once, however tests are spread.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from distribute import training
from distribute.run_workers import check_ended_well, end_workers, start_workers

PROGRAM = Path(training.__file__)
OF_CLASSES = ("kernel", "bias", "slots")
OF_ALL = ("losses", "trunk", "anchor")


def trained_both_ways(folder, size, number, **options):
    """Yields the name of a run, what one process found, and what the workers found."""
    children = start_workers(folder, PROGRAM, size, str(folder), number, "1", **options)
    try:
        runs = dict(training.RUNS[number]())
    finally:
        ended = end_workers(children)
    check_ended_well(ended)
    for name, expected in runs.items():
        yield name, expected, [dict(np.load(folder / f"{name}-{rank}.npz")) for rank in range(size)]


@pytest.mark.cpu
@pytest.mark.thorough
@pytest.mark.skipif(not tf.config.list_physical_devices("GPU"), reason="there is no GPU")
def test_workers_on_one_gpu_train_as_one_process_on_the_cpu(tmp_path):
    for name, expected, workers in trained_both_ways(tmp_path, 2, "some", gpus="0"):
        check_weights(name, expected, workers, tolerance=1e-5)


@pytest.mark.cpu
@pytest.mark.thorough
@pytest.mark.parametrize("size", [2, 4])
def test_workers_train_as_one_process(size, tmp_path):
    number = "every" if size == 4 else "some"
    for name, expected, workers in trained_both_ways(tmp_path, size, number):
        check_weights(name, expected, workers)
        if name == "with_callbacks":
            assert len(expected["losses"]) == 2 * 4  # epochs
            assert len(set(expected["losses"][-4:])) == 4 - 1  # learning rates
        if name == "stochastic_rounding":
            # The same bits, of sums in another order: where these differ, it may be the other way.
            whole = together([worker["rounded"] for worker in workers])
            assert np.mean(whole == expected["rounded"]) > 0.97
        if name == "factored":
            check_factored(expected, workers)
        if name == "positions":
            for worker in workers:
                assert_close(worker["metrics"], expected["metrics"], "Keras's metrics")
        if name == "long":
            check_fifty_steps(expected, workers)
            check_evaluation(expected, workers)
            for worker in workers:
                np.testing.assert_array_equal(worker["ranks"], expected["ranks"])
            check_best_classes(expected, workers)


def assert_close(actual, expected, what, tolerance=1e-6):
    """Within a millionth of the largest number."""
    scale = tolerance * np.abs(expected).max()
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=scale, err_msg=str(what))


def together(parts: list[np.ndarray]) -> np.ndarray:
    """Class c is row c // R of worker c % R."""
    whole = np.zeros((sum(map(len, parts)), *parts[0].shape[1:]), parts[0].dtype)
    for rank, part in enumerate(parts):
        whole[rank :: len(parts)] = part
    return whole


def check_weights(name, expected, workers, tolerance=1e-6):
    for key in OF_CLASSES:
        if key in expected:
            whole = together([worker[key] for worker in workers])
            assert_close(whole, expected[key], (name, key), tolerance)
    for key in OF_ALL:
        if key in expected:
            assert_close(workers[0][key], expected[key], (name, key), tolerance)
            # Bit for bit: all workers have the same.
            for worker in workers[1:]:
                np.testing.assert_array_equal(worker[key], workers[0][key], err_msg=f"{name} {key}")


def check_fifty_steps(expected, workers):
    losses = expected["losses"]
    assert len(losses) == 50 and losses[-5:].mean() < 0.8 * losses[:5].mean()
    # The meeting, the examples, logits of labels, log-sum-exps, dL/dh, the trunk; and for its
    # embedding how many rows there are, rows and ids. Alone, none.
    assert expected["collectives"] == 0
    assert [worker["collectives"] for worker in workers] == [6 + 3] * len(workers)


def check_factored(expected, workers):
    check_loss(expected, workers, "evaluate_loss", training.EXAMPLES)
    assert max(expected["drift"]) < 1e-10
    for worker in workers:
        # The meeting, labels, rows of labels, what is found of examples, the trunk. Two more are
        # in a branch, which updates the head: what goes to the rows of labels, and sums. The
        # metric needs h, logits of labels, ranks and log-sum-exps.
        assert worker["collectives"] == 5 + 4
        assert max(worker["drift"]) < 1e-10
        np.testing.assert_array_equal(worker["evaluate"], workers[0]["evaluate"])
        assert_close(worker["evaluate"], expected["evaluate"], "evaluate")
        np.testing.assert_array_equal(worker["ranks"], expected["ranks"])
        np.testing.assert_array_equal(worker["ids"], expected["ids"])
        assert_close(worker["scores"], expected["scores"], "scores")


def check_evaluation(expected, workers):
    check_loss(expected, workers, "evaluate_loss", training.EXAMPLES)
    check_loss(expected, workers, "odd_loss", 113)
    for worker in workers:
        assert_close(worker["evaluate"], expected["evaluate"], "evaluate")
        np.testing.assert_array_equal(worker["evaluate"], workers[0]["evaluate"])
        # 113 examples in batches of 24: of the last 17 each worker has 9, one of them filled up.
        assert_close(worker["odd"], expected["odd"], "odd")


def check_loss(expected, workers, key, examples):
    """Keras weighs the mean over batches by the sizes of parts, which are filled up to be equal."""
    parts_are_equal = examples % training.BATCH % len(workers) == 0
    for worker in workers:
        np.testing.assert_array_equal(worker[key], workers[0][key])
        if parts_are_equal:
            assert_close(worker[key], expected[key], key)
        else:
            np.testing.assert_allclose(worker[key], expected[key], rtol=0.01)


def check_best_classes(expected, workers):
    for worker in workers:
        np.testing.assert_array_equal(worker["ids"], expected["ids"])
        np.testing.assert_array_equal(worker["all_ids"], expected["all_ids"])
        assert_close(worker["scores"], expected["scores"], "scores")
    places = [[] for _ in workers]
    for start in range(0, training.EXAMPLES, training.BATCH):
        batch = np.arange(start, min(start + training.BATCH, training.EXAMPLES))
        each = -(-len(batch) // len(workers))
        for rank, place in enumerate(places):
            place.extend(batch[rank * each : (rank + 1) * each])
    for worker, place in zip(workers, places, strict=True):
        np.testing.assert_array_equal(worker["own_ids"], expected["ids"][place])
