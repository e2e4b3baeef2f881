# SPDX-License-Identifier: Apache-2.0
"""The objective of Hessian-free training, out of a model and data, in one process or in several."""

from __future__ import annotations

from collections.abc import Callable

import keras
import numpy as np

from tfx_largeout.distribute.meeting import together
from tfx_largeout.distribute.workers import Workers as Connected
from tfx_largeout.hessian_free.curvature import Curvature
from tfx_largeout.hessian_free.examples import Examples
from tfx_largeout.hessian_free.objective import Objective
from tfx_largeout.hessian_free.over_workers import (
    SITE,
    agree_on_data,
    agree_on_model,
    refuse_heads,
)
from tfx_largeout.hessian_free.weight_penalty import WeightPenalty
from tfx_largeout.hessian_free.worker import Worker
from tfx_largeout.hessian_free.workers import Workers

MakeWorker = Callable[[Curvature, Examples, int], Worker]


def make_objective(
    connected: Connected,
    model: keras.Model,
    make_examples: Callable[[], tuple[Examples, Examples]],
    make_worker: MakeWorker,
    batch_size: int,
    sharded: bool,
) -> Objective:
    """Returns the objective. What is wrong in one process is an error in all of them.

    Args:
        connected: The processes.
        model: A compiled model; it is built, if it is not.
        make_examples: Returns the examples for gradients, and those of the line search.
        make_worker: Makes the worker of this process.
        batch_size: Of that worker.
        sharded: Whether the examples of each process are a part.

    Raises:
        RuntimeError: The model is not whole in each process.
        ValueError: Models or data differ; or as `Curvature` and `make_examples`.
    """

    def make() -> tuple[Curvature, Examples, Examples, list[Worker]]:
        refuse_heads(connected, model)
        examples, held_out = make_examples()
        if not model.built:
            model(examples.take(np.arange(1))[0], training=False)
        curvature = Curvature(model, examples.spec)
        workers = [make_worker(curvature, part, batch_size) for part in (examples, held_out)]
        return curvature, examples, held_out, workers

    curvature, examples, held_out, workers = together(connected, SITE, make)
    parameters = curvature.parameters
    if not connected.alone:
        agree_on_model(connected, model)
        agree_on_data(connected, examples, held_out, sharded)
        workers = [Workers(w, connected, parameters, batch_size, sharded) for w in workers]
    training, line_search = workers
    return Objective(parameters, training, line_search, WeightPenalty(model.trainable_variables))
