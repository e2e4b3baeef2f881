# SPDX-License-Identifier: Apache-2.0
"""Effects of a GPU before anything runs on it: TensorFlow only reports one."""

from __future__ import annotations

import types

import numpy as np
import pytest
import tensorflow as tf

from tfx_largeout import devices
from tfx_largeout.ops import implementation, library
from tfx_largeout.ops.exact import logit_blocks
from tfx_largeout.ops.exact.streamed_logits import streamed_logits

GPU = "/job:localhost/replica:0/task:0/device:GPU:0"


def on(device):
    return types.SimpleNamespace(device=device, dtype=tf.float32)


@pytest.mark.parametrize("there", [False, True])
@pytest.mark.parametrize(
    ("device", "expected"), [(GPU, True), ("/device:CPU:0", False), ("", None)]
)
def test_a_tensor_of_a_graph_goes_where_there_is_a_gpu(device, expected, there, monkeypatch):
    gpus = [types.SimpleNamespace(device_type="GPU")] * there
    monkeypatch.setattr(tf.config, "get_visible_devices", lambda kind: gpus)
    assert devices.is_on_gpu(on(device)) is (there if expected is None else expected)


def test_no_custom_op_takes_what_is_on_a_gpu():
    chosen = implementation.op_module("auto", "tfx_row_update", "w", on(GPU), [tf.float32])
    assert chosen is None


@pytest.fixture
def gpu_kernels(monkeypatch):
    """Requests GPU kernels for the first time; yields the loaded libraries."""
    loaded = []
    monkeypatch.setattr(library, "_has_gpu_kernels", None)
    monkeypatch.setattr(tf, "load_library", loaded.append)

    def ask(text):
        library._has_gpu_kernels = None
        monkeypatch.setenv("TFX_LARGEOUT_GPU_KERNELS", text)
        return loaded

    return ask


def choose(dtype=tf.float32, gpu_dtypes=(tf.float32,)):
    weights = types.SimpleNamespace(device=GPU, dtype=dtype)
    arguments = ["auto", "tfx_streamed_logits", "w", weights, [tf.float32, tf.bfloat16]]
    return implementation.op_module(*arguments, gpu_dtypes)


@pytest.mark.parametrize("asked", ["1", ""])
def test_gpu_kernels_are_used_unless_they_are_switched_off(asked, gpu_kernels, monkeypatch):
    monkeypatch.setattr(library, "_GPU_LIBRARY", library._LIBRARY)  # an existing one
    assert gpu_kernels("0") == [] and choose() is None
    loaded = gpu_kernels(asked)
    assert choose(gpu_dtypes=()) is None and choose(tf.bfloat16) is None and loaded == []
    assert choose() is library.load() and choose() is library.load()
    assert loaded == [str(library._LIBRARY)]


def test_gpu_kernels_that_were_not_built(gpu_kernels, monkeypatch, tmp_path):
    monkeypatch.setattr(library, "_GPU_LIBRARY", tmp_path / "nothing.so")
    monkeypatch.setattr(library, "has_gpu", lambda: True)
    assert gpu_kernels("") == [] and choose() is None
    assert "no nvcc when it was installed" in library.library_status()
    gpu_kernels("0")
    assert "TFX_LARGEOUT_GPU_KERNELS is 0" in library.library_status()


def test_gpu_kernels_that_were_built_and_cannot_be_loaded(monkeypatch, tmp_path):
    (tmp_path / "damaged.so").write_text("")
    monkeypatch.setattr(library, "_has_gpu_kernels", None)
    monkeypatch.setattr(library, "_GPU_LIBRARY", tmp_path / "damaged.so")
    monkeypatch.delenv("TFX_LARGEOUT_GPU_KERNELS", raising=False)
    with pytest.warns(RuntimeWarning, match="GPU kernels can't be loaded .* reinstall it"):
        assert choose() is None
    assert choose() is None  # without another warning


def test_gpu_kernels_that_are_not_there(monkeypatch):
    monkeypatch.setattr(library, "_has_gpu_kernels", None)
    monkeypatch.setenv("TFX_LARGEOUT_GPU_KERNELS", "/nowhere.so")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="TFX_LARGEOUT_GPU_KERNELS must be 0, 1 or the path"):
            choose()


@pytest.mark.parametrize("has_kernels", [False, True])
def test_the_status_says_where_ops_run(has_kernels, monkeypatch):
    monkeypatch.setattr(library, "has_gpu", lambda: False)
    without = library.library_status()
    monkeypatch.setattr(library, "has_gpu", lambda: True)
    monkeypatch.setattr(library, "_has_gpu_kernels", has_kernels)
    status = library.library_status()
    assert status.startswith(without)
    assert ("InvertedFile and RowBounds look at all classes" in status) == has_kernels
    assert ("heads on the GPU run on TensorFlow's ops" in status) != has_kernels
    assert "GPU" not in without


@pytest.mark.cpu
def test_blocks_are_larger_on_a_gpu(monkeypatch):
    hidden, kernel = tf.zeros([8, 4]), tf.Variable(tf.zeros([3, 4]))
    of_cpu = logit_blocks.classes_of_block(hidden, kernel)
    monkeypatch.setattr(logit_blocks, "is_on_gpu", lambda _: True)
    of_gpu = logit_blocks.classes_of_block(hidden, kernel)
    assert (int(of_cpu), int(of_gpu)) == (2**20 // 8, 2**26 // 8)
    assert of_gpu.dtype == tf.int32  # which a GPU leaves on the host


def test_the_size_of_blocks_does_not_matter(monkeypatch):
    rng = np.random.default_rng(0)
    arguments = (
        rng.normal(size=(5, 4)).astype("float32"),
        tf.Variable(rng.normal(size=(999, 4)).astype("float32")),
        None,
        rng.integers(0, 999, (5, 2)),
        7,
    )
    results = []
    for elements in (1, 500, 2**26):  # 64 classes at least
        monkeypatch.setattr(logit_blocks, "_BLOCK_ELEMENTS", elements)
        results.append(streamed_logits(*arguments, implementation="composed"))
    for result in results[1:]:
        np.testing.assert_allclose(result.logsumexp, results[0].logsumexp, rtol=1e-6)
        for own, other in zip(result[1:], results[0][1:], strict=True):
            np.testing.assert_allclose(own, other, rtol=1e-6)
