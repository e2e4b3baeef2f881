# SPDX-License-Identifier: Apache-2.0
"""Configurations of classes that users derive from the package's."""

from __future__ import annotations

import h5py
import keras
import numpy as np
import pytest

import tfx_largeout as tlo
from tfx_largeout import heads, losses, samplers


class Share(samplers.Uniform):
    """Takes other arguments than its base, in a `get_config` as usual in Keras."""

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
    """Stores more than the arguments of its base: an object, an array, its argument."""

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


@pytest.mark.parametrize("dtype", ["int32", "complex64", "S1", "bool"])
def test_saved_numbers_of_another_kind_change_nothing(dtype, tmp_path):
    head = heads.SampledHead(9, samplers.Uniform(3), tlo.optimizers.RowSGD(0.1))
    model = keras.Sequential([keras.Input([4]), head])
    path = tmp_path / "x.weights.h5"
    model.save_weights(path)
    with h5py.File(path, "r+") as file:
        weights = file["layers/sampled_head/vars"]
        (name,) = (name for name, array in weights.items() if array.shape == (9, 4))
        del weights[name]
        weights[name] = np.ones((9, 4)).astype(dtype)
        if dtype == "int32":  # widths may differ, as in Keras
            wide = model.get_weights()
            del weights[name]
            weights[name] = np.ones((9, 4))
            file.flush()
            model.load_weights(path)
            assert (head.kernel.numpy() == 1).all()
            model.set_weights(wide)
            del weights[name]
            weights[name] = np.ones((9, 4), dtype)
    before = model.get_weights()
    message = rf"kinds of numbers of SampledHead.*kernel has dtype float32, saved was .*{dtype[:4]}"
    with pytest.raises(ValueError, match=message):
        model.load_weights(path)
    for one, two in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(one, two)
