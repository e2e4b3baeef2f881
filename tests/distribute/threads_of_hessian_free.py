# SPDX-License-Identifier: Apache-2.0
"""Sums of Hessian-free training over workers, as threads of one process.

As a program: checks them.
"""

from __future__ import annotations

import hessian_free_runs as runs
import numpy as np
import tensorflow as tf
from threads import OWN, SIZE, on_all, run_checks

from tfx_largeout.distribute.workers import ALONE, Workers
from tfx_largeout.hessian_free import GeometricSample, Trainer, trainer
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.over_workers import OverWorkers, floats, pieces
from tfx_largeout.hessian_free.worker import LocalWorker

BATCH = 16
SAMPLES = [np.arange(runs.EXAMPLES), np.arange(5, 140, 4), np.array([0, 149]), np.array([9])]


def local_worker(part=slice(None)):
    """A worker of this thread, and the weights of its model."""
    examples = Examples(runs.X[part], runs.Y[part], runs.WEIGHTS[part])
    curvature = Curvature(runs.model_of(), examples.spec)
    return LocalWorker(curvature, examples, BATCH), curvature.parameters


def sums(worker, parameters, numbers):
    """The result of each method."""
    vector = tf.constant(np.sin(np.arange(parameters.size)))
    signs = np.where(np.arange(len(numbers)) % 3, 1.0, -1.0)
    worker.set_parameters(0.3 * vector)
    worker.hold(numbers)
    found = {
        "loss": worker.loss(numbers),
        "gradient": worker.gradient(numbers)[:3],  # the others depend on batches
        "micro-batches": worker.gradient(numbers, 7),
        "product": worker.product(vector),
        "squares": worker.squared_gradients(signs, 7),
        "squares of batches": worker.squared_gradients(signs, 2 * BATCH),
        "another product": worker.product(2 * vector),
    }
    return {name: [np.asarray(part) for part in total] for name, total in found.items()}


def compare(found, expected, names):
    for worker in found:
        assert isinstance(worker, dict), worker
        for name in names:
            for ours, one, first in zip(worker[name], expected[name], found[0][name], strict=True):
                np.testing.assert_allclose(ours, one, rtol=1e-12, atol=1e-12, err_msg=name)
                np.testing.assert_array_equal(ours, first, err_msg=name)


def check_sums_are_those_of_one_process():
    """Micro-batches too, and where a worker has no example."""

    def run(connected):
        local, parameters = local_worker()
        worker = OverWorkers(local, connected, parameters, BATCH)
        assert worker.num_examples == runs.EXAMPLES
        return [sums(worker, parameters, numbers) for numbers in SAMPLES]

    one = local_worker()
    expected = [sums(*one, numbers) for numbers in SAMPLES]
    for size in (2, SIZE):
        for place, found in enumerate(zip(*on_all(run, size), strict=True)):
            compare(found, expected[place], expected[place])


def check_sums_of_own_parts():
    """Parts of 70, 5 and 75 examples; micro-batches are within each part."""
    parts = [slice(0, 70), slice(70, 75), slice(75, None)]

    def run(connected):
        local, parameters = local_worker(parts[connected.rank])
        worker = OverWorkers(local, connected, parameters, BATCH, sharded=True)
        assert worker.num_examples == runs.EXAMPLES
        return [sums(worker, parameters, numbers) for numbers in SAMPLES]

    one, names = local_worker(), ["loss", "gradient", "product", "another product"]
    for numbers, found in zip(SAMPLES, zip(*on_all(run, SIZE), strict=True), strict=True):
        compare(found, sums(*one, numbers), names)


def check_samples_are_dealt_evenly():
    deal = [OverWorkers(None, Workers(3, rank), None, BATCH)._places for rank in range(3)]
    for examples in (0, 1, 2, 3, 100, 101):
        places = [places_of(np.arange(100, 100 + examples)) for places_of in deal]
        np.testing.assert_array_equal(np.concatenate(places), np.arange(examples))
        assert max(map(len, places)) - min(map(len, places)) <= 1
    places = [places_of(np.arange(32), 5).tolist() for places_of in deal]
    assert places[0] == [*range(5), *range(15, 20), 30, 31]
    assert places[1] == [*range(5, 10), *range(20, 25)]


def check_floats_travel_with_all_bits():
    values = np.array([0.0, -0.0, np.nan, -np.inf, 1 / 3, -5e-324, 2.0**53 - 1, np.pi * 1e300])
    sent = np.zeros([3, 4 * len(values)], "float32")
    sent[1] = pieces(values)
    assert floats(sent.sum(axis=0)).tobytes() == values.tobytes()
    assert not floats(sent[0]).any()


def fails(vector):
    raise OSError("a disk is gone")


def check_what_fails_on_one_fails_on_all():
    def run(connected):
        local, parameters = local_worker()
        if connected.rank == 1:
            local.product = fails
        worker = OverWorkers(local, connected, parameters, BATCH)
        worker.hold(np.arange(40))
        try:
            worker.product(tf.ones([parameters.size], "float64"))
        except OSError as error:
            worker.gradient(np.arange(40))  # all go on together
            return str(error)

    assert on_all(run) == ["worker 1: a disk is gone", "a disk is gone"]


def check_calls_with_other_arguments():
    def run(connected, differ):
        rank = connected.rank
        local, parameters = local_worker()
        worker = OverWorkers(local, connected, parameters, BATCH)
        vector = tf.ones([parameters.size], "float64")
        worker.set_parameters(vector)
        worker.hold(np.arange(40))
        calls = {
            "theta": lambda: (worker.set_parameters(vector + rank), worker.loss(np.arange(9))),
            "numbers": lambda: worker.gradient(np.arange(rank, 40 + rank)),
            "vector": lambda: worker.product(vector + 1e-15 * rank),
            "sample": lambda: (worker.hold(np.arange(40 + rank)), worker.product(vector)),
            "signs": lambda: worker.squared_gradients(np.ones(40) * (-1.0) ** rank, 8),
        }
        calls[differ]()

    for differ in ("theta", "numbers", "vector", "sample", "signs"):
        for error in on_all(lambda connected, differ=differ: run(connected, differ)):
            assert isinstance(error, RuntimeError), (differ, error)
            assert "must be of the same weights, vector and examples on all" in str(error)


def check_one_process_has_no_collectives():
    """A single process returns the results of its worker."""
    local, parameters = local_worker()
    alone = OverWorkers(local, ALONE, parameters, BATCH)
    for name, total in sums(alone, parameters, SAMPLES[1]).items():
        for ours, one in zip(total, sums(*local_worker(), SAMPLES[1])[name], strict=True):
            np.testing.assert_array_equal(ours, one)


def check_a_trainer_of_three():
    """Three workers; two have no examples of the first samples of products."""

    def run(connected):
        maker = Trainer(cg_sample=GeometricSample(1, 2.0), damping=3.0)
        return runs.trained(maker, runs.model_of(), runs.X, runs.Y, epochs=3)

    expected = run(ALONE)
    found = on_all(run, SIZE)
    for worker in found:
        assert isinstance(worker, dict), worker
        for key, values in expected.items():
            np.testing.assert_allclose(worker[key], values, rtol=1e-9, atol=1e-9, err_msg=key)
            np.testing.assert_array_equal(worker[key], found[0][key], err_msg=key)


if __name__ == "__main__":
    trainer.current = lambda: getattr(OWN, "workers", ALONE)
    with runs.float64():
        run_checks(globals())
