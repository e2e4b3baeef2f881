# SPDX-License-Identifier: Apache-2.0
"""Collectives wait up to a limit, and leave no threads."""

from __future__ import annotations

import pytest
from distribute.run_workers import check_ended_well, run_workers

OFTEN = """
import os
import tensorflow as tf
import tfx_largeout as tlo
workers = tlo.distribute.connect(timeout=180)
add_up = tf.function(lambda x: workers.sum(x, "numbers"))
def threads():
    return len(os.listdir("/proc/self/task"))
for i in range(300):
    total = add_up(tf.constant([i, 1]))
before = threads()
for i in range(1000):
    total = add_up(tf.constant([i, 1]))
assert total.numpy().tolist() == [2 * 999, 2]
assert threads() < before + 50, (before, threads())
"""


@pytest.mark.thorough
def test_collectives_leave_no_threads_behind(tmp_path):
    program = tmp_path / "often.py"
    program.write_text(OFTEN)
    check_ended_well(run_workers(tmp_path, program, 2))


STANDS_STILL = """
import time
import tensorflow as tf
import tfx_largeout as tlo
workers = tlo.distribute.connect(timeout=180, step_timeout=4)
add_up = tf.function(lambda x: workers.sum(x, "numbers"))
add_up(tf.constant([1.0]))
time.sleep(8)  # nobody waits: that is no stall
add_up(tf.constant([1.0]))
if workers.rank == 0:
    add_up(tf.constant([1.0]))
else:
    time.sleep(20)
"""


@pytest.mark.thorough
def test_a_worker_that_does_not_take_part_ends_the_wait(tmp_path):
    program = tmp_path / "stands_still.py"
    program.write_text(STANDS_STILL)
    (waiting, _) = run_workers(tmp_path, program, 2)
    assert waiting.returncode == 1
    assert "DeadlineExceededError" in waiting.errors
    assert "waited for more than 4 seconds, the step_timeout of" in waiting.errors
