# SPDX-License-Identifier: Apache-2.0
"""The table of heads. A new head adds a row, and must pass the whole suite."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import keras
from conformance.self_updating_dense import SelfUpdatingDense

import tfx_largeout as tfx


class Row(NamedTuple):
    """A head as a user would choose it.

    Attributes:
        name: Shown in the test's name.
        make_head: `make_head(num_classes, **layer_arguments)`.
        make_loss: The loss that goes with it.
        make_optimizer: The model's optimizer.
    """

    name: str
    make_head: Callable[..., Any]
    make_loss: Callable[..., Any]
    make_optimizer: Callable[[], Any]


def _sgd() -> Any:
    return keras.optimizers.SGD(0.5)


HEADS = [
    Row("dense", tfx.heads.DenseHead, tfx.losses.SoftmaxCrossEntropy, _sgd),
    Row(
        "tf_sampled_softmax",
        lambda classes, **kw: tfx.heads.TFSampledSoftmaxHead(classes, num_sampled=20, seed=3, **kw),
        tfx.losses.BuiltInLoss,
        _sgd,
    ),
    Row(
        "tf_nce",
        lambda classes, **kw: tfx.heads.TFNCEHead(
            classes, num_sampled=20, sampler="uniform", seed=3, **kw
        ),
        tfx.losses.BuiltInLoss,
        lambda: keras.optimizers.SGD(2.0),
    ),
    Row("self_updating_dense", SelfUpdatingDense, tfx.losses.SoftmaxCrossEntropy, _sgd),
]
