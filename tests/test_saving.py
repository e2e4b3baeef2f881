# SPDX-License-Identifier: Apache-2.0
"""Configurations of classes that users derive from those of the package."""

from __future__ import annotations

import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout import heads, losses, samplers


class Share(samplers.Uniform):
    """Takes other arguments than its base, and says so as Keras has it."""

    def __init__(self, share):
        super().__init__(int(100 * share))
        self.share = share

    def get_config(self):
        config = super().get_config()
        del config["num_sampled"], config["unique"], config["per_example"], config["first_id"]
        return {**config, "share": self.share}


class Nearest(heads.SampledHead):
    """Takes fewer arguments than its base."""

    def __init__(self, num_classes, **kwargs):
        sampler = samplers.LSHEmbedding(3)
        super().__init__(num_classes, sampler, tlo.optimizers.RowSGD(0.1), **kwargs)


class Halved(losses.ComplementarySum):
    """Keeps what is no argument of its base: an object, an array, what it was given."""

    def __init__(self, inner=None, **kwargs):
        super().__init__(**kwargs)
        self.inner, self.table = inner or losses.SampledSoftmax(), np.zeros([2, 3])
        self.kwargs = kwargs


def test_a_base_promises_its_own_arguments_and_no_others():
    assert Share.from_config(Share(0.3).get_config()).num_sampled == 30
    promised = heads.SampledHead(9, samplers.Uniform(3), tlo.optimizers.RowSGD(0.1)).get_config()
    assert Nearest(9).get_config().keys() == promised.keys()
    base = losses.ComplementarySum().get_config()
    assert Halved().get_config() == {**base, "name": "halved"}
    assert isinstance(Halved.from_config(Halved().get_config()).inner, losses.SampledSoftmax)


def test_weights_of_classes_are_those_that_the_loss_was_made_with():
    loss = losses.ComplementarySum(class_weights=[1, 2])
    with pytest.raises(AttributeError, match="class_weights"):
        loss.class_weights = [3, 4]
    assert loss.class_weights.tolist() == [1, 2]
