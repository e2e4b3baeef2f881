# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import sys

import pytest

import tfx_largeout as tlo
from tfx_largeout.compare.data import find_files, load
from tfx_largeout.compare.head_builders import HeadBuilder
from tfx_largeout.compare.head_table import head_and_loss, head_row, load_function
from tfx_largeout.compare.settings import DataSettings, TrainingSettings, WorkerSettings
from tfx_largeout.compare.training import build_model

MODULE = """
import tfx_largeout as tlo

def mine(num_classes, label_counts, seed):
    assert len(label_counts) == num_classes
    return tlo.heads.DenseHead(num_classes, name="mine"), tlo.losses.SoftmaxCrossentropy()

def number(num_classes, label_counts, seed):
    return num_classes
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    (tmp_path / "module_of_a_user.py").write_text(MODULE)
    yield "module_of_a_user"
    sys.modules.pop("module_of_a_user", None)


def test_a_head_of_the_current_folder_is_built(own_module, tiny_data):
    function = f"{own_module}:mine"
    row = head_row("mine", function)
    data = DataSettings(None, *find_files(str(tiny_data)))
    training = TrainingSettings(hidden=8)
    settings = WorkerSettings("mine", row.options, data, training, "", function=function)
    model, _ = build_model(settings, load(data)[0])
    assert model.layers[-1].name == "mine" and model.output_shape == (None, 200)


def test_a_function_that_returns_something_else_is_named(own_module):
    row = head_row("number", f"{own_module}:number")
    with pytest.raises(TypeError, match=r"'module_of_a_user:number' must return .*; got 7"):
        row.make(HeadBuilder(7, [1] * 7, 0, {}))


def test_a_module_that_breaks_is_named_with_its_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken_module.py").write_text("1 / 0")
    with pytest.raises(ValueError, match=r"got 'broken_module:f' \(ZeroDivisionError: division"):
        load_function("broken_module:f")


def test_a_head_alone_gets_its_usual_loss():
    rows = tlo.optimizers.RowAdam(0.1)
    for head, loss in (
        (tlo.heads.DenseHead(9), tlo.losses.SoftmaxCrossentropy),
        (tlo.heads.SampledHead(9, tlo.samplers.Uniform(3), rows), tlo.losses.ComplementarySum),
        (tlo.heads.TFNCEHead(9, 3), tlo.losses.TFCandidateSamplingLoss),
        (tlo.heads.FactoredHead(9, 0.1), tlo.losses.ZLoss),
        (tlo.heads.HierarchicalSoftmaxHead(9, rows), tlo.losses.NegativeLogLikelihood),
    ):
        assert type(head_and_loss("f", head)[1]) is loss
    with pytest.raises(TypeError, match=r"\(head, loss\) where the head has no usual loss; got"):
        head_and_loss("f", tlo.heads.Head(9))
