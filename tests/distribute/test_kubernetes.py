# SPDX-License-Identifier: Apache-2.0
"""The variables of pods of an indexed Job, as the manual of Kubernetes has them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from child import start_child
from distribute.run_workers import check_ended_well, end_workers, free_ports

from tfx_largeout.distribute import kubernetes_workers

MANIFEST = Path(__file__).parents[2] / "examples" / "kubernetes.yaml"

# The names of pods resolve to this machine.
JOINS = """
import sys
import tensorflow as tf
import tfx_largeout as tlo
names, rank = tlo.distribute.kubernetes_workers(2, "over-workers")
assert names == ["train-0.over-workers:8888", "train-1.over-workers:8888"], names
here = dict(zip(names, sys.argv[1:]))
workers = tlo.distribute.connect([here[name] for name in names], rank, timeout=180)
print(workers.rank, workers.sum(tf.constant(workers.rank + 1), "x").numpy())
"""


def pod(monkeypatch, index="2", host="train-2"):
    for name, value in (("JOB_COMPLETION_INDEX", index), ("HOSTNAME", host)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)


def test_addresses_in_the_order_of_ranks(monkeypatch):
    pod(monkeypatch)
    expected = [f"train-{i}.svc:9000" for i in range(3)]
    assert kubernetes_workers(3, "svc", 9000) == (expected, 2)
    pod(monkeypatch, "10", "a-b-10.svc.default.svc.cluster.local")
    addresses, rank = kubernetes_workers(11, "svc")
    assert (addresses[0], addresses[-1], rank) == ("a-b-0.svc:8888", "a-b-10.svc:8888", 10)


@pytest.mark.parametrize(
    "index, host", [(None, "train-2"), ("2", None), ("1", "train-2"), ("2", "train")]
)
def test_in_no_pod_of_an_indexed_job(monkeypatch, index, host):
    pod(monkeypatch, index, host)
    with pytest.raises(RuntimeError, match="must be called in a pod of an indexed Job"):
        kubernetes_workers(3, "svc")


def test_arguments(monkeypatch):
    pod(monkeypatch)
    with pytest.raises(ValueError, match="size must be above JOB_COMPLETION_INDEX, 2; got 2"):
        kubernetes_workers(2, "svc")
    with pytest.raises(ValueError, match="service must be the name of a headless service; got ''"):
        kubernetes_workers(3, "")
    for port in (0, 65536):
        with pytest.raises(ValueError, match=f"port must be .*; got {port}"):
            kubernetes_workers(3, "svc", port)


def test_the_manifest_says_the_same_everywhere():
    text = MANIFEST.read_text()
    sizes = {*re.findall(r"(?:completions|parallelism): (\d+)", text)}
    size, service = re.search(r'--kubernetes, "(\d+)", ([\w-]+)', text).groups()
    assert sizes == {size}
    assert set(re.findall(r"(?:name|subdomain|job-name): (over-workers)", text)) == {service}
    assert "completionMode: Indexed" in text and "publishNotReadyAddresses: true" in text


@pytest.mark.thorough
@pytest.mark.cpu
def test_two_pods_on_this_machine(tmp_path):
    program = tmp_path / "joins.py"
    program.write_text(JOINS)
    addresses = [f"127.0.0.1:{port}" for port in free_ports(2)]
    children = []
    for index in range(2):
        environment = {
            **os.environ,
            "JOB_COMPLETION_INDEX": str(index),
            "HOSTNAME": f"train-{index}",
        }
        children.append(start_child(tmp_path, str(program), *addresses, env=environment))
    ended = end_workers(children)
    check_ended_well(ended)
    assert [worker.output.split() for worker in ended] == [["0", "3"], ["1", "3"]]
