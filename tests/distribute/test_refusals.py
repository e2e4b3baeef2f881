# SPDX-License-Identifier: Apache-2.0
"""What is wrong on one worker is an error on all of them."""

from __future__ import annotations

import json
import re
import time
from pathlib import Path

from distribute.run_workers import end_workers, run_workers, start_workers

PROGRAM = Path(__file__).with_name("refusals.py")

# By the name of what is tried: the error on each worker.
EXPECTED = {
    "classes": r"ValueError: num_classes of head 'head' .* got \[20, 21\] by worker",
    "seed": r"ValueError: seed of head 'head' .* got \[0, 1\] by worker",
    "sampler": r"ValueError: the configuration of head 'head' must be the same on all workers",
    "width": r"ValueError: the width of h of head 'head' .* got \[4, 5\] by worker",
    "few_classes": r"ValueError: num_classes must be at least the number of workers",
    "trunk": r"ValueError: the number of shared weights of the model .* by worker",
    "optimizer": r"ValueError: the optimizer of the model must be the same on all workers",
    "no_data_parallel": r"ValueError: the optimizer of the model .* tlo.distribute.DataParallel",
    "batches": r"ValueError: the number of batches .* got \[3, 2\] by worker",
    "dtype": r"ValueError: the kind of elements of shard must be the same on all workers",
    "no_batches": r"ValueError: dataset must have batches as elements",
    "no_data_set": r"TypeError: dataset must be a tf.data.Dataset",
    "hierarchical": r"RuntimeError: HierarchicalSoftmaxHead .* single process",
    "factored": r"RuntimeError: FactoredHead .* single process",
    "sampler_of_w": r"RuntimeError: a head whose candidates depend on W, by .*LooksAtW",
    "other_index": r"RuntimeError: .*index must be that of the head, .* 2 workers",
    "logits": r"a head whose classes are spread over workers has no logits of all classes",
    "eager": r"a head whose classes are spread over workers has no logits of all classes",
    "save": r"NotImplementedError: SampledHead 'head' must be saved and loaded in a single process",
    "unmerged_loss": r"NotImplementedError: Unmerged must say with sums_over_workers=True",
    "no_reduction": r"ValueError: reduction must be a sum or a mean",
    "norms": r"ValueError: inner_optimizer must not go by norms",
    "second_connect": r"RuntimeError: connect must be called once",
    "label": r"InvalidArgumentError: .*each id must be at least 0 and less than 20",
    "different_weights": r"InvalidArgumentError: .*weights that all workers share must be the same",
    "unknown_length": r"InvalidArgumentError: .*workers must all be at the same place",
}


def test_the_same_error_on_all_workers(tmp_path):
    """One test, so that the workers are started once."""
    ended = run_workers(tmp_path, PROGRAM, 2, str(tmp_path), *EXPECTED)
    for worker in ended:
        assert worker.returncode == 0, worker.output[-3000:] + worker.errors[-3000:]
    for rank in range(2):
        found = json.loads((tmp_path / f"{rank}.json").read_text())
        for name, message in EXPECTED.items():
            assert re.search(message, found[name], re.DOTALL), (name, found[name])


CONNECTS = """
import sys, time
import tfx_largeout as tlo
tlo.distribute.connect(timeout=float(sys.argv[1]))
time.sleep(float(sys.argv[2]))
"""


def test_a_missing_worker_ends_the_wait(tmp_path):
    program = tmp_path / "connects.py"
    program.write_text(CONNECTS)
    both = [start_workers(tmp_path, program, 2, "3", "0", ranks=[rank]) for rank in range(2)]
    for (worker,) in map(end_workers, both):
        assert worker.returncode == -9
        assert "not all of 2 workers were there within 3 seconds" in worker.errors


DIES = """
import os, sys
import numpy as np, keras
import tfx_largeout as tlo
workers = tlo.distribute.connect(timeout=180)
head = tlo.heads.SampledHead(9, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1), seed=1)
model = keras.Sequential([keras.Input([4]), head])
model.compile(tlo.distribute.DataParallel("sgd"), tlo.losses.ComplementarySum())
class Dies(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if workers.rank and batch == 2:
            os._exit(7)
x, y = np.ones([600, 4], "float32"), np.ones(600, int)
model.fit(x, y, batch_size=4, verbose=0, callbacks=[Dies()])
"""


def test_the_death_of_one_ends_the_others(tmp_path):
    program = tmp_path / "dies.py"
    program.write_text(DIES)
    start = time.monotonic()
    survivor, dead = run_workers(tmp_path, program, 2)
    assert dead.returncode == 7 and survivor.returncode not in (0, 7)
    assert time.monotonic() - start < 300  # with two starts, and not after the 600 of a step
