# SPDX-License-Identifier: Apache-2.0
"""TensorFlow's switch for TF32: off from the first product on a GPU, unless it was chosen."""

from __future__ import annotations

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfx_largeout as tlo
from tfx_largeout.ops import implementation, library
from tfx_largeout.ops import product_precision as module
from tfx_largeout.ops.exact.streamed_logits import streamed_logits

SWITCH = tf.config.experimental


@pytest.fixture(autouse=True)
def fresh_switch(monkeypatch):
    """TF32 is on, as by TensorFlow's default, and was not chosen."""
    before = SWITCH.tensor_float_32_execution_enabled()
    monkeypatch.setattr(module, "_is_chosen", False)
    SWITCH.enable_tensor_float_32_execution(True)
    yield
    SWITCH.enable_tensor_float_32_execution(before)


@pytest.fixture
def gpu(monkeypatch):
    monkeypatch.setattr(module, "has_gpu", lambda: True)


def build_heads(count=1):
    for _ in range(count):
        tlo.heads.DenseHead(5).build((None, 3))


def test_the_first_head_switches_it_off_and_says_so(gpu):
    with pytest.warns(RuntimeWarning, match=r"TF32 has been switched off.*precision\('tf32'\)"):
        build_heads()
    assert not SWITCH.tensor_float_32_execution_enabled()


def test_gpu_kernels_switch_it_off_too(gpu, monkeypatch):
    monkeypatch.setattr(library, "_has_gpu_kernels", None)
    monkeypatch.setattr(tf, "load_library", lambda path: None)
    monkeypatch.setenv("TFX_LARGEOUT_GPU_KERNELS", "1")
    with pytest.warns(RuntimeWarning, match="TF32 has been switched off"):
        assert library.load_gpu_kernels()
    assert not SWITCH.tensor_float_32_execution_enabled()


def test_an_index_and_an_op_without_a_head_switch_it_off_too(gpu, monkeypatch):
    kernel = tf.Variable(tf.ones([4, 3]))
    index = tlo.indexes.HashIndex(tlo.indexes.SimHash(), 2, 2)
    with pytest.warns(RuntimeWarning, match="TF32 has been switched off"):
        index.rebuild(kernel)
    monkeypatch.setattr(module, "_is_chosen", False)
    monkeypatch.setattr(implementation, "is_on_gpu", lambda weights: True)
    monkeypatch.setattr(library, "_has_gpu_kernels", False)
    SWITCH.enable_tensor_float_32_execution(True)
    labels = tf.zeros([2, 0], tf.int64)
    with pytest.warns(RuntimeWarning, match="TF32 has been switched off"):
        streamed_logits(tf.ones([2, 3]), kernel, None, labels, 1)
    assert not SWITCH.tensor_float_32_execution_enabled()


def test_a_row_update_multiplies_no_matrices(gpu, monkeypatch):
    monkeypatch.setattr(implementation, "is_on_gpu", lambda weights: True)
    monkeypatch.setattr(library, "_has_gpu_kernels", False)
    optimizer, variable = tlo.optimizers.RowSGD(0.1), keras.Variable(np.ones([4, 3], "f4"))
    optimizer.apply([tf.IndexedSlices(tf.ones([1, 3]), [2])], [variable])
    assert SWITCH.tensor_float_32_execution_enabled()


def test_once_in_a_process(gpu):
    with pytest.warns(RuntimeWarning):
        build_heads()
    SWITCH.enable_tensor_float_32_execution(True)  # a later call is deliberate
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_heads()
    assert SWITCH.tensor_float_32_execution_enabled()


@pytest.mark.parametrize("precision", ["float32", "tf32"])
def test_what_was_chosen_stays(gpu, precision):
    tlo.set_product_precision(precision)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_heads(2)
    assert module.product_precision() == precision
    assert SWITCH.tensor_float_32_execution_enabled() == (precision == "tf32")


def test_where_it_is_off_nothing_is_said(gpu):
    SWITCH.enable_tensor_float_32_execution(False)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        build_heads()
    assert not SWITCH.tensor_float_32_execution_enabled()


def test_without_a_gpu_nothing_is_switched(monkeypatch):
    monkeypatch.setattr(module, "has_gpu", lambda: False)
    build_heads()
    assert SWITCH.tensor_float_32_execution_enabled()


def test_another_precision_is_refused():
    with pytest.raises(ValueError, match=r"precision must be .*float32.*tf32.*got 'double'"):
        tlo.set_product_precision("double")
    assert SWITCH.tensor_float_32_execution_enabled()
