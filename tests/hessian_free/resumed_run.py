# SPDX-License-Identifier: Apache-2.0
"""A part of a training run that continues from the files of the last part.

python resumed_run.py FOLDER FIRST_EPOCH LAST_EPOCH    # as a separate process
"""

from __future__ import annotations

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parents[1]))  # the folder of the tests

import keras
import numpy as np
from hessian_free.models import classes_data, dense_model, sparse_softmax

from tfx_largeout.hessian_free import (
    DiagonalPreconditioner,
    FixedSample,
    GeometricSample,
    LBFGSPreconditioner,
    Trainer,
    VarianceSample,
)

TRAINERS = {
    "lbfgs, geometric": lambda: Trainer(
        LBFGSPreconditioner(8), GeometricSample(40, 1.2), GeometricSample(20, 1.3), damping=0.01
    ),
    "diagonal, variance": lambda: Trainer(
        DiagonalPreconditioner(), VarianceSample(40, 0.5), VarianceSample(20, 1.0), damping=0.03
    ),
    "refused": lambda: Trainer(cg_sample=FixedSample(10), damping=1e-6),
}


def run(name: str, folder: Path, first: int, last: int) -> list[float]:
    """Trains from one epoch to another, from the files in `folder` if it is not the first.

    Returns:
        The sizes of the steps.
    """
    folder.mkdir(exist_ok=True)
    keras.utils.set_random_seed(11 + first)
    model, trainer = dense_model(sparse_softmax(), hidden=(7, 5)), TRAINERS[name]()
    if first:
        with np.load(folder / "weights.npz") as weights:
            model.set_weights([weights[name] for name in sorted(weights)])
        trainer.load_state(folder / "state.npz")
    x, _ = classes_data(300)
    y = (x[:, 0] > 0) + 2 * (x[:, 1] + x[:, 2] > 0)
    history = trainer.fit(model, x, y, epochs=last, initial_epoch=first, verbose=0).history
    trainer.save_state(folder / "state.npz")
    np.savez(folder / "weights.npz", *model.get_weights())
    return history["step_size"]


if __name__ == "__main__":
    run("lbfgs, geometric", Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
