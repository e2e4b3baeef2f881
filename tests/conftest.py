# SPDX-License-Identifier: Apache-2.0
"""Quiet TensorFlow, a fixed seed, a clean Keras state and, where asked, the CPU for every test."""

from __future__ import annotations

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")  # several processes share a GPU

import keras
import pytest
import tensorflow as tf
from variants import INSTRUCTION_SETS, leave_for_thorough_runs

import tfx_largeout as tlo
from tfx_largeout.tensorflow_internals import custom_gradients_forgotten

tlo.set_product_precision("float32")  # whether or not an earlier test built a head
CPU_OPS = {"op", *INSTRUCTION_SETS}  # values of parameters


def pytest_addoption(parser):
    parser.addoption("--thorough", action="store_true", help="also the tests that take long")


@pytest.hookimpl(wrapper=True, tryfirst=True)  # before -m is applied, and after -k
def pytest_collection_modifyitems(config, items):
    after = config.option.keyword and not config.getoption("--thorough")
    if not after:
        leave_for_thorough_runs(items)
    yield
    if after:
        leave_for_thorough_runs(items)
    if not config.getoption("--thorough"):
        long = [item for item in items if item.get_closest_marker("thorough")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if not item.get_closest_marker("thorough")]


def pytest_collection_finish():
    gc.freeze()  # modules and tests stay: the collection of clear_session need not look at them


@pytest.fixture(autouse=True, scope="module")
def fresh_session():
    with custom_gradients_forgotten():  # heads/test_models_let_go_of.py tests kept ones
        yield
    keras.backend.clear_session()
    gc.freeze()  # the next collection skips the objects of this one


@pytest.fixture(autouse=True, scope="module")
def start_of_rng(request):
    """The state of a module's generator `RNG` when its first test starts; None without one."""
    generator = getattr(request.module, "RNG", None)
    return generator and generator.bit_generator.state


@pytest.fixture(autouse=True)
def fixed_seed_and_float32(request, start_of_rng):
    """A test draws the same numbers whichever tests ran before it."""
    keras.utils.set_random_seed(7)
    if start_of_rng:
        request.module.RNG.bit_generator.state = start_of_rng
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture(autouse=True)
def place_on_cpu(request, monkeypatch):
    """Where there is a GPU, tests of CPU ops and tests with the mark `cpu` don't use it.

    CPU ops can't change variables on a GPU; and on a GPU sums of TensorFlow differ from run to run.
    """
    case = getattr(request.node, "callspec", None)
    values = case.params.values() if case else ()
    is_of_cpu = any(isinstance(value, str) and value in CPU_OPS for value in values)
    if not is_of_cpu and not request.node.get_closest_marker("cpu"):
        yield
        return
    with tf.device("CPU:0"):  # which starts TensorFlow: the variable is for child processes alone
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
        yield
