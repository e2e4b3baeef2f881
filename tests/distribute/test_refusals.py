# SPDX-License-Identifier: Apache-2.0
"""A fault on one worker is an error on all workers."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path

import keras
import pytest
from distribute.run_workers import check_ended_well, end_workers, run_workers, start_workers

PROGRAM = Path(__file__).with_name("refusals.py")

# By the name of the case: the error on each worker.
EXPECTED = {
    "classes": r"ValueError: num_classes of head 'head' .* got \[20, 21\] by worker",
    "seed": r"ValueError: seed of head 'head' .* got \[0, 1\] by worker",
    "sampler": r"ValueError: the configuration of head 'head' must be the same on all workers",
    "width": r"ValueError: the width of h of head 'head' .* got \[4, 5\] by worker",
    "few_classes": r"ValueError: num_classes must be at least the number of workers",
    "trunk": r"ValueError: the number of shared weights of the model .* by worker",
    "optimizer": r"ValueError: the optimizer of the model must be the same on all workers",
    "no_data_parallel": r"ValueError: .*the optimizer of the model .* tlo.distribute.DataParallel",
    "batches": r"ValueError: the number of batches .* got \[3, 2\] by worker",
    "batch_sizes": r"ValueError: the batch size .* of shard must .* got \[9, 10\] by worker",
    "dtype": r"ValueError: the kind of elements of shard must be the same on all workers",
    "no_batches": r"ValueError: dataset must have batches as elements",
    "no_data_set": r"TypeError: dataset must be a tf.data.Dataset",
    "hierarchical": r"RuntimeError: HierarchicalSoftmaxHead .* single process",
    "materialize": r"RuntimeError: materialize and to_dense of FactoredHead .* single process",
    "resize": r"RuntimeError: resize_classes of SampledHead .* by tlo.save_model, and load, resize",
    "bad_hidden": r"InvalidArgumentError: .*hidden, or the sum of squares .*must be finite",
    "sampler_of_w": r"RuntimeError: a head whose candidates depend on W, by .*LooksAtW",
    "exact_softmax_sampler": r"RuntimeError: a head whose candidates .*ExactSoftmaxSampler.*, must",
    "midx": r"RuntimeError: a head whose candidates .*MIDX.*, must",
    "inverted_multi_index": r"RuntimeError: a head with an index of all classes, <Inverted.*, must",
    "in_batch": r"RuntimeError: a head with an index of all classes, <LabelIntervals.*, must",
    "other_index": r"RuntimeError: .*index must be that of the head, .* 2 workers",
    "logits": r"a head whose classes are spread over workers has no logits of all classes",
    "eager": r"a head whose classes are spread over workers has no logits of all classes",
    "save": r"RuntimeError: SampledHead 'head' must be saved by tlo.save_model, called on all of 2",
    "save_elsewhere": r"ValueError: the path of save_model of .* must be the same on all workers",
    "save_unwritable": r"(FileNotFoundError|OSError): .*missing",
    "save_over": r"(FileExistsError|OSError): .*filepath must be free with overwrite=False",
    "save_otherwise": r"ValueError: .*filepath must end with .keras or .weights.h5",
    "load_other_classes": r"ValueError: .*the saved weights must have the shapes of .* got 20 rows",
    "unmerged_loss": r"NotImplementedError: Unmerged must say with sums_over_workers=True",
    "no_reduction": r"ValueError: reduction must be a sum or a mean",
    "norms": r"ValueError: inner_optimizer must not use norms of",
    "norms_of_a_part": r"ValueError: inner_optimizer must not use norms .*Lamb",
    "second_connect": r"RuntimeError: connect must be called once",
    "label": r"InvalidArgumentError: .*each id must be at least 0 and less than 20",
    "different_weights": r"InvalidArgumentError: .*weights that all workers share must be the same",
    "unknown_length": r"InvalidArgumentError: .*workers must all be at the same place",
    "free_head": r"RuntimeError: .* must be whole on each worker; got DenseHead 'head', .* over 2",
    "free_batch_size": r"ValueError: batch_size of hessian_free.Trainer .* got \[8, 9\] by worker",
    "free_seed": r"ValueError: seed of hessian_free.Trainer .* got \[0, 1\] by worker",
    "free_cg": r"ValueError: max_cg_iterations of hessian_free.Trainer .* got \[5, 6\] by worker",
    "free_damping": r"ValueError: one of .*damping.* must be the same .*'initial', (1|2).0",
    "free_sample": r"ValueError: one of .*gradient_sample.* must be the same .*'growth', (1|2).1",
    "free_preconditioner": r"ValueError: one of preconditioner.* must be the same .*Precondition",
    "free_split": r"ValueError: one of .*line_search_split of hessian_free.Trainer must be the",
    "free_epochs": r"ValueError: epochs of hessian_free.Trainer.fit .* got \[2, 3\] by worker",
    "free_no_epochs": r"ValueError: .*epochs must be an integer of at least 0; got -1",
    "free_sharded": r"ValueError: sharded of hessian_free.Trainer.fit .* got \[0, 1\] by worker",
    "free_examples": r"ValueError: the number of examples for gradients .* got \[21, 20\] by",
    "free_values": r"ValueError: the list of values .* of the data of hessian_free.Trainer must be",
    "free_order": r"ValueError: the list of values .* of the data of hessian_free.Trainer must be",
    "free_line_search": r"ValueError: the number of examples for the line search .* \[24, 23\]",
    "free_width": r"ValueError: the number of weights of the model .* got \[30, 37\] by worker",
    "free_activation": r"ValueError: the list of layers of the model .* must be the same",
    "free_loss": r"ValueError: the loss or one of the metrics of the model .* must be",
    "free_metrics": r"ValueError: the loss or one of the metrics of the model .* must be",
    "free_targets": r"ValueError: .*must have as many examples each; got 24, 23, 23",
    "free_dtype": r"ValueError: the list of shapes and dtypes of the data of hessian_free.Trainer",
    "free_label": r"(Runtime|InvalidArgument)Error: .*Received a label value of",
    "free_validation": r"ValueError: validation_data must be the same on all workers, and whole",
    "free_one_validates": r"ValueError: validation_data .* got \[0, 1\] by worker",
    "free_state": r"ValueError: a check sum of the state of hessian_free.Trainer must be the same",
    "free_weights": r"RuntimeError: weights must be the same on all workers; got sums of their",
    "free_stop": r"InvalidArgumentError: .*workers must all be at the same place",
    "free_rate": r"RuntimeError: the longest step must be the same on all workers",
    "free_goes_on": r"no error",
}
if not hasattr(keras.optimizers, "MultiOptimizer"):  # before Keras 3.15
    del EXPECTED["norms_of_a_part"]


@pytest.mark.thorough
def test_the_same_error_on_all_workers(tmp_path):
    """One test, so that the workers are started once."""
    ended = run_workers(tmp_path, PROGRAM, 2, str(tmp_path), *EXPECTED)
    check_ended_well(ended)
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


@pytest.mark.thorough
def test_a_missing_worker_ends_the_wait(tmp_path):
    program = tmp_path / "connects.py"
    program.write_text(CONNECTS)
    both = [start_workers(tmp_path, program, 2, "3", "0", ranks=[rank]) for rank in range(2)]
    for (worker,) in map(end_workers, both):
        assert worker.returncode == -9
        assert "not all of 2 workers were there within 3 seconds" in worker.errors


FAILS = """
import os, signal, sys, time
from pathlib import Path
import numpy as np, keras
import tfx_largeout as tlo
workers = tlo.distribute.connect(timeout=180, heartbeat_timeout=8)
head = tlo.heads.SampledHead(9, tlo.samplers.Uniform(3), tlo.optimizers.RowSGD(0.1), seed=1)
model = keras.Sequential([keras.Input([4]), head])
model.compile(tlo.distribute.DataParallel("sgd"), tlo.losses.ComplementarySum())
class Fails(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        if workers.rank == int(sys.argv[2]) and batch == 2:
            Path("failed-at").write_text(str(time.time()))
            os.kill(os.getpid(), int(sys.argv[1]))
x, y = np.ones([600, 4], "float32"), np.ones(600, int)
try:
    model.fit(x, y, batch_size=4, verbose=0, callbacks=[Fails()])
finally:
    print(time.time() - float(Path("failed-at").read_text()))
"""


def check_the_others_end(folder, size, number, limit, failing=1):
    """With an error, and a sentence that names the worker that has failed."""
    program = folder / "fails.py"
    program.write_text(FAILS)
    children = start_workers(folder, program, size, str(int(number)), str(failing))
    others = [child for rank, child in enumerate(children) if rank != failing]
    try:
        for other in end_workers(others):
            assert other.returncode == 1, other.errors[-3000:]
            assert float(other.output) < limit, other.output
            said = other.errors.strip().splitlines()[-1]
            assert said.startswith(f"tlo.distribute: worker {failing} of {size} (127.0.0.1:"), said
    finally:
        children[failing].kill()
        children[failing].communicate()


@pytest.mark.thorough
def test_the_death_of_one_ends_the_others(tmp_path):
    check_the_others_end(tmp_path, 2, signal.SIGKILL, 60)


@pytest.mark.thorough
def test_the_death_of_one_ends_three_others(tmp_path):
    check_the_others_end(tmp_path, 4, signal.SIGKILL, 60)


@pytest.mark.thorough
@pytest.mark.parametrize("failing", [0, 1])
def test_a_worker_that_stops_ends_the_others(failing, tmp_path):
    check_the_others_end(tmp_path, 2, signal.SIGSTOP, 180, failing)  # 8 to 40 seconds


FREE_DIES = """
import os
import numpy as np, keras
import tfx_largeout as tlo
from tfx_largeout.hessian_free.worker import LocalWorker
workers = tlo.distribute.connect(timeout=180)
model = keras.Sequential([keras.Input([4]), keras.layers.Dense(2)])
model.compile(loss="mse")
class Dies(LocalWorker):
    def product(self, vector):
        if workers.rank:
            os._exit(7)
        return super().product(vector)
x = np.random.default_rng(0).normal(size=[60, 4])
tlo.hessian_free.Trainer(make_worker=Dies).fit(model, x, x[:, :2], verbose=0)
"""


@pytest.mark.thorough
def test_a_death_in_a_product_ends_the_others(tmp_path):
    program = tmp_path / "dies.py"
    program.write_text(FREE_DIES)
    survivor, dead = run_workers(tmp_path, program, 2)
    assert dead.returncode == 7 and survivor.returncode not in (0, 7)
    assert "tlo.distribute: worker 1 of 2" in survivor.errors
