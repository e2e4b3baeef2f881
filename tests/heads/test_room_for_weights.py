# SPDX-License-Identifier: Apache-2.0
"""A head that can't fit into memory raises before it is built; if it might not fit, it warns."""

from __future__ import annotations

import resource
import warnings

import keras
import numpy as np
import pytest
from child import run_program

import tfx_largeout as tlo
from tfx_largeout import memory

pytestmark = pytest.mark.cpu  # the memory of a GPU is not looked at
C, D = 1_000_000, 32  # W takes 128 MB, with its bias 132


def having(monkeypatch, megabytes):
    monkeypatch.setattr(memory, "available_bytes", lambda: int(1e6 * megabytes))


def sampled(**kw):
    sampler, optimizer = tlo.samplers.LogUniform(20), tlo.optimizers.RowAdam(1e-3)
    return tlo.heads.SampledHead(C, sampler, optimizer, name="large", **kw)


HEADS = {
    "sampled": (
        sampled,
        "weights 132 MB, optimizer 272 MB",
        ["RowSGD", "workers (tlo.distribute)"],
    ),
    "bfloat16": (
        lambda: sampled(dtype="bfloat16"),
        "weights 66 MB, optimizer 272 MB",
        ["RowSGD", "workers (tlo.distribute)"],
    ),
    "exact": (
        lambda: tlo.heads.ExactSoftmaxHead(C, tlo.optimizers.RowAdagrad(0.1), name="large"),
        "weights 132 MB, optimizer 132 MB",
        ["dtype='bfloat16': 198 MB", "FactoredHead: 128 MB"],
    ),
    "factored": (
        lambda: tlo.heads.FactoredHead(C, 0.1, name="large"),
        "weights 129 MB",
        ["workers (tlo.distribute)"],
    ),
    "two levels": (
        lambda: tlo.heads.HierarchicalSoftmaxHead(C, tlo.optimizers.RowSGD(0.1), name="large"),
        "weights 132 MB, index 8 MB",
        ["dtype='bfloat16'"],
    ),
    "dense": (
        lambda: tlo.heads.DenseHead(C, name="large"),
        "weights 132 MB",
        ["workers (tlo.distribute)"],
    ),
}


@pytest.mark.all_cases
@pytest.mark.parametrize("name", HEADS)
def test_a_head_that_is_too_large_is_refused_before_it_is_made(monkeypatch, name):
    make, parts, smaller = HEADS[name]
    having(monkeypatch, 60)
    head = make()
    with pytest.raises(MemoryError) as caught:
        head.build((None, D))
    message = str(caught.value)
    for words in (f"{type(head).__name__} 'large' must fit", "60 MB", parts, *smaller):
        assert words in message
    assert not head.built and not head.variables
    having(monkeypatch, 10_000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        head.build((None, D))
    assert head.built


def test_a_step_that_may_not_fit_warns(monkeypatch):
    having(monkeypatch, 200)
    with pytest.warns(RuntimeWarning, match=r"'large' may not fit .* gradients 132 MB"):
        tlo.heads.DenseHead(C, name="large").build((None, D))


def test_state_of_the_models_optimizer_is_refused_by_name(monkeypatch):
    model = keras.Sequential([keras.Input([D]), tlo.heads.DenseHead(C, name="large")])
    model.compile("adam", tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)
    having(monkeypatch, 200)
    data = np.zeros([2, D], "float32"), np.zeros(2, int)
    with pytest.raises(
        MemoryError, match=r"Adam 'adam\w*' for DenseHead 'large'.*optimizer 264 MB"
    ):
        model.fit(*data, verbose=0)
    assert not model.optimizer.built
    model.compile("sgd", tlo.losses.SoftmaxCrossentropy(), run_eagerly=True)
    with pytest.warns(RuntimeWarning, match="'large' may not fit"):
        model.fit(*data, verbose=0)


class OwnSchedule(keras.optimizers.schedules.LearningRateSchedule):
    def __call__(self, step):
        return 1e-3


class OwnOptimizer(keras.optimizers.Adam):
    """A layer that can't be rebuilt from its configuration."""

    def __init__(self, other):
        super().__init__()
        self.other = other


class OwnRowOptimizer(tlo.optimizers.RowAdagrad):
    def __init__(self, other):
        super().__init__()
        self.other = other


def of_rows(optimizer):
    return tlo.heads.SampledHead(100, tlo.samplers.Uniform(9), optimizer, dtype="mixed_bfloat16")


def test_an_optimizer_without_a_configuration_trains():
    def estimate(optimizer):
        return tlo.estimate_memory(
            tlo.heads.DenseHead(100), 8, hidden_size=D, optimizer=optimizer
        ).optimizer

    for optimizer in (keras.optimizers.Adam(OwnSchedule()), keras.optimizers.Adam(lambda: 1e-3)):
        assert estimate(optimizer) == 2 * 4 * 100 * (D + 1)
    with pytest.raises(ValueError, match="optimizer must be one that its get_config makes again"):
        estimate(OwnOptimizer(1))
    for head, optimizer, loss in (
        (of_rows(tlo.optimizers.RowAdam(OwnSchedule())), "sgd", tlo.losses.SampledSoftmax()),
        (of_rows(OwnRowOptimizer(1)), "sgd", tlo.losses.SampledSoftmax()),
        (tlo.heads.DenseHead(100), OwnOptimizer(1), tlo.losses.SoftmaxCrossentropy()),
    ):
        model = keras.Sequential([keras.Input([D]), head])
        model.compile(optimizer, loss, run_eagerly=True)
        model.train_on_batch(np.zeros([2, D], "float32"), np.zeros(2, int))


def test_an_embedding_says_so_too(monkeypatch):
    having(monkeypatch, 60)
    for layer, shape in (
        (tlo.layers.RowEmbedding(C, D, name="large"), None),
        (tlo.layers.SparseDense(D, name="large"), (None, C)),
    ):
        with pytest.raises(MemoryError, match=f"{type(layer).__name__} 'large' must fit"):
            layer.build(shape)
        assert not layer.built and not layer.variables


def test_what_a_process_can_have(tmp_path, monkeypatch):
    """The least of the system's and its groups'; a group without a limit, or a damaged one, no."""
    monkeypatch.setattr(memory, "_PROC", tmp_path / "proc")
    monkeypatch.setattr(memory, "_CGROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory, "_held_by_tensorflow", lambda: 5)
    assert memory.available_bytes() is None
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/meminfo").write_text("MemAvailable:  1000 kB\nSwapFree:  24 kB\n")
    assert memory.available_bytes() == 1024 * 1024 + 5

    def group(path, most, used, reclaimable):
        folder = tmp_path / "groups" / path
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "memory.max").write_text(f"{most}\n")
        (folder / "memory.current").write_text(f"{used}\n")
        (folder / "memory.stat").write_text(
            f"anon 1\ninactive_file {reclaimable // 4}\nactive_file {reclaimable * 3 // 4}\n"
        )

    (tmp_path / "proc/self/cgroup").write_text("0::/outer/inner\n")
    group("outer/inner", "max", 10, 0)
    assert memory.available_bytes() == 1024 * 1024 + 5
    group("outer", 1000, 400, 100)
    assert memory.available_bytes() == 705
    group("outer/inner", 300, 400, 0)
    assert memory.available_bytes() == 5
    (tmp_path / "proc/self/cgroup").write_text("7:cpu,memory:/old\n")
    old = tmp_path / "groups/memory/old"
    old.mkdir(parents=True)
    for name, text in (("limit", "2000"), ("usage", "500")):
        (old / f"memory.{name}_in_bytes").write_text(text)
    (old / "memory.stat").write_text("total_inactive_file 30\n")
    assert memory.available_bytes() == 1535


LIMITED = """
import resource, sys
import tfx_largeout as tlo
head = tlo.heads.SampledHead(3_000_000, tlo.samplers.LogUniform(20), tlo.optimizers.RowAdam(1e-3))
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (used + 2**30, -1))
try:
    head.build((None, 256))
except MemoryError as error:
    print("refused", "optimizer" in str(error))
"""


@pytest.mark.thorough
def test_a_process_of_limited_addresses(tmp_path):
    assert resource.RLIM_INFINITY == -1
    assert run_program(tmp_path, LIMITED)[-2:] == ["refused", "True"]
