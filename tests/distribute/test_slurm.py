# SPDX-License-Identifier: Apache-2.0
"""The variables of srun, as its manual has them."""

from __future__ import annotations

import pytest

from tfx_largeout.distribute import slurm_workers

CASES = {
    "one_node": ("localhost", "4", [f"localhost:{8888 + i}" for i in range(4)]),
    "order_of_numbers": ("n[9-10]", "2(x2)", ["n9:8888", "n9:8889", "n10:8888", "n10:8889"]),
    "zeros": ("n[08-10,12]", "1(x4)", ["n08:8888", "n09:8888", "n10:8888", "n12:8888"]),
    "several": ("a[1,3]-x,b", "1,2,1", ["a1-x:8888", "a3-x:8888", "a3-x:8889", "b:8888"]),
    "two_brackets": ("r[1-2]n[1-2]", "1(x4)", [f"r{r}n{n}:8888" for r in "12" for n in "12"]),
}


@pytest.mark.parametrize("name", CASES)
def test_addresses_in_the_order_of_ranks(name, monkeypatch):
    nodes, tasks, expected = CASES[name]
    monkeypatch.setenv("SLURM_STEP_NODELIST", nodes)
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", tasks)
    monkeypatch.setenv("SLURM_PROCID", "3")
    assert slurm_workers() == (expected, 3)


def test_without_slurm(monkeypatch):
    monkeypatch.delenv("SLURM_PROCID", raising=False)
    monkeypatch.setenv("SLURM_STEP_NODELIST", "a")
    monkeypatch.setenv("SLURM_STEP_TASKS_PER_NODE", "1")
    with pytest.raises(RuntimeError, match="srun has started; got no SLURM_PROCID"):
        slurm_workers()
