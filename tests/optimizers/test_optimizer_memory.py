# SPDX-License-Identifier: Apache-2.0
"""OptimizerMemory: the slots that optimizers make, and the temporaries of their steps."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout.memory import StepSize, Weight
from tfx_largeout.optimizers.optimizer_memory import OptimizerMemory

OPTIMIZERS = {
    "adam": keras.optimizers.Adam,
    "sgd": keras.optimizers.SGD,
    "momentum": lambda: keras.optimizers.SGD(momentum=0.9, use_ema=True),
    "accumulated": lambda: keras.optimizers.Adam(gradient_accumulation_steps=2),
    "adafactor": keras.optimizers.Adafactor,
    "scaled": lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Lion()),
    "row_adam": tlo.optimizers.RowAdam,
    "row_adagrad": tlo.optimizers.RowAdagrad,
    "row_wise": lambda: tlo.optimizers.RowAdagrad(row_wise=True),
    "row_rmsprop": tlo.optimizers.RowRMSprop,
    "fused_adam": tlo.optimizers.FusedAdam,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_slots_are_those_that_the_optimizer_makes(name):
    weights = [Weight((40, 9), "float32"), Weight((9,), "float32"), Weight((2, 3, 4), "bfloat16")]
    optimizer = OPTIMIZERS[name]()
    of_optimizer = OptimizerMemory(OPTIMIZERS[name]())
    slots = [slot for weight in weights for slot in of_optimizer.slots_of(weight)]
    optimizer.build([keras.Variable(np.zeros(w.shape), dtype=w.dtype) for w in weights])
    made = [Weight.of(v, "optimizer") for v in optimizer.variables if len(v.shape)]
    assert sorted(slots) == sorted(slot._replace(is_trained=False) for slot in made)


@pytest.mark.all_cases
@pytest.mark.parametrize(
    ("optimizer", "takes_slices", "temporaries", "adds_up"),
    [
        (None, False, 0, False),
        ("sgd", True, 1, True),
        (keras.optimizers.SGD(momentum=0.9), False, 1, True),
        (keras.optimizers.SGD(clipnorm=1.0), True, 1, False),
        ("adam", False, 2, False),
        (tlo.optimizers.FusedAdam(), False, 0, True),
        (tlo.optimizers.RowSGD(), True, 1, True),
        (tlo.optimizers.RowAdagrad(), True, 2, True),
        (tlo.distribute.DataParallel(tlo.optimizers.RowAdagrad()), True, 2, True),
    ],
)
def test_temporaries_of_a_step(optimizer, takes_slices, temporaries, adds_up):
    of_optimizer = OptimizerMemory(optimizer)
    assert of_optimizer.step(5, 3) == StepSize(5, 3, takes_slices, temporaries, adds_up)
    assert optimizer is not None or of_optimizer.slots_of(Weight((3, 2), "float32")) == []


def test_an_optimizer_that_its_config_does_not_make_again():
    class Own(keras.optimizers.SGD):
        def __init__(self, needed):
            super().__init__(momentum=needed)

    with pytest.raises(ValueError, match=r"that its get_config makes again.*TypeError"):
        OptimizerMemory(Own(0.5)).slots_of(Weight((3, 2), "float32"))
